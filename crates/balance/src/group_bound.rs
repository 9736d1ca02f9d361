//! What no plan of fixed groups can beat.
//!
//! Within a makespan a sample can only use degrees that finish it in that time: all least rank-times under that condition must
//! fit on all ranks. Besides, samples that need a degree or a larger one claim whole groups of it. What they leave over there
//! can only be filled at the efficiency of large groups, because the exchanges of shorter samples weigh more.

use std::{cmp::Ordering, collections::BinaryHeap};

use crate::machine::Machine;

/// Raises `bound`, which holds already, as far as the makespan `reached` allows.
pub fn tighten(machine: &Machine, bound: u64, reached: u64) -> u64 {
    let (mut low, mut high) = (bound, reached);
    while high.saturating_sub(low) > bound / 4096 {
        let middle = low + (high - low) / 2;
        if possible(machine, middle, 0) { high = middle } else { low = middle + 1 }
    }
    low
}

/// Whether nothing here speaks against a makespan of `limit`, within which every sample has a degree. Samples that end within
/// `others` may be done in that time instead, on groups of their own.
pub fn possible(machine: &Machine, limit: u64, others: u64) -> bool {
    let samples = 0..machine.tokens.len();
    let degrees: Vec<usize> = samples.clone().map(|sample| machine.best_degree(sample, limit)).collect();
    let least: Vec<u64> = samples.clone().map(|sample| machine.work(degrees[sample], sample)).collect();
    let total: u128 = least.iter().copied().map(u128::from).sum();
    let all = Work { machine, limit, others, least };
    let ranks = machine.ranks as u128;
    let elsewhere = all.most_moved(samples, (0, others), u128::from(others) * ranks);
    let total = total - elsewhere;
    total <= u128::from(limit) * ranks
        && (1..machine.degrees.len()).all(|degree| all.large_groups_fit(degree, total))
}

struct Work<'a> {
    machine: &'a Machine,
    limit: u64,
    others: u64,
    /// By sample: the least rank-time on a degree that finishes it within the limit.
    least: Vec<u64>,
}

impl Work<'_> {
    fn large_groups_fit(&self, degree: usize, total: u128) -> bool {
        let (machine, limit) = (self.machine, self.limit);
        let smaller = |sample: usize| {
            (machine.smallest[sample]..degree).any(|smaller| machine.times[smaller][sample] <= limit)
                || machine.times[machine.fastest(sample)][sample] <= self.others
        };
        let (rest, large): (Vec<usize>, Vec<usize>) =
            (0..self.least.len()).partition(|sample| smaller(*sample));
        if large.is_empty() {
            return true;
        }
        let claimed: u128 = large.iter().map(|sample| u128::from(self.least[*sample])).sum();
        let ranks = self.ranks_claimed(degree, &large, claimed);
        if ranks > machine.ranks as u128 {
            return false;
        }
        let left = u128::from(limit) * ranks - claimed;
        let saved = self.most_moved(rest.into_iter(), (degree, limit), left);
        total <= u128::from(limit) * (machine.ranks as u128 - ranks) + claimed + saved
    }

    /// Ranks of the groups of `degree` or more that hold `large`: enough for their rank-time, and enough for those that take
    /// more than half of the limit. Two of these do not share a group of `degree`; in a larger group each takes its share.
    fn ranks_claimed(&self, degree: usize, large: &[usize], claimed: u128) -> u128 {
        let machine = self.machine;
        let size = machine.degrees[degree] as u64;
        let share = |sample: &usize| {
            let fits = machine.smallest[*sample] <= degree && machine.times[degree][*sample] <= self.limit;
            if fits && machine.times[degree][*sample] <= self.limit / 2 {
                return 0;
            }
            let larger = (degree + 1).max(machine.smallest[*sample])..machine.degrees.len();
            let larger = larger.map(|degree| machine.work(degree, *sample));
            larger.chain(fits.then(|| size * self.limit)).min().unwrap_or(0)
        };
        let long: u128 = large.iter().map(|sample| u128::from(share(sample))).sum();
        let ranks = claimed.max(long).div_ceil(u128::from(self.limit));
        let whole = machine.degrees[degree..].iter().all(|larger| larger.is_multiple_of(size as usize));
        if whole { ranks.next_multiple_of(u128::from(size)) } else { ranks }
    }

    /// The most work that the rank-time `left` takes off these samples, on degrees from `degree` on that finish them within
    /// `limit`: the most efficient samples first.
    fn most_moved(
        &self,
        samples: impl Iterator<Item = usize>,
        (degree, limit): (usize, u64),
        mut left: u128,
    ) -> u128 {
        let machine = self.machine;
        let one = |sample: usize| {
            let degrees = degree.max(machine.smallest[sample])..machine.degrees.len();
            let quick = degrees.filter(|degree| machine.times[*degree][sample] <= limit);
            let taken = quick.map(|degree| machine.work(degree, sample)).min()?;
            Some(Move { saved: self.least[sample], taken })
        };
        let mut moves: BinaryHeap<Move> = samples.filter_map(one).collect();
        let mut saved = 0;
        while let Some(next) = moves.pop().filter(|_| left > 0) {
            let taken = u128::from(next.taken.max(1));
            saved += (u128::from(next.saved) * left.min(taken)).div_ceil(taken);
            left -= left.min(taken);
        }
        saved
    }
}

/// A sample that could go to a large group: the rank-time that it takes there, and that it would take elsewhere.
#[derive(PartialEq, Eq)]
struct Move {
    saved: u64,
    taken: u64,
}

impl Ord for Move {
    /// By efficiency.
    fn cmp(&self, other: &Self) -> Ordering {
        let efficiency = |a: &Self, b: &Self| u128::from(a.saved) * u128::from(b.taken);
        efficiency(self, other).cmp(&efficiency(other, self))
    }
}

impl PartialOrd for Move {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::SequenceParallel;

    /// The best makespan over all ways to form groups and to assign samples to them.
    fn optimum(machine: &Machine, groups: &mut Vec<(usize, u64)>, left: usize, sample: usize) -> u64 {
        if left > 0 && sample == 0 {
            let smaller = 0..=groups.last().map_or(machine.degrees.len() - 1, |group| group.0);
            let mut best = u64::MAX;
            for degree in smaller.filter(|degree| machine.degrees[*degree] <= left) {
                groups.push((degree, 0));
                best = best.min(optimum(machine, groups, left - machine.degrees[degree], 0));
                groups.pop();
            }
            return best.min(optimum(machine, groups, 0, 0));
        }
        if sample == machine.tokens.len() {
            return groups.iter().map(|group| group.1).max().unwrap_or(0);
        }
        let mut best = u64::MAX;
        for index in 0..groups.len() {
            let degree = groups[index].0;
            if machine.smallest[sample] <= degree {
                groups[index].1 += machine.times[degree][sample];
                best = best.min(optimum(machine, groups, 0, sample + 1));
                groups[index].1 -= machine.times[degree][sample];
            }
        }
        best
    }

    /// The least sum over steps, over all ways to cut the samples into steps, the first of them with some of the others.
    fn optimum_of_steps(machine: &Machine, samples: &[usize]) -> u64 {
        let Some((first, others)) = samples.split_first() else { return 0 };
        let with = |chosen: usize| {
            let (step, rest): (Vec<_>, Vec<_>) = (0..others.len()).partition(|bit| chosen >> bit & 1 == 1);
            let step: Vec<usize> = [*first].into_iter().chain(step.iter().map(|bit| others[*bit])).collect();
            let of = |values: &[u64]| step.iter().map(|sample| values[*sample]).collect::<Vec<u64>>();
            let part = Machine {
                times: machine.times.iter().map(|times| of(times)).collect(),
                tokens: of(&machine.tokens),
                smallest: step.iter().map(|sample| machine.smallest[*sample]).collect(),
                ..machine.clone()
            };
            let time = optimum(&part, &mut Vec::new(), part.ranks, 0);
            time + optimum_of_steps(machine, &rest.iter().map(|bit| others[*bit]).collect::<Vec<_>>())
        };
        (0..1 << others.len()).map(with).min().expect("there is the step of the first alone")
    }

    #[test]
    fn the_bound_holds_against_brute_force_and_is_better_than_the_simple_one() {
        let (mut better, mut more) = (0, 0);
        base::testing::cases(2000, |u| {
            let parallel = SequenceParallel {
                degrees: vec![1, 2, 4],
                bytes_per_token: f64::from(u.int_in_range(1..=3000)?),
                bandwidth: vec![(2, 1e6), (4, 2e5)],
                ranks_per_node: 2,
                rate: 1e6,
                passes: 3.0,
            };
            let lengths: Vec<u64> =
                (0..u.int_in_range(1..=5)?).map(|_| u.int_in_range(1..=400)).collect::<Result<_, _>>()?;
            let samples: Vec<(u64, f64)> =
                lengths.iter().map(|l| (*l, (200 * l + 2 * l * l) as f64)).collect();
            let cap = if u.arbitrary()? { Some(150) } else { None };
            let (machine, _) = Machine::grouped(4, &parallel, &samples, cap).unwrap();
            let best = optimum(&machine, &mut Vec::new(), 4, 0);
            let simple = machine.timed_bound().0;
            let bound = tighten(&machine, simple, 2 * best);
            assert!(simple <= bound && bound <= best, "{lengths:?}: {simple}, {bound}, {best}");
            let steps = optimum_of_steps(&machine, &(0..lengths.len()).collect::<Vec<_>>());
            let layouts = crate::layout_bound::tighten(&machine, simple, 2 * best);
            assert!(steps <= best && layouts <= steps, "{lengths:?} in steps: {layouts}, {steps}");
            more += usize::from(layouts > simple + simple / 100);
            better += usize::from(bound > simple + simple / 100);
            Ok(())
        });
        assert!(better > 20 && more > 20, "{better}, {more}");
    }
}
