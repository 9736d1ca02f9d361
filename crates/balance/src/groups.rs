//! Fixed groups of different sizes: long samples on many ranks, short ones on few.

use crate::{
    fill::Filler,
    fixed::Fixed,
    group_bound::tighten,
    lpt::lpt,
    machine::{Allocator, Machine, Place},
};

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

/// The best of: every uniform degree with LPT, and mixed degrees. The mixed ones bisect the makespan; see [`Filler`] for how
/// groups of different sizes are filled within a candidate. Returns a lower bound for fixed groups as well, `bound` or better.
pub fn mixed(machine: &Machine, bound: u64) -> (Fixed, &'static str, u64) {
    let uniform = (0..machine.degrees.len()).filter_map(|degree| uniform(machine, degree));
    let best = uniform.min_by_key(Fixed::makespan);
    let best = best.expect("the largest degree holds every sample and has at least one group");
    let falling = machine.falling();
    let mut search = Search { filler: Filler::new(machine, &falling), best, algorithm: "uniform_degree" };
    search.bisect(bound);
    let bound = tighten(machine, bound, search.best.makespan());
    search.narrow(bound);
    (search.best, search.algorithm, bound)
}

/// Rounds of the bisection; it mostly ends earlier.
const ROUNDS: usize = 24;
/// Samples put into groups after which the search ends.
const EFFORT: usize = 1 << 21;
/// Ways to fill groups that are built for one limit.
const BUILT: usize = 3;

struct Search<'a> {
    filler: Filler<'a>,
    best: Fixed,
    algorithm: &'static str,
}

impl Search<'_> {
    fn bisect(&mut self, bound: u64) {
        let (mut low, mut high) = (bound, self.best.makespan());
        // A start near the bound: the answer mostly is.
        let mut candidate = bound + bound / 64;
        for _ in 0..ROUNDS {
            if high <= bound + bound / 10_000 || low + bound / 1000 >= high {
                break;
            }
            candidate = candidate.clamp(low, high);
            match self.attempt(candidate) {
                Some(makespan) => high = makespan,
                None => low = candidate + 1,
            }
            candidate = low + high.saturating_sub(low) / 2;
        }
    }

    /// A limit may be met though a higher one was not: tries a part of what is above the bound, then less and less of it.
    fn narrow(&mut self, bound: u64) {
        let above = |search: &Self| search.best.makespan().saturating_sub(bound);
        let mut step = above(self) / 2;
        while step > bound / 20_000 && self.filler.effort < EFFORT {
            let found = self.attempt(self.best.makespan() - step).is_some();
            step = if found { step.min(above(self) / 2) } else { step / 2 };
        }
    }

    /// Whether there is a plan within `limit`, and its makespan; keeps what is best.
    fn attempt(&mut self, limit: u64) -> Option<u64> {
        self.filler.set_limit(limit);
        let ways = self.filler.fill().into_iter().take(BUILT);
        for way in ways {
            let Some(fixed) = self.filler.build(&way) else { continue };
            let makespan = fixed.makespan();
            if makespan < self.best.makespan() {
                (self.best, self.algorithm) = (fixed, "mixed_degrees");
            }
            if makespan <= limit {
                return Some(makespan);
            }
        }
        None
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
