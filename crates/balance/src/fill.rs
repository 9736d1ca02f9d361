//! Fills groups of different sizes within a limit, from the largest to the smallest.
//!
//! Each size is filled in two ways, and in each with as many groups as the samples need that fit no smaller one, and one more:
//! by first fit, and group by group with those few samples that fit best into what is left of it, by the rank-time that they
//! save elsewhere. The most promising of these go on to the next size. What is left at some size may also be shared out
//! evenly over all ranks that are left: these groups are many, so that only the sum counts until they are built.

use crate::{
    bins::Bins,
    complete::{Candidate, best_three},
    fixed::Fixed,
    free::Free,
    lpt::lpt,
    machine::{Allocator, Machine},
    multifit::first_fit,
    refine::{Effort, refine},
    rooms::Rooms,
};

/// States that go on to the next size: so many at most, and as many as have so many samples in groups together.
const WIDTH: usize = 6;
const SAMPLES: usize = 2048;
/// What a sample saves that no smaller degree can take, in multiples of what it takes.
const NEEDED: u64 = 4;
/// A group with room for so many of the longest sample that is left gets it.
const MANY: u64 = 4;
/// Samples tried for the rest of a group: so many of those that fit into all of it, a half, a quarter, a sixteenth.
const CANDIDATES: [(u32, usize); 4] = [(0, 12), (1, 10), (2, 8), (4, 6)];
/// A group with less room than this part of the limit is full.
const FULL: u64 = 4096;
/// For the groups that share what is left.
const SHARING: Effort = Effort { rounds: 24, pairs: 4096, keep_counts: false };

/// The samples of a machine, from the longest to the shortest, as a limit sees them. Samples are named by their places in this
/// order.
pub struct Filler<'a> {
    machine: &'a Machine,
    falling: &'a [u32],
    /// By degree, then sample.
    times: Vec<Vec<u64>>,
    /// By degree: sum over all samples.
    time: Vec<u128>,
    /// By degree: the first sample that its groups hold.
    held: Vec<usize>,
    limit: u64,
    /// By degree: the first sample that a smaller degree can take within the limit.
    needed: Vec<u32>,
    /// By degree, then sample: the rank-time that it takes on smaller degrees.
    saved: Vec<Vec<u64>>,
    /// By degree: sum over all samples.
    savings: Vec<u128>,
    /// Samples put into groups so far, in all ways.
    pub effort: usize,
}

/// Groups with their samples, and samples that have none yet.
#[derive(Clone)]
pub struct Filled {
    /// Degree and samples of every group, from the largest.
    groups: Vec<(usize, Vec<u32>)>,
    /// The degree of the groups that share what is left.
    sharing: usize,
    /// Rank-time of what is left beyond what the ranks without a group have.
    excess: i128,
    ranks: usize,
    free: Free,
}

impl<'a> Filler<'a> {
    /// For a limit of 0. `falling`: the samples from the longest to the shortest.
    pub fn new(machine: &'a Machine, falling: &'a [u32]) -> Self {
        let sorted = |times: &Vec<u64>| falling.iter().map(|sample| times[*sample as usize]).collect();
        let held = |degree| falling.partition_point(|sample| machine.smallest[*sample as usize] > degree);
        let (needed, saved, savings) = (Vec::new(), Vec::new(), Vec::new());
        let times = machine.times.iter().map(sorted).collect();
        let time = machine.times.iter().map(|times| sum(times)).collect();
        let held = (0..machine.degrees.len()).map(held).collect();
        Self { machine, falling, times, time, held, limit: 0, needed, saved, savings, effort: 0 }
    }

    /// Looks at the samples anew.
    pub fn set_limit(&mut self, limit: u64) {
        let count = self.falling.len();
        self.limit = limit;
        self.needed.clear();
        self.saved.clear();
        let (mut least, mut saved) = (vec![u64::MAX; count], vec![u64::MAX; count]);
        for (degree, times) in self.times.iter().enumerate() {
            let size = self.machine.degrees[degree] as u64;
            let needed = saved.partition_point(|saved| *saved == u64::MAX);
            let mut all = saved.clone();
            for (saved, time) in all.iter_mut().zip(&times[..needed]) {
                *saved = (time * size).saturating_mul(NEEDED);
            }
            self.needed.push(needed as u32);
            self.saved.push(all);
            for place in self.first(degree, limit) as usize..count {
                let work = times[place] * size;
                least[place] = least[place].min(work);
                saved[place] = saved[place].min(work + lost(work, least[place], limit * size));
            }
        }
        self.savings = self.saved.iter().map(|saved| sum(saved)).collect();
    }

    /// Ways to fill groups whose sums are within the limit, from the least on.
    pub fn fill(&mut self) -> Vec<Filled> {
        let (free, ranks) = (Free::new(self.falling.len()), self.machine.ranks);
        let mut states = vec![Filled { groups: Vec::new(), sharing: 0, excess: 0, ranks, free }];
        let mut ends = Vec::new();
        for degree in (0..self.machine.degrees.len()).rev() {
            ends.extend(states.iter().filter_map(|state| self.share(state, degree)));
            if degree > 0 {
                let both = |state| [self.first_fit(state, degree), self.best_fit(state, degree)].concat();
                let mut next: Vec<Filled> = states.iter().flat_map(both).collect();
                let samples = next.iter().map(|state| state.taken().count()).max().unwrap_or(0);
                self.effort += samples * next.len();
                next.sort_by_key(|state| state.excess);
                next.truncate((SAMPLES / samples.max(1)).clamp(1, WIDTH));
                states = next;
            }
        }
        ends.sort_by_key(|end| end.excess);
        ends
    }

    /// All that is left on groups of one degree.
    fn share(&self, state: &Filled, degree: usize) -> Option<Filled> {
        if state.free.next(0).is_some_and(|longest| longest < self.first(degree, self.limit)) {
            return None;
        }
        let size = self.machine.degrees[degree];
        let taken: u128 = state.taken().map(|place| u128::from(self.times[degree][place as usize])).sum();
        let work = (self.time[degree] - taken) * size as u128;
        let room = i128::from(self.limit) * (state.ranks / size * size) as i128;
        let excess = work as i128 - room;
        (excess <= 0).then(|| Filled { sharing: degree, excess, ..state.clone() })
    }

    /// The longest sample if it needs groups of this degree; `Err` if it needs larger ones.
    fn longest(&self, free: &Free, degree: usize) -> Result<Option<u32>, ()> {
        let longest = free.next(0).filter(|place| *place < self.needed[degree]);
        if longest.is_some_and(|place| place < self.first(degree, self.limit)) {
            Err(())
        } else {
            Ok(longest)
        }
    }

    /// First fit of the samples that need the degree, and of the longest others that still fit.
    fn first_fit(&self, state: &Filled, degree: usize) -> Vec<Filled> {
        let mut state = state.clone();
        let mut groups = Groups { rooms: Rooms::new(0, 0), samples: Vec::new() };
        while let Ok(Some(place)) = self.longest(&state.free, degree) {
            if !self.put(&mut groups, &mut state.free, degree, place) {
                if !state.open(self.machine, degree) {
                    return Vec::new();
                }
                groups.open(self.limit);
            }
        }
        if self.longest(&state.free, degree).is_err() {
            return Vec::new();
        }
        // Without any, the state is the other way's.
        let mut ways = Vec::new();
        if !groups.samples.is_empty() {
            ways.push(self.fill_up(state.clone(), groups.clone(), degree));
        }
        if state.open(self.machine, degree) {
            groups.open(self.limit);
            ways.push(self.fill_up(state, groups, degree));
        }
        ways
    }

    fn put(&self, groups: &mut Groups, free: &mut Free, degree: usize, place: u32) -> bool {
        let Some(group) = groups.rooms.place(self.times[degree][place as usize]) else { return false };
        groups.samples[group].push(place);
        free.take(place);
        true
    }

    fn fill_up(&self, mut state: Filled, mut groups: Groups, degree: usize) -> Filled {
        let mut place = 0;
        while groups.rooms.most() > self.limit / FULL {
            let from = self.first(degree, groups.rooms.most()).max(place);
            let Some(next) = state.free.next(from) else { break };
            self.put(&mut groups, &mut state.free, degree, next);
            place = next + 1;
        }
        state.groups.extend(groups.samples.into_iter().map(|samples| (degree, samples)));
        self.estimate(state, degree)
    }

    /// One group after the other, each with the longest that needs the degree and with what fits best.
    fn best_fit(&self, state: &Filled, degree: usize) -> Vec<Filled> {
        let (mut state, mut ways) = (state.clone(), Vec::new());
        loop {
            let Ok(longest) = self.longest(&state.free, degree) else { return ways };
            if longest.is_none() {
                ways.push(self.estimate(state.clone(), degree));
            }
            if ways.len() > 1 || !state.open(self.machine, degree) {
                return ways;
            }
            let samples = self.fill_one(degree, &mut state.free);
            state.groups.push((degree, samples));
        }
    }

    fn fill_one(&self, degree: usize, free: &mut Free) -> Vec<u32> {
        let times = &self.times[degree];
        let (mut samples, mut left) = (Vec::new(), self.limit);
        let mut next = free.next(self.first(degree, left));
        while let Some(place) = next {
            let time = times[place as usize];
            let needed = samples.is_empty() && place < self.needed[degree];
            if !needed && time.saturating_mul(MANY) > left {
                break;
            }
            samples.push(place);
            free.take(place);
            left -= time;
            let from = if time <= left { place } else { self.first(degree, left).max(place) };
            next = free.next(from);
        }
        loop {
            let before = samples.len();
            for place in best_three(&self.candidates(degree, left, free), left).into_iter().flatten() {
                samples.push(place);
                free.take(place);
                left -= times[place as usize];
            }
            if samples.len() == before {
                return samples;
            }
        }
    }

    /// The first sample that `degree` holds and finishes within `limit`.
    fn first(&self, degree: usize, limit: u64) -> u32 {
        self.times[degree].partition_point(|time| *time > limit).max(self.held[degree]) as u32
    }

    fn candidates(&self, degree: usize, left: u64, free: &Free) -> Vec<Candidate> {
        let mut candidates = Vec::with_capacity(CANDIDATES.iter().map(|row| row.1).sum());
        let mut after = 0;
        for (shift, count) in CANDIDATES {
            let mut next = free.next(self.first(degree, left >> shift).max(after));
            for _ in 0..count {
                let Some(sample) = next else { break };
                let (time, saved) =
                    (self.times[degree][sample as usize], self.saved[degree][sample as usize]);
                candidates.push(Candidate { time, saved, sample });
                after = sample + 1;
                next = free.next(after);
            }
        }
        candidates
    }

    /// The excess if smaller degrees take what is left at its least.
    fn estimate(&self, mut state: Filled, degree: usize) -> Filled {
        let taken: u128 = state.taken().map(|place| u128::from(self.saved[degree][place as usize])).sum();
        state.excess = (self.savings[degree] - taken) as i128 - i128::from(self.limit) * state.ranks as i128;
        state
    }

    /// Chooses ranks, and balances what is left; `None` where aligned groups do not fit beside each other.
    pub fn build(&self, filled: &Filled) -> Option<Fixed> {
        let mut allocator = Allocator::new(self.machine);
        let mut fixed = Fixed { places: Vec::new(), samples: Vec::new(), loads: Vec::new() };
        let ids = |places: &[u32]| places.iter().map(|place| self.falling[*place as usize]).collect();
        for (degree, samples) in &filled.groups {
            fixed.places.push(allocator.take(*degree)?);
            fixed.samples.push(ids(samples));
            fixed.loads.push(samples.iter().map(|place| self.times[*degree][*place as usize]).sum());
        }
        let rest = filled.free.rest();
        let costs: Vec<u64> = rest.iter().map(|place| self.times[filled.sharing][*place as usize]).collect();
        let places: Vec<_> = std::iter::from_fn(|| allocator.take(filled.sharing)).collect();
        if places.is_empty() {
            return rest.is_empty().then_some(fixed);
        }
        let even = self.even(&costs, places.len());
        for items in &even.items {
            let items: Vec<u32> = items.iter().map(|item| rest[*item as usize]).collect();
            fixed.samples.push(ids(&items));
        }
        fixed.places.extend(places);
        fixed.loads.extend(even.loads);
        Some(fixed)
    }

    /// Balances what is left, within the limit if that is found.
    fn even(&self, falling: &[u64], groups: usize) -> Bins {
        let mut even = lpt(falling, groups);
        if even.makespan() > self.limit {
            refine(falling, &mut even, self.limit, SHARING);
        }
        if even.makespan() <= self.limit {
            return even;
        }
        first_fit(falling, groups, self.limit).unwrap_or(even)
    }
}

/// Groups of one degree while they are filled.
#[derive(Clone)]
struct Groups {
    rooms: Rooms,
    samples: Vec<Vec<u32>>,
}

impl Groups {
    fn open(&mut self, room: u64) {
        self.rooms.push(room);
        self.samples.push(Vec::new());
    }
}

impl Filled {
    fn taken(&self) -> impl Iterator<Item = u32> {
        self.groups.iter().flat_map(|group| &group.1).copied()
    }

    /// Takes the ranks of one more group.
    fn open(&mut self, machine: &Machine, degree: usize) -> bool {
        let left = self.ranks.checked_sub(machine.degrees[degree]);
        self.ranks = left.unwrap_or(self.ranks);
        left.is_some()
    }
}

/// A sample that has a group for most of the time leaves the rest to samples that suit the degree less: what is lost if they do
/// as this one does.
fn lost(work: u64, least: u64, room: u64) -> u64 {
    if work <= room / 2 {
        return 0;
    }
    (u128::from(room - work) * u128::from(work - least) / u128::from(work)) as u64
}

fn sum(values: &[u64]) -> u128 {
    values.iter().copied().map(u128::from).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::SequenceParallel;

    fn machine(lengths: &[u64]) -> Machine {
        let parallel = SequenceParallel {
            degrees: vec![1, 2, 4],
            bytes_per_token: 1.0,
            bandwidth: vec![(2, 1e3), (4, 1e2)],
            ranks_per_node: 2,
            rate: 1.0,
            passes: 1.0,
        };
        let samples: Vec<(u64, f64)> = lengths.iter().map(|length| (*length, *length as f64)).collect();
        Machine::grouped(8, &parallel, &samples, Some(100)).unwrap().0
    }

    #[test]
    fn long_samples_that_each_need_a_group_share_a_larger_one() {
        // On two ranks each takes more than half of what the three together take on four.
        let lengths = [132, 132, 132, 70, 70, 70, 70];
        let machine = machine(&lengths);
        let falling = machine.falling();
        let mut filler = Filler::new(&machine, &falling);
        let limit = machine.times[2][0] * 3;
        filler.set_limit(limit);
        let mut built = filler.fill().into_iter().filter_map(|way| filler.build(&way));
        let fixed = built.find(|fixed| fixed.makespan() <= limit).unwrap();
        assert_eq!(fixed.samples[0], [0, 1, 2]);
    }

    #[test]
    fn a_limit_that_the_longest_cannot_meet_has_no_way() {
        let machine = machine(&[390, 10, 10]);
        let falling = machine.falling();
        let mut filler = Filler::new(&machine, &falling);
        filler.set_limit(machine.times[2][0] - 1);
        assert!(filler.fill().is_empty());
        filler.set_limit(machine.times[2][0]);
        assert!(!filler.fill().is_empty());
    }
}
