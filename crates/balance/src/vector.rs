//! Balancing several sums at once: each sample has a weight per phase, and every phase should be even.

use std::cmp::Reverse;

use crate::loads::{Loads, MOST_PHASES, Weight, height, plus};

/// A phase's bound in weights: costs are scaled so that all phases count alike.
const FULL: u64 = 1 << 24;
/// Local search ends when no rank is above this in any phase.
const TARGET: u64 = FULL + FULL / 1024;
const ROUNDS: usize = 60;
/// Partners tried for one slow rank in one round.
const PARTNERS: usize = 6;
/// Pairs of exchanges looked at before an exchange of two for two is too dear.
const DEEP: usize = 6000;

/// Sample ids by rank such that every phase is near its bound (`bounds`, by phase). Greedy on the fullest phase, then
/// exchanges between a slow rank and those that are low where it is high.
pub fn assign(phases: &[Vec<u64>], ranks: usize, bounds: &[u64]) -> Vec<Vec<u32>> {
    let weights = scale(phases, bounds);
    let mut order: Vec<u32> = (0..weights.len() as u32).collect();
    order.sort_by_key(|id| (Reverse(height(&weights[*id as usize])), *id));
    let loads = Loads::new(ranks, phases.len());
    let mut state = State { weights, loads, samples: vec![Vec::new(); ranks] };
    for id in order {
        let weight = state.weights[id as usize];
        let rank = state.loads.lightest(&weight);
        let load = plus(state.loads.of(rank), &weight);
        state.loads.set(rank, load);
        state.samples[rank].push(id);
    }
    state.search();
    state.samples
}

fn scale(phases: &[Vec<u64>], bounds: &[u64]) -> Vec<Weight> {
    let samples = phases.first().map_or(0, Vec::len);
    let mut weights = vec![[0; MOST_PHASES]; samples];
    for (phase, (costs, bound)) in phases.iter().zip(bounds).enumerate() {
        let bound = u128::from((*bound).max(1));
        for (weight, cost) in weights.iter_mut().zip(costs) {
            weight[phase] = (u128::from(*cost) * u128::from(FULL) / bound) as u64;
        }
    }
    weights
}

fn exchange(load: &Weight, out: &Weight, back: &Weight) -> Weight {
    std::array::from_fn(|phase| load[phase] + back[phase] - out[phase])
}

struct State {
    weights: Vec<Weight>,
    loads: Loads,
    samples: Vec<Vec<u32>>,
}

/// Up to two samples that leave a rank.
type Take = (Weight, [Option<u32>; 2]);

impl State {
    fn search(&mut self) {
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        for _ in 0..ROUNDS {
            order.sort_by_key(|rank| (Reverse(self.height(*rank)), *rank));
            let slow = order.iter().take_while(|rank| self.height(**rank) > TARGET).count();
            if slow == 0 {
                return;
            }
            let mut improved = false;
            for rank in order.iter().take(slow) {
                improved |= self.relieve(*rank);
            }
            if !improved {
                return;
            }
        }
    }

    /// Exchanges with the partners that are lowest in the rank's highest phase, until one helps.
    fn relieve(&mut self, high: usize) -> bool {
        let load = self.loads.of(high);
        let phase = (0..MOST_PHASES).max_by_key(|phase| load[*phase]).unwrap_or(0);
        let partners: Vec<usize> = self.loads.rising(phase).take(PARTNERS).collect();
        partners.into_iter().any(|low| low != high && self.trade(high, low))
    }

    fn height(&self, rank: usize) -> u64 {
        height(self.loads.of(rank))
    }

    /// The exchange that lowers the higher of the two most; whether there was one.
    fn trade(&mut self, high: usize, low: usize) -> bool {
        let count = |rank: usize| 1 + self.samples[rank].len();
        let pairs = |count: usize| count * count / 2;
        let deep = pairs(count(high)) * pairs(count(low)) <= DEEP;
        let (outs, backs) = (self.takes(high, deep), self.takes(low, deep));
        let (high_load, low_load) = (*self.loads.of(high), *self.loads.of(low));
        let mut best = (height(&high_load).max(height(&low_load)), None);
        for out in &outs {
            for back in &backs {
                let new_high = height(&exchange(&high_load, &out.0, &back.0));
                if new_high < best.0 {
                    let new_low = height(&exchange(&low_load, &back.0, &out.0));
                    if new_low < best.0 {
                        best = (new_high.max(new_low), Some((*out, *back)));
                    }
                }
            }
        }
        let Some((out, back)) = best.1 else { return false };
        for (rank, gone, come) in [(high, out, back), (low, back, out)] {
            let load = exchange(self.loads.of(rank), &gone.0, &come.0);
            self.loads.set(rank, load);
            self.samples[rank].retain(|sample| !gone.1.contains(&Some(*sample)));
            self.samples[rank].extend(come.1.into_iter().flatten());
        }
        true
    }

    fn takes(&self, rank: usize, deep: bool) -> Vec<Take> {
        let samples = &self.samples[rank];
        let weight = |sample: &u32| self.weights[*sample as usize];
        let mut takes = vec![([0; MOST_PHASES], [None, None])];
        for (index, sample) in samples.iter().enumerate() {
            takes.push((weight(sample), [Some(*sample), None]));
            let others = if deep { &samples[index + 1..] } else { &[] };
            takes.extend(
                others
                    .iter()
                    .map(|other| (plus(&weight(sample), &weight(other)), [Some(*sample), Some(*other)])),
            );
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_phases_are_even() {
        let phases = [vec![8, 0, 8, 0, 4, 4], vec![1, 9, 1, 9, 5, 5]];
        let samples = assign(&phases, 2, &[12, 15]);
        for costs in &phases {
            let loads: Vec<u64> =
                samples.iter().map(|samples| samples.iter().map(|id| costs[*id as usize]).sum()).collect();
            assert_eq!(loads[0], loads[1], "{samples:?}");
        }
    }
}
