//! Streams: which samples share a step.
//!
//! Samples are taken in windows of several steps. Within a window they are sorted by cost and cut into steps, so that the
//! samples of a step are alike and ranks can be even; the steps are then shuffled. What is composed depends on costs and
//! order alone, never on the number of ranks.
//!
//! A reserve of half a window's samples holds the most costly ones back, so that outliers of many windows meet: a step takes
//! as long as its longest sample, so several in one step cost as much as one. When a sample has waited for the maximum delay,
//! the most costly samples leave as one step; unless the overdue one is far from being one of them: then it leaves with
//! samples more like it, and the largest go on waiting for each other. The reserve holds a fixed share of every source, and
//! each window releases as many samples of a source as it takes in: the mixture of a window is that of the stream.

use std::cmp::Reverse;

use base::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use crate::random::Random;

/// How steps are composed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Samples per step, over all ranks.
    pub batch: usize,
    /// Steps per window.
    pub window: usize,
    /// Windows that an outlier may be held back; 0 turns the reserve off.
    pub delay: u32,
    /// Seed of the order of steps within a window.
    pub seed: u64,
    /// Whether the steps of a window are shuffled; otherwise they fall in cost.
    pub shuffle: bool,
}

/// A sample on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Its number in the stream or data set.
    pub id: u64,
    /// What it costs.
    pub cost: u64,
    /// Where it comes from, from 0.
    pub source: u32,
    /// Windows that it has waited.
    pub age: u32,
}

/// Composes steps from a stream; its whole state is the window's number and the reserve.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Composer {
    stream: Stream,
    window: u64,
    reserve: Vec<Sample>,
}

impl Stream {
    /// Refuses settings that make no sense.
    pub fn check(&self) -> Result<()> {
        for (name, value) in [("batch_size", self.batch), ("window", self.window)] {
            if value == 0 {
                return Err(Diagnostic::new(
                    Code::BAD_PROBLEM,
                    format!("`{name}` is 0: it must be positive"),
                ));
            }
        }
        if self.batch.checked_mul(self.window).is_none_or(|samples| samples > u32::MAX as usize) {
            let what = format!("a window of {} steps of {} samples is too large", self.window, self.batch);
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        }
        Ok(())
    }
}

impl Composer {
    /// Starts a stream.
    pub fn new(stream: Stream) -> Result<Self> {
        stream.check()?;
        Ok(Self { stream, window: 0, reserve: Vec::new() })
    }

    /// Whether it can belong to a data set of so many samples.
    pub fn fits(&self, samples: usize) -> bool {
        self.stream.check().is_ok() && self.reserve.iter().all(|sample| sample.id < samples as u64)
    }

    /// Samples that the next window takes in.
    pub fn intake(&self) -> usize {
        self.stream.batch * self.stream.window
    }

    /// Takes in the next samples of the stream and gives out the steps of a window. All windows but the last take
    /// [`intake`](Self::intake) samples. The first fills the reserve and gives out fewer steps (with a window of one step, none);
    /// the last gives out everything, its last step shorter if it does not divide.
    pub fn compose(&mut self, fresh: Vec<Sample>, last: bool) -> Vec<Vec<Sample>> {
        let first = self.window == 0;
        let shares = self.shares(&fresh, first);
        let mut all = std::mem::take(&mut self.reserve);
        for sample in &mut all {
            sample.age += 1;
        }
        all.extend(fresh);
        all.sort_by_key(|sample| (Reverse(sample.cost), sample.id));
        if !last && self.stream.delay > 0 {
            self.hold(&mut all, &shares);
        }
        let mut steps: Vec<Vec<Sample>> = all.chunks(self.stream.batch).map(<[Sample]>::to_vec).collect();
        let full = steps.iter().filter(|step| step.len() == self.stream.batch).count();
        if self.stream.shuffle {
            // A short last step stays last.
            Random::new(&[self.stream.seed, self.window]).shuffle(&mut steps[..full]);
        }
        self.window += 1;
        steps
    }

    /// How many samples of each source the reserve is to hold: as many as it held, or its share at the start.
    fn shares(&self, fresh: &[Sample], first: bool) -> Vec<usize> {
        let counted: &[Sample] = if first { fresh } else { &self.reserve };
        let sources =
            fresh.iter().chain(&self.reserve).map(|sample| sample.source as usize + 1).max().unwrap_or(0);
        let mut counts = vec![0; sources];
        for sample in counted {
            counts[sample.source as usize] += 1;
        }
        if first {
            share_out(&mut counts, self.stream.batch * (self.stream.window / 2).max(1));
        }
        counts
    }

    /// Which of the reserve's samples go now, in whole steps.
    fn due(&self, reserve: &[Sample]) -> Vec<bool> {
        let batch = self.stream.batch;
        let mut gone = vec![false; reserve.len()];
        let overdue = |index: &usize| reserve[*index].age >= self.stream.delay;
        while let Some(first) = (0..reserve.len()).find(|index| !gone[*index] && overdue(index)) {
            let waiting: Vec<usize> = (0..reserve.len()).filter(|index| !gone[*index]).collect();
            let (top, below) = waiting.split_at(batch.min(waiting.len()));
            if reserve[first].cost >= reserve[top[0]].cost / ALIKE {
                for index in top {
                    gone[*index] = true;
                }
                continue;
            }
            let due = waiting.iter().filter(|index| overdue(index));
            let rest = below.iter().filter(|index| **index > first && !overdue(index));
            due.chain(rest).take(batch).for_each(|index| gone[*index] = true);
        }
        gone
    }

    /// Moves the most costly samples to the reserve, but for whole steps that are due.
    fn hold(&mut self, all: &mut Vec<Sample>, shares: &[usize]) {
        let capacity: usize = shares.iter().sum();
        let young = |sample: &Sample| sample.age < self.stream.delay;
        let released = self.due(&all[..capacity.min(all.len())]);
        let released = |index: usize| released.get(index).copied().unwrap_or(false);
        let mut wanted = shares.to_vec();
        let mut held = vec![false; all.len()];
        for (index, sample) in all.iter().enumerate() {
            let left = &mut wanted[sample.source as usize];
            if *left > 0 && !released(index) && young(sample) {
                *left -= 1;
                held[index] = true;
            }
        }
        // Where a source has too few samples, others stand in: windows give out whole steps.
        let mut missing: usize = wanted.iter().sum();
        for index in (0..all.len()).rev() {
            if missing > 0 && !held[index] && young(&all[index]) {
                missing -= 1;
                held[index] = true;
            }
        }
        let mut index = 0;
        all.retain(|sample| {
            index += 1;
            if held[index - 1] {
                self.reserve.push(*sample);
            }
            !held[index - 1]
        });
    }
}

/// A sample that is overdue goes with the most costly ones if it costs at least this part of the first of them.
const ALIKE: u64 = 8;

/// Turns counts into shares of `total` by largest remainder; never more than there are.
fn share_out(counts: &mut [usize], total: usize) {
    let sum: usize = counts.iter().sum();
    let total = total.min(sum);
    let parts: Vec<(usize, usize)> =
        counts.iter().map(|count| (count * total / sum.max(1), count * total % sum.max(1))).collect();
    let mut left = total - parts.iter().map(|part| part.0).sum::<usize>();
    let mut order: Vec<usize> = (0..counts.len()).collect();
    order.sort_by_key(|source| (Reverse(parts[*source].1), *source));
    for source in order {
        let extra = usize::from(left > 0);
        left -= extra;
        counts[source] = parts[source].0 + extra;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(delay: u32) -> Stream {
        Stream { batch: 8, window: 4, delay, seed: 7, shuffle: true }
    }

    fn samples(from: u64, count: u64) -> Vec<Sample> {
        let cost = |id: u64| if id.is_multiple_of(50) { 5000 } else { 1 + id * 7 % 13 };
        (from..from + count)
            .map(|id| Sample { id, cost: cost(id), source: (id % 3) as u32, age: 0 })
            .collect()
    }

    /// What no composition of steps of `batch` samples can beat, over `ranks` ranks: for each number of steps, that many are as
    /// long as their longest samples (no less than every `batch`-th), and all ranks share the work of the others.
    fn stream_bound(costs: &[u64], batch: usize, ranks: u64) -> u64 {
        let mut falling = costs.to_vec();
        falling.sort_unstable_by(|a, b| b.cmp(a));
        let mut rest: u64 = falling.iter().sum();
        let (mut long, mut bound) = (0, rest / ranks);
        for step in falling.chunks(batch) {
            (long, rest) = (long + step[0], rest - step.iter().sum::<u64>());
            bound = bound.max(long + rest / ranks);
        }
        bound
    }

    #[test]
    fn outliers_that_may_wait_come_near_what_no_order_can_beat() {
        // One sample in 97 is longer, the longest by far; those of many windows have to meet.
        let mut random = crate::random::Random::new(&[5]);
        let mut costs: Vec<u64> = (1..=8192_u64)
            .map(|id| if id.is_multiple_of(97) { 80_000 + id * id / 40 } else { 900 + id % 211 })
            .collect();
        random.shuffle(&mut costs);
        let time = |delay: u32| {
            let mut composer =
                Composer::new(Stream { batch: 32, window: 8, delay, seed: 0, shuffle: true }).unwrap();
            let mut sum = 0;
            for (window, costs) in costs.chunks(256).enumerate() {
                let first = window as u64 * 256;
                let fresh =
                    (first..).zip(costs).map(|(id, cost)| Sample { id, cost: *cost, source: 0, age: 0 });
                let steps = composer.compose(fresh.collect(), window == 31);
                let step = |step: &Vec<Sample>| {
                    let costs: Vec<u64> = step.iter().map(|sample| sample.cost).collect();
                    crate::partition(&costs, 16, crate::Tier::Auto, crate::Counts::Free).unwrap().makespan()
                };
                sum += steps.iter().map(step).sum::<u64>();
            }
            sum as f64 / stream_bound(&costs, 32, 16) as f64
        };
        let told = [0, 3, 15, 31].map(time);
        assert!(told.windows(2).all(|pair| pair[1] < pair[0]), "{told:?}");
        assert!(told[0] > 5.0 && told[2] < 1.3 && told[3] < 1.05, "{told:?}");
    }

    #[test]
    fn nothing_is_lost_no_delay_exceeds_its_limit_and_mixtures_stay() {
        for delay in [0, 1, 3] {
            let mut composer = Composer::new(stream(delay)).unwrap();
            let mut seen = Vec::new();
            for window in 0..20 {
                let steps = composer.compose(samples(window * 32, 32), window == 19);
                let out: Vec<Sample> = steps.concat();
                if window > 0 && window < 19 {
                    assert_eq!(out.len(), 32);
                    for source in 0..3 {
                        let of = |samples: &[Sample]| samples.iter().filter(|s| s.source == source).count();
                        assert_eq!(of(&out), of(&samples(window * 32, 32)), "window {window}");
                    }
                }
                assert!(out.iter().all(|sample| window - sample.id / 32 <= u64::from(delay)));
                seen.extend(out.iter().map(|sample| sample.id));
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..640));
        }
    }
}
