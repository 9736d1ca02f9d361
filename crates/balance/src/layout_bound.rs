//! Whether lock-step could reach a sum of steps: a search over how many groups of each degree the longest step has.
//!
//! Samples need degrees that finish them within the longest step, so that their rank-time says how long that step is at least.
//! What it may take is cut into intervals, in halves where that is needed. For one interval and one choice of groups, put a
//! price on the rank-time of every degree; what fits into the time of all other steps may be done there, on any degree, at the
//! price of one. A plan spends at most what all groups and the other steps have for sale; it spends at least the sum over the
//! samples of the cheapest offer. If that sum is more, there is no such plan (weak duality; any prices will do). Where the
//! smaller degrees are not chosen yet, all their rank-time has the price of one. Prices of at most one make more groups of a
//! degree worth less, so that what a choice lacks, more groups lack as well.

use crate::{group_bound, machine::Machine};

/// The price of rank-time on the smallest degree.
const ONE: u64 = 1 << 20;
/// Samples looked at for one interval; without an answer by then, it counts as possible.
const EFFORT: usize = 1 << 19;
/// Intervals narrower than this part of the limit are not halved.
const NARROW: u64 = 1024;
/// Intervals looked at for one limit; without an answer by then, it counts as possible.
const INTERVALS: usize = 64;
/// Not on this degree: it does not hold the sample, or not within the limit.
const NEVER: u64 = u64::MAX;

/// A bound that is below what is reached by no more than this part of it is tight enough.
const NEAR: u64 = 100;

/// Raises `bound`, which holds already, as far as the duration `reached` of all steps allows.
pub fn tighten(machine: &Machine, bound: u64, reached: u64) -> u64 {
    if reached <= bound + bound / NEAR {
        return bound;
    }
    let (mut low, mut high) = (bound, reached);
    let falling = machine.falling();
    while high.saturating_sub(low) > bound / 1024 {
        let middle = low + (high - low) / 2;
        if possible(machine, &falling, middle) { high = middle } else { low = middle + 1 }
    }
    low
}

/// What the longest step takes at least where all take `limit`: within less, the samples have more rank-time than that.
fn longest_step(machine: &Machine, limit: u64) -> u64 {
    let (mut low, mut high) = (machine.giant().min(limit), limit);
    while high - low > limit / 256 {
        let middle = low + (high - low) / 2;
        if machine.work_within(middle) <= limit { high = middle } else { low = middle + 1 }
    }
    low
}

/// Whether nothing here speaks against a sum of steps of `limit`. `falling`: the samples from the longest to the shortest.
fn possible(machine: &Machine, falling: &[u32], limit: u64) -> bool {
    let mut intervals = vec![(longest_step(machine, limit), limit)];
    for _ in 0..INTERVALS {
        let Some((least, most)) = intervals.pop() else { return false };
        if group_bound::possible(machine, most, limit - least)
            && possible_between(machine, falling, limit, (least, most))
        {
            if most - least < limit / NARROW {
                return true;
            }
            let middle = least + (most - least) / 2;
            intervals.extend([(least, middle), (middle, most)]);
        }
    }
    true
}

/// Whether nothing speaks against it if the longest step takes between `least` and `most`.
fn possible_between(machine: &Machine, falling: &[u32], limit: u64, (least, most): (u64, u64)) -> bool {
    let degrees = machine.degrees.len();
    let work = |degree: usize, sample: usize| {
        let fits = machine.smallest[sample] <= degree && machine.times[degree][sample] <= most;
        if fits { machine.work(degree, sample) } else { NEVER }
    };
    let on = |degree: usize| falling.iter().map(|sample| work(degree, *sample as usize)).collect();
    let works: Vec<Vec<u64>> = (0..degrees).map(on).collect();
    let elsewhere = |sample: &u32| {
        let degrees = (0..degrees).filter(|degree| machine.times[*degree][*sample as usize] <= limit - least);
        degrees.map(|degree| work(degree, *sample as usize)).min().unwrap_or(NEVER)
    };
    let mut below = vec![falling.iter().map(elsewhere).collect::<Vec<u64>>()];
    for works in &works {
        let last = &below[below.len() - 1];
        below.push(last.iter().zip(works).map(|(a, b)| *a.min(b)).collect());
    }
    let claimed = (0..degrees).map(|degree| {
        let needs = (0..falling.len()).filter(|sample| below[degree][*sample] == NEVER);
        let work = |sample: usize| works[degree..].iter().map(|works| works[sample]).min();
        needs.filter_map(work).filter(|work| *work < NEVER).map(u128::from).sum()
    });
    let claimed = claimed.collect();
    let groups = vec![0; degrees];
    let mut search =
        Search { machine, limit, longest: (least, most), works, below, claimed, groups, effort: EFFORT };
    search.visit(degrees, machine.ranks)
}

struct Search<'a> {
    machine: &'a Machine,
    limit: u64,
    /// How long the groups stay: at least, and at most.
    longest: (u64, u64),
    /// By degree, then sample from the longest: rank-time, or [`NEVER`].
    works: Vec<Vec<u64>>,
    /// The least of all smaller degrees, and of all that finish a sample in other steps.
    below: Vec<Vec<u64>>,
    /// By degree: rank-time of the samples that need it or a larger one.
    claimed: Vec<u128>,
    /// By degree: how many groups.
    groups: Vec<usize>,
    effort: usize,
}

impl Search<'_> {
    /// Whether some numbers of groups below `degree`, on `ranks` ranks, may do.
    fn visit(&mut self, degree: usize, ranks: usize) -> bool {
        if degree <= 1 {
            return true;
        }
        let degree = degree - 1;
        let size = self.machine.degrees[degree];
        for groups in 0..=ranks / size {
            self.groups[degree] = groups;
            if self.claimed[degree] > self.rank_time(degree) {
                continue;
            }
            let Some(effort) = self.effort.checked_sub(self.works[0].len()) else { return true };
            self.effort = effort;
            let left = ranks - groups * size;
            if groups > 0 && self.too_dear(degree, left, 0) {
                continue;
            }
            if self.too_dear(degree, left, ONE) {
                if groups > 0 {
                    break;
                }
            } else if self.visit(degree, left) {
                return true;
            }
        }
        self.groups[degree] = 0;
        false
    }

    /// Within the longest step, on all groups of `degree` and more.
    fn rank_time(&self, degree: usize) -> u128 {
        let sizes = self.machine.degrees[degree..].iter().zip(&self.groups[degree..]);
        let ranks: u128 = sizes.map(|(size, groups)| (size * groups) as u128).sum();
        ranks * u128::from(self.longest.1)
    }

    /// Whether the samples take more than the chosen groups and `left` ranks in smaller ones have, by `rest`, the price in
    /// smaller ones: with 0, only those count that need the chosen ones.
    fn too_dear(&self, degree: usize, left: usize, rest: u64) -> bool {
        let prices = self.prices(degree, rest);
        let one = |sample: usize| {
            let chosen = prices.iter().map(|(degree, price)| cost(self.works[*degree][sample], *price));
            chosen.fold(cost(self.below[degree][sample], rest), u128::min)
        };
        let mut spent = 0_u128;
        for sample in 0..self.works[0].len() {
            let least = one(sample);
            if least == u128::MAX {
                return true;
            }
            spent += least;
        }
        let ranks = |degree: usize| (self.machine.degrees[degree] * self.groups[degree]) as u128;
        let chosen: u128 = prices.iter().map(|(degree, price)| ranks(*degree) * u128::from(*price)).sum();
        let all: u128 = prices.iter().map(|(degree, _)| ranks(*degree)).sum::<u128>() * u128::from(rest);
        let left = left as u128 * u128::from(rest);
        let sold = |longest: u64| chosen * u128::from(longest) + all * u128::from(self.limit - longest);
        spent > left * u128::from(self.limit) + sold(self.longest.0).max(sold(self.longest.1))
    }

    /// Degrees that have groups, with prices such that the sample at which a degree is full, filled with the longest first, is
    /// as dear there as elsewhere.
    fn prices(&self, degree: usize, rest: u64) -> Vec<(usize, u64)> {
        let chosen = (degree..self.groups.len()).rev().filter(|degree| self.groups[*degree] > 0);
        let (mut next, mut ends) = (0, Vec::new());
        for chosen in chosen {
            let room =
                (self.machine.degrees[chosen] * self.groups[chosen]) as u128 * u128::from(self.longest.1);
            let mut taken = 0_u128;
            while let Some(work) = self.works[chosen].get(next).filter(|work| **work < NEVER) {
                taken += u128::from(*work);
                if taken > room {
                    break;
                }
                next += 1;
            }
            ends.push((chosen, next));
        }
        let mut prices: Vec<(usize, u64)> = Vec::new();
        for (chosen, end) in ends.into_iter().rev() {
            let at = |degree: usize| self.works[degree].get(end).copied().unwrap_or(NEVER);
            let smaller = cost(self.below[degree].get(end).copied().unwrap_or(NEVER), rest);
            let elsewhere =
                prices.iter().map(|(degree, price)| cost(at(*degree), *price)).fold(smaller, u128::min);
            let price = elsewhere / u128::from(at(chosen).max(1));
            prices.push((chosen, price.min(u128::from(ONE)) as u64));
        }
        prices
    }
}

fn cost(work: u64, price: u64) -> u128 {
    if work == NEVER { u128::MAX } else { u128::from(work) * u128::from(price) }
}
