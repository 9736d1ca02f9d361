//! Fixed groups of different sizes: long samples on many ranks, short ones on few.

use crate::{
    bins::Bins,
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
/// next longest, and goes on to the next smaller degree.
pub fn mixed(machine: &Machine, bound: u64) -> (Fixed, &'static str) {
    let uniform = (0..machine.degrees.len()).filter_map(|degree| uniform(machine, degree));
    let mut best = uniform.min_by_key(Fixed::makespan).map(|fixed| (fixed, "uniform_degree"));
    let falling = machine.falling();
    let largest = "the largest degree holds every sample and has at least one group";
    let (mut low, mut high) = (bound, best.as_ref().expect(largest).0.makespan());
    let mut attempt = |candidate: u64| {
        let fixed = fit(machine, &falling, candidate)?;
        let makespan = fixed.makespan();
        if best.as_ref().is_none_or(|best| makespan < best.0.makespan()) {
            best = Some((fixed, "mixed_degrees"));
        }
        Some(makespan.min(candidate))
    };
    // A start near the bound: the answer mostly is.
    let mut candidate = bound + bound / 64;
    for _ in 0..ROUNDS {
        if high <= bound + bound / 1000 || low + bound / 2000 >= high {
            break;
        }
        candidate = candidate.clamp(low, high);
        match attempt(candidate) {
            Some(makespan) => high = makespan,
            None => low = candidate + 1,
        }
        candidate = low + high.saturating_sub(low) / 2;
    }
    // The greedy rule may succeed again below a makespan at which it failed.
    let gap = high - bound;
    for part in (1..PROBES).filter(|_| gap > bound / 100) {
        attempt(bound + gap / PROBES * part);
    }
    best.expect(largest)
}

const ROUNDS: usize = 14;
const PROBES: u64 = 12;

/// Groups and samples such that no group exceeds `limit`, if the greedy rule finds them.
fn fit(machine: &Machine, falling: &[u32], limit: u64) -> Option<Fixed> {
    let mut fixed = Fixed { places: Vec::new(), samples: Vec::new(), loads: Vec::new() };
    let mut allocator = Allocator::new(machine);
    let mut remaining = falling.to_vec();
    for degree in (0..machine.degrees.len()).rev() {
        if remaining.is_empty() {
            break;
        }
        let smallest = degree == 0;
        let times = &machine.times[degree];
        let needs = |sample: &u32| smallest || needs_degree(machine, *sample as usize, degree, limit);
        if remaining.iter().any(|sample| times[*sample as usize] > limit && needs(sample)) {
            return None;
        }
        let (taken, mut bins) = pack(&remaining, times, limit, needs, || allocator.take(degree))?;
        let mut rest = || if smallest { allocator.take(degree) } else { None };
        while let Some(place) = rest() {
            bins.0.push(place);
            bins.1.loads.push(0);
            bins.1.items.push(Vec::new());
        }
        keep(&mut fixed, times, &taken, bins, limit);
        let mut gone = vec![false; machine.tokens.len()];
        for sample in &taken {
            gone[*sample as usize] = true;
        }
        remaining.retain(|sample| !gone[*sample as usize]);
    }
    remaining.is_empty().then_some(fixed)
}

/// Whether no smaller degree can take the sample within `limit`.
fn needs_degree(machine: &Machine, sample: usize, degree: usize, limit: u64) -> bool {
    let smaller = machine.smallest[sample]..degree;
    smaller.into_iter().all(|smaller| machine.times[smaller][sample] > limit)
}

type Packed = (Vec<u32>, (Vec<Place>, Bins));

/// First-fit of what needs these groups, opening groups as it must, then of whatever else fits. Items of the bins are
/// positions in the list of taken samples.
fn pack(
    remaining: &[u32],
    times: &[u64],
    limit: u64,
    needs: impl Fn(&u32) -> bool,
    mut open: impl FnMut() -> Option<Place>,
) -> Option<Packed> {
    let mut places = Vec::new();
    let mut bins = Bins { loads: Vec::new(), items: Vec::new() };
    let mut taken = Vec::new();
    let mut tree = RoomTree::new();
    let (must, may): (Vec<u32>, Vec<u32>) = remaining.iter().partition(|sample| needs(sample));
    for (sample, obliged) in must.iter().map(|s| (*s, true)).chain(may.iter().map(|s| (*s, false))) {
        let time = times[sample as usize];
        let mut bin = tree.first(time);
        if bin.is_none() && obliged {
            places.push(open()?);
            bins.loads.push(0);
            bins.items.push(Vec::new());
            tree.push(limit);
            bin = Some(places.len() - 1);
        }
        let Some(bin) = bin else { continue };
        tree.use_room(bin, time);
        bins.push(bin, taken.len() as u32, time);
        taken.push(sample);
    }
    Some((taken, (places, bins)))
}

/// Balances the samples of one degree over its groups, and keeps the better of that and the first fit.
fn keep(fixed: &mut Fixed, times: &[u64], taken: &[u32], (places, bins): (Vec<Place>, Bins), limit: u64) {
    if places.is_empty() {
        return;
    }
    let costs: Vec<u64> = taken.iter().map(|sample| times[*sample as usize]).collect();
    let even = partition(&costs, places.len(), Tier::Auto, Counts::Free);
    let even = even.expect("times add up to less than the limit and there is a group");
    let (items, loads) = if even.makespan() <= limit.max(bins.makespan()) {
        (even.samples, even.loads)
    } else {
        (bins.items, bins.loads)
    };
    let ids = |items: Vec<u32>| items.into_iter().map(|item| taken[item as usize]).collect();
    fixed.samples.extend(items.into_iter().map(ids));
    fixed.loads.extend(loads);
    fixed.places.extend(places);
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
