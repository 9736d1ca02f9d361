//! Groups that split within a step: when a group has done its samples, its ranks go on in smaller groups.
//!
//! A rank works in the largest of its groups first. All ranks of a group have the same larger groups, so they arrive together
//! and nobody waits before the end; what a long sample leaves of a rank's time is filled in smaller groups, at their price.

use crate::{
    machine::{Allocator, Machine, Place},
    rooms::Rooms,
};

/// Groups with their samples, from the largest to the smallest. Of two that share a rank, the larger holds all of the smaller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nested {
    /// Who works together.
    pub places: Vec<Place>,
    /// Sample ids by group.
    pub samples: Vec<Vec<u32>>,
    /// The slowest rank's sum over its groups.
    pub makespan: u64,
}

/// The search ends when what it may still gain is less than this part of the bound.
const PRECISION: u64 = 16_384;
/// The first limit tried is above the bound by this part of it.
const FIRST: u64 = 512;
/// Samples put into groups after which the search ends.
const EFFORT: usize = 1 << 19;

/// Bisects the makespan between `bound`, which no plan beats, and `most`; `None` if nothing below `most` is found.
pub fn nested(machine: &Machine, bound: u64, most: u64) -> Option<Nested> {
    let falling = machine.falling();
    let mut search = Search { machine, falling: &falling, levels: levels(machine), effort: EFFORT };
    let (mut low, mut high, mut best) = (bound, most, None);
    let mut candidate = bound + bound / FIRST;
    while high - low > bound / PRECISION && search.effort > 0 {
        candidate = candidate.clamp(low, high - 1);
        match search.attempt(candidate) {
            Some(found) => {
                high = found.makespan.max(low);
                best = Some(found);
            }
            None => low = candidate + 1,
        }
        candidate = low + (high - low) / 2;
    }
    best
}

/// All groups of one size.
struct Level {
    degree: usize,
    places: Vec<Place>,
    /// By group: the one in the level before that it is a part of.
    parents: Vec<Option<usize>>,
}

/// From the largest size to the smallest: those that divide the one before, and nodes.
fn levels(machine: &Machine) -> Vec<Level> {
    let mut allocator = Allocator::new(machine);
    let mut levels: Vec<Level> = Vec::new();
    for (degree, size) in machine.degrees.iter().copied().enumerate().rev() {
        let node = machine.ranks_per_node;
        let larger = levels.last().map_or(size, |level| machine.degrees[level.degree]);
        if !larger.is_multiple_of(size) || !(node.is_multiple_of(size) || size.is_multiple_of(node)) {
            continue;
        }
        let split = |(parent, place): (usize, &Place)| {
            let ranks = place.first_rank..place.first_rank + larger;
            ranks.step_by(size).map(move |first_rank| (Place { first_rank, degree }, Some(parent)))
        };
        let parts =
            levels.last().into_iter().flat_map(|level| level.places.iter().enumerate().flat_map(split));
        let others = std::iter::from_fn(|| allocator.take(degree)).map(|place| (place, None));
        let (places, parents): (Vec<_>, Vec<_>) = parts.chain(others).unzip();
        if !places.is_empty() {
            levels.push(Level { degree, places, parents });
        }
    }
    levels
}

struct Search<'a> {
    machine: &'a Machine,
    /// Samples from the longest to the shortest; the lists below name them by their places here, rising.
    falling: &'a [u32],
    levels: Vec<Level>,
    effort: usize,
}

impl Search<'_> {
    /// Starts with each sample on the size that takes least rank-time. Where those of a size do not fit, the longest of them,
    /// which lose least, go to the next larger size, as long as the rank-time of all may still fit.
    fn attempt(&mut self, limit: u64) -> Option<Nested> {
        let mut own = vec![Vec::new(); self.levels.len()];
        for place in 0..self.falling.len() {
            own[self.cheapest(place, limit)?].push(place as u32);
        }
        let room = u128::from(limit) * self.machine.ranks as u128;
        while self.work(&own) <= room {
            self.effort = self.effort.saturating_sub(self.falling.len());
            let (groups, over) = self.first_fit(&own, limit);
            if over.iter().all(|over| *over == 0) {
                return Some(self.collect(&own, &groups));
            }
            if over[0] > 0 || self.effort == 0 {
                return None;
            }
            for level in (1..over.len()).filter(|level| over[*level] > 0) {
                self.promote(&mut own, level, over[level]);
            }
        }
        None
    }

    fn time(&self, level: usize, place: u32) -> u64 {
        self.machine.times[self.levels[level].degree][self.falling[place as usize] as usize]
    }

    /// The level whose groups take least rank-time for a sample, of those that hold it and end in time.
    fn cheapest(&self, place: usize, limit: u64) -> Option<usize> {
        let sample = self.falling[place] as usize;
        let work = |level: usize| self.machine.work(self.levels[level].degree, sample);
        let holds = |level: &usize| self.machine.smallest[sample] <= self.levels[*level].degree;
        let levels = (0..self.levels.len()).rev().filter(holds);
        levels.filter(|level| self.time(*level, place as u32) <= limit).min_by_key(|level| work(*level))
    }

    fn work(&self, own: &[Vec<u32>]) -> u128 {
        let size = |level: usize| self.machine.degrees[self.levels[level].degree] as u128;
        let time = |(level, own): (usize, &Vec<u32>)| {
            size(level) * own.iter().map(|place| u128::from(self.time(level, *place))).sum::<u128>()
        };
        own.iter().enumerate().map(time).sum()
    }

    /// By level, then sample of the level: its group, or none. And by level: the sum of the times of those without.
    fn first_fit(&self, own: &[Vec<u32>], limit: u64) -> (Vec<Vec<Option<usize>>>, Vec<u64>) {
        let (mut groups, mut over) = (Vec::new(), vec![0; own.len()]);
        let mut rooms = Rooms::new(0, 0);
        for (index, level) in self.levels.iter().enumerate() {
            let left = |parent: &Option<usize>| parent.map_or(limit, |parent| rooms.left(parent));
            rooms = Rooms::of(&level.parents.iter().map(left).collect::<Vec<u64>>());
            let mut place = |place: &u32| {
                let time = self.time(index, *place);
                let group = rooms.place(time);
                over[index] += if group.is_none() { time } else { 0 };
                group
            };
            groups.push(own[index].iter().map(&mut place).collect());
        }
        (groups, over)
    }

    /// Moves the longest samples of a level to the one before, until they make up for `over`.
    fn promote(&self, own: &mut [Vec<u32>], level: usize, over: u64) {
        let mut promoted = 0;
        let enough = |place: &u32| {
            let before = promoted;
            promoted += self.time(level, *place);
            before < over
        };
        let count = own[level].iter().copied().take_while(enough).count();
        let moved: Vec<u32> = own[level].drain(..count).collect();
        own[level - 1].extend(moved);
        own[level - 1].sort_unstable();
    }

    fn collect(&self, own: &[Vec<u32>], groups: &[Vec<Option<usize>>]) -> Nested {
        let mut nested = Nested { places: Vec::new(), samples: Vec::new(), makespan: 0 };
        let mut loads: Vec<u64> = Vec::new();
        for (index, level) in self.levels.iter().enumerate() {
            loads = level.parents.iter().map(|parent| parent.map_or(0, |parent| loads[parent])).collect();
            let mut samples = vec![Vec::new(); level.places.len()];
            for (place, group) in own[index].iter().zip(&groups[index]) {
                let group = group.expect("all samples have a group");
                loads[group] += self.time(index, *place);
                samples[group].push(self.falling[*place as usize]);
            }
            nested.makespan = loads.iter().copied().fold(nested.makespan, u64::max);
            let busy = level.places.iter().zip(samples).filter(|(_, samples)| !samples.is_empty());
            for (place, samples) in busy {
                nested.places.push(*place);
                nested.samples.push(samples);
            }
        }
        nested
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::SequenceParallel;

    fn machine(ranks: usize, degrees: &[usize], node: usize, lengths: &[u64]) -> Machine {
        let parallel = SequenceParallel {
            degrees: degrees.to_vec(),
            bytes_per_token: 300.0,
            bandwidth: vec![(2, 1e6), (8, 2e5)],
            ranks_per_node: node,
            rate: 1e6,
            passes: 3.0,
        };
        let samples: Vec<(u64, f64)> = lengths.iter().map(|l| (*l, (200 * l + 2 * l * l) as f64)).collect();
        Machine::grouped(ranks, &parallel, &samples, Some(200)).unwrap().0
    }

    /// The slowest rank, over all ways to put every sample on aligned ranks.
    fn optimum(machine: &Machine, loads: &mut [u64], sample: usize) -> u64 {
        if sample == machine.tokens.len() {
            return loads.iter().copied().max().unwrap();
        }
        let mut best = u64::MAX;
        for degree in machine.smallest[sample]..machine.degrees.len() {
            for first in (0..machine.ranks).step_by(machine.degrees[degree]) {
                let ranks = first..first + machine.degrees[degree];
                loads[ranks.clone()].iter_mut().for_each(|load| *load += machine.times[degree][sample]);
                best = best.min(optimum(machine, loads, sample + 1));
                loads[ranks].iter_mut().for_each(|load| *load -= machine.times[degree][sample]);
            }
        }
        best
    }

    #[test]
    fn it_is_near_the_best_of_all_ways_which_the_bound_does_not_exceed() {
        let (mut all, mut best) = (0, 0);
        base::testing::cases(1000, |u| {
            let lengths: Vec<u64> =
                (0..u.int_in_range(1..=5)?).map(|_| u.int_in_range(1..=400)).collect::<Result<_, _>>()?;
            let machine = machine(4, &[1, 2, 4], 2, &lengths);
            let (bound, most) = (machine.timed_bound().0, 2 * machine.times[2].iter().sum::<u64>());
            let optimum = optimum(&machine, &mut [0; 4], 0);
            let found = nested(&machine, bound, most).unwrap();
            assert!(bound <= optimum && optimum <= found.makespan, "{lengths:?}: {bound}, {optimum}");
            let mut loads = [0; 4];
            for (place, samples) in found.places.iter().zip(&found.samples) {
                let ranks = place.first_rank..place.first_rank + machine.degrees[place.degree];
                let times = samples.iter().map(|sample| machine.times[place.degree][*sample as usize]);
                let time: u64 = times.sum();
                loads[ranks].iter_mut().for_each(|load| *load += time);
            }
            assert_eq!(loads.into_iter().max(), Some(found.makespan));
            let mut seen = found.samples.concat();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..lengths.len() as u32), "samples are lost or doubled");
            all += 1;
            best += usize::from(found.makespan <= optimum + optimum / 100);
            Ok(())
        });
        assert!(best * 10 > all * 6, "{best} of {all}");
    }

    #[test]
    fn sizes_that_do_not_split_into_each_other_or_into_nodes_are_left_out() {
        let machine = machine(14, &[1, 2, 3, 4, 6, 8], 6, &[10]);
        let sizes = |levels: &[Level]| {
            levels.iter().map(|level| (machine.degrees[level.degree], level.places.len())).collect::<Vec<_>>()
        };
        let levels = levels(&machine);
        assert_eq!(sizes(&levels), [(6, 2), (3, 4), (1, 14)]);
        assert_eq!(levels[2].parents[..4], [Some(0), Some(0), Some(0), Some(1)]);
        assert_eq!(levels[2].parents[12..], [None, None]);
    }
}
