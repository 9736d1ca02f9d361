//! Ranks in order of each of their sums, so that the lowest ones are found without looking at all.

use std::collections::BTreeSet;

/// Most phases that a problem may have.
pub const MOST_PHASES: usize = 4;

/// What a sample or a rank has in each phase.
pub type Weight = [u64; MOST_PHASES];

/// The fullest phase.
pub fn height(weight: &Weight) -> u64 {
    weight.iter().copied().max().unwrap_or(0)
}

/// By phase.
pub fn plus(a: &Weight, b: &Weight) -> Weight {
    std::array::from_fn(|phase| a[phase] + b[phase])
}

/// The loads of all ranks, in order of each phase and of all together.
pub struct Loads {
    by_rank: Vec<Weight>,
    /// By phase: load and rank.
    phases: Vec<BTreeSet<(u64, usize)>>,
    sums: BTreeSet<(u64, usize)>,
}

impl Loads {
    /// Empty ranks.
    pub fn new(ranks: usize, phases: usize) -> Self {
        let empty: BTreeSet<_> = (0..ranks).map(|rank| (0, rank)).collect();
        Self { by_rank: vec![Weight::default(); ranks], phases: vec![empty.clone(); phases], sums: empty }
    }

    /// Of one rank.
    pub fn of(&self, rank: usize) -> &Weight {
        &self.by_rank[rank]
    }

    /// Changes what a rank has.
    pub fn set(&mut self, rank: usize, load: Weight) {
        let before = std::mem::replace(&mut self.by_rank[rank], load);
        for (phase, order) in self.phases.iter_mut().enumerate().filter(|row| before[row.0] != load[row.0]) {
            order.remove(&(before[phase], rank));
            order.insert((load[phase], rank));
        }
        self.sums.remove(&(before.iter().sum(), rank));
        self.sums.insert((load.iter().sum(), rank));
    }

    /// Ranks from the lowest of a phase on.
    pub fn rising(&self, phase: usize) -> impl Iterator<Item = usize> {
        self.phases[phase].iter().map(|entry| entry.1)
    }

    /// The rank whose fullest phase is least after it takes `weight`; of equals, one with the least sum.
    pub fn lightest(&self, weight: &Weight) -> usize {
        let lowest = |phase: usize| self.phases[phase].first().map_or(0, |entry| entry.0) + weight[phase];
        let phase = (0..self.phases.len()).max_by_key(|phase| lowest(*phase)).unwrap_or(0);
        let least_sum = self.sums.first().map_or(0, |entry| entry.0);
        let mut best = (u64::MAX, u64::MAX, 0);
        for (load, rank) in &self.phases[phase] {
            let at_least = load + weight[phase];
            // From here on no rank is lower than this, and none as low has less.
            if at_least > best.0 || (at_least == best.0 && best.1 == least_sum) {
                break;
            }
            let load = &self.by_rank[*rank];
            best = best.min((height(&plus(load, weight)), load.iter().sum(), *rank));
        }
        best.2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_looking_at_all_ranks_finds() {
        base::testing::cases(500, |u| {
            let ranks = u.int_in_range(1..=9)?;
            let mut loads = Loads::new(ranks, 2);
            for _ in 0..30 {
                let weight: Weight = [u.int_in_range(0..=5)?, u.int_in_range(0..=5)?, 0, 0];
                let after = |rank: &usize| {
                    let load = loads.of(*rank);
                    (height(&plus(load, &weight)), load.iter().sum::<u64>())
                };
                let found = loads.lightest(&weight);
                assert_eq!((0..ranks).map(|rank| after(&rank)).min(), Some(after(&found)), "{weight:?}");
                let load = plus(loads.of(found), &weight);
                loads.set(found, load);
            }
            Ok(())
        });
    }
}
