//! Fixed groups of different sizes: long samples on many ranks, short ones on few.

use crate::{
    bins::Bins,
    group_bound::tighten,
    layout_bound,
    lpt::lpt,
    machine::{Allocator, Machine, Place},
    partition::{Counts, Tier, partition},
};

/// Groups for a whole step, each with its samples.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// Who works together.
    pub places: Vec<Place>,
    /// Sample ids by group.
    pub samples: Vec<Vec<u32>>,
    /// Sums of times by group.
    pub loads: Vec<u64>,
}

impl Fixed {
    /// The slowest group.
    pub fn makespan(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }
}

/// All groups of one degree, LPT over them; `None` where a sample fits no such group.
pub fn uniform(machine: &Machine, degree: usize) -> Option<Fixed> {
    if machine.smallest.iter().any(|smallest| *smallest > degree) {
        return None;
    }
    let mut allocator = Allocator::new(machine);
    let places: Vec<Place> = std::iter::from_fn(|| allocator.take(degree)).collect();
    if places.is_empty() {
        return None;
    }
    let (ids, sorted) = crate::order::falling(&machine.times[degree]);
    let bins = lpt(&sorted, places.len());
    let samples = bins.items.iter().map(|items| items.iter().map(|item| ids[*item as usize]).collect());
    Some(Fixed { places, samples: samples.collect(), loads: bins.loads })
}

/// The best of: every uniform degree with LPT, and mixed degrees. The mixed one bisects the makespan; for each candidate, it
/// opens as many large groups as the samples need that fit no smaller one (in memory or in time), fills them up with the
/// next longest, and goes on to the next smaller degree. Returns a lower bound as well, `bound` or better.
pub fn mixed(machine: &Machine, bound: u64) -> (Fixed, &'static str, u64) {
    let uniform = (0..machine.degrees.len()).filter_map(|degree| uniform(machine, degree));
    let best = uniform.min_by_key(Fixed::makespan);
    let best = best.expect("the largest degree holds every sample and has at least one group");
    let mut search = Search { machine, falling: machine.falling(), best, algorithm: "uniform_degree" };
    search.bisect(bound);
    let bound = tighten(machine, bound, search.best.makespan());
    search.open_more(bound);
    let bound = layout_bound::tighten(machine, bound, search.best.makespan());
    (search.best, search.algorithm, bound)
}

/// Rounds of the bisection; it mostly ends earlier.
const ROUNDS: usize = 24;
/// Samples that are packed, over all tries to open more large groups.
const EFFORT: usize = 1 << 18;

struct Search<'a> {
    machine: &'a Machine,
    falling: Vec<u32>,
    best: Fixed,
    algorithm: &'static str,
}

impl Search<'_> {
    /// Whether there is a plan within `limit`; keeps it if it is the best. `opened`, by degree: groups that are there at once.
    fn attempt(&mut self, limit: u64, opened: &[usize]) -> Option<u64> {
        let fixed = fit(self.machine, &self.falling, limit, opened)?;
        let makespan = fixed.makespan();
        if makespan < self.best.makespan() {
            (self.best, self.algorithm) = (fixed, "mixed_degrees");
        }
        Some(makespan.min(limit))
    }

    fn bisect(&mut self, bound: u64) {
        let none = vec![0; self.machine.degrees.len()];
        let (mut low, mut high) = (bound, self.best.makespan());
        // A start near the bound: the answer mostly is.
        let mut candidate = bound + bound / 64;
        for _ in 0..ROUNDS {
            if high <= bound + bound / 10_000 || low + bound / 20_000 >= high {
                break;
            }
            candidate = candidate.clamp(low, high);
            match self.attempt(candidate, &none) {
                Some(makespan) => high = makespan,
                None => low = candidate + 1,
            }
            candidate = low + high.saturating_sub(low) / 2;
        }
    }

    /// Large groups beyond need waste less where several long samples share one that would each leave a smaller one half
    /// empty. Opens one more of some degree, or one less, while that helps.
    fn open_more(&mut self, bound: u64) {
        let mut opened = vec![0_usize; self.machine.degrees.len()];
        let mut tries = (EFFORT / self.falling.len().max(1)).max(8);
        let mut step = (self.best.makespan() - bound) / 2;
        while step > bound / 4000 {
            let limit = self.best.makespan() - step;
            let mut found = None;
            for (degree, less) in (1..opened.len()).rev().flat_map(|degree| [(degree, false), (degree, true)])
            {
                if tries == 0 {
                    return;
                }
                let mut changed = opened.clone();
                changed[degree] = if less { opened[degree].wrapping_sub(1) } else { opened[degree] + 1 };
                if changed[degree] == usize::MAX {
                    continue;
                }
                tries -= 1;
                if self.attempt(limit, &changed).is_some() {
                    found = Some(changed);
                    break;
                }
            }
            match found {
                Some(changed) => opened = changed,
                None => step /= 2,
            }
            step = step.min(self.best.makespan() - bound);
        }
    }
}

/// Groups and samples such that no group exceeds `limit`, if the greedy rule finds them. `opened`, by degree: groups that are
/// there at once.
fn fit(machine: &Machine, falling: &[u32], limit: u64, opened: &[usize]) -> Option<Fixed> {
    let mut allocator = Allocator::new(machine);
    let mut remaining = falling.to_vec();
    let mut packed = Vec::new();
    for degree in (0..machine.degrees.len()).rev() {
        if remaining.is_empty() {
            break;
        }
        let times = &machine.times[degree];
        let needs = |sample: &u32| degree == 0 || needs_degree(machine, *sample as usize, degree, limit);
        let work = |sample: &u32| u128::from(machine.work(degree, *sample as usize));
        let room = u128::from(limit) * allocator.left as u128;
        if degree == 0 && remaining.iter().map(work).sum::<u128>() > room {
            return None;
        }
        let (must, may): (Vec<u32>, Vec<u32>) = remaining.into_iter().partition(needs);
        if must.iter().any(|sample| times[*sample as usize] > limit) {
            return None;
        }
        let mut groups = Packing::new(times, limit);
        for _ in 0..opened[degree] {
            groups.open(allocator.take(degree)?);
        }
        groups.place_all(&must, || allocator.take(degree))?;
        remaining = groups.fill_up(&may);
        packed.push((degree, groups));
    }
    if let Some((0, smallest)) = packed.last_mut() {
        std::iter::from_fn(|| allocator.take(0)).for_each(|place| smallest.open(place));
    }
    let mut fixed = Fixed { places: Vec::new(), samples: Vec::new(), loads: Vec::new() };
    for (_, groups) in packed.into_iter().filter(|_| remaining.is_empty()) {
        groups.level(&mut fixed);
    }
    remaining.is_empty().then_some(fixed)
}

/// Whether no smaller degree can take the sample within `limit`.
fn needs_degree(machine: &Machine, sample: usize, degree: usize, limit: u64) -> bool {
    let smaller = machine.smallest[sample]..degree;
    smaller.into_iter().all(|smaller| machine.times[smaller][sample] > limit)
}

/// Groups of one degree while they are filled.
struct Packing<'a> {
    times: &'a [u64],
    limit: u64,
    places: Vec<Place>,
    taken: Vec<u32>,
    /// Items are positions in `taken`.
    bins: Bins,
    tree: RoomTree,
}

impl<'a> Packing<'a> {
    fn new(times: &'a [u64], limit: u64) -> Self {
        let bins = Bins { loads: Vec::new(), items: Vec::new() };
        Self { times, limit, places: Vec::new(), taken: Vec::new(), bins, tree: RoomTree::new() }
    }

    fn open(&mut self, place: Place) {
        self.places.push(place);
        self.bins.loads.push(0);
        self.bins.items.push(Vec::new());
        self.tree.push(self.limit);
    }

    /// First fit of what needs these groups, opening groups as it must.
    fn place_all(&mut self, must: &[u32], mut open: impl FnMut() -> Option<Place>) -> Option<()> {
        for sample in must {
            if !self.place(*sample) {
                self.open(open()?);
                self.place(*sample);
            }
        }
        Some(())
    }

    /// First fit of what else fits; returns what does not.
    fn fill_up(&mut self, may: &[u32]) -> Vec<u32> {
        may.iter().copied().filter(|sample| !self.place(*sample)).collect()
    }

    fn place(&mut self, sample: u32) -> bool {
        let time = self.times[sample as usize];
        let Some(bin) = self.tree.first(time) else { return false };
        self.tree.use_room(bin, time);
        self.bins.push(bin, self.taken.len() as u32, time);
        self.taken.push(sample);
        true
    }

    /// Balances the samples over the groups, and keeps the better of that and the first fit.
    fn level(self, fixed: &mut Fixed) {
        if self.places.is_empty() {
            return;
        }
        let costs: Vec<u64> = self.taken.iter().map(|sample| self.times[*sample as usize]).collect();
        let even = partition(&costs, self.places.len(), Tier::Auto, Counts::Free);
        let even = even.expect("times add up to less than the limit and there is a group");
        let (items, loads) = if even.makespan() <= self.limit.max(self.bins.makespan()) {
            (even.samples, even.loads)
        } else {
            (self.bins.items, self.bins.loads)
        };
        let ids = |items: Vec<u32>| items.into_iter().map(|item| self.taken[item as usize]).collect();
        fixed.samples.extend(items.into_iter().map(ids));
        fixed.loads.extend(loads);
        fixed.places.extend(self.places);
    }
}

/// Finds the first bin with room: a growing tree of the most room below each node.
struct RoomTree {
    leaves: usize,
    count: usize,
    room: Vec<u64>,
}

impl RoomTree {
    fn new() -> Self {
        Self { leaves: 1, count: 0, room: vec![0; 2] }
    }

    fn push(&mut self, room: u64) {
        if self.count == self.leaves {
            let old = self.room[self.leaves..].to_vec();
            self.leaves *= 2;
            self.room = vec![0; 2 * self.leaves];
            self.room[self.leaves..self.leaves + old.len()].copy_from_slice(&old);
            for node in (1..self.leaves).rev() {
                self.room[node] = self.room[2 * node].max(self.room[2 * node + 1]);
            }
        }
        self.count += 1;
        self.set(self.count - 1, room);
    }

    fn set(&mut self, bin: usize, room: u64) {
        let mut node = self.leaves + bin;
        self.room[node] = room;
        while node > 1 {
            node /= 2;
            self.room[node] = self.room[2 * node].max(self.room[2 * node + 1]);
        }
    }

    fn use_room(&mut self, bin: usize, time: u64) {
        self.set(bin, self.room[self.leaves + bin] - time);
    }

    fn first(&self, time: u64) -> Option<usize> {
        if self.count == 0 || self.room[1] < time {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node = 2 * node + usize::from(self.room[2 * node] < time);
        }
        Some(node - self.leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_group_without_samples_has_nothing_to_do() {
        let machine = Machine::flat(2, vec![], vec![], None).unwrap();
        assert_eq!(mixed(&machine, 0).0.makespan(), 0);
    }
}
