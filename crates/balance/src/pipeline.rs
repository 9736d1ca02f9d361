//! Pipelines: besides its sum, a rank pays (stages - 1) times its largest micro-batch for filling and draining.

use std::{cmp::Reverse, collections::BinaryHeap};

use base::{Code, Diagnostic, Result};

use crate::{
    batches::{Batches, Found, even_out},
    bound::Limit,
    cost::COST_LIMIT,
    machine::Machine,
    microbatch::pack_below,
    order::falling,
    partition::Partition,
    problem::Problem,
};

/// Refuses numbers of stages for which bubbles overflow.
pub fn check(costs: &[u64], stages: u64) -> Result<()> {
    let total: u64 = costs.iter().sum();
    let fits = total.checked_mul(stages).is_some_and(|product| product <= COST_LIMIT);
    let what = || format!("`stages` is {stages}: the costs of the bubbles overflow");
    if fits { Ok(()) } else { Err(Diagnostic::new(Code::COST_OVERFLOW, what())) }
}

/// No plan is better: the rank of the largest sample pays for it `stages` times, and all ranks together pay all sums and at
/// least the one bubble of the largest sample.
pub fn bound(costs: &[u64], ranks: usize, stages: u64, (plain, limit): (u64, Limit)) -> (u64, Limit) {
    let total: u64 = costs.iter().sum();
    let largest = costs.iter().copied().max().unwrap_or(0);
    let bubbles = largest.saturating_mul(stages - 1);
    let mean = total.saturating_add(bubbles).div_ceil(ranks as u64);
    let giant = largest.saturating_mul(stages);
    let candidates = [(plain, limit), (mean, Limit::Mean), (giant, Limit::Giant)];
    candidates.into_iter().fold((0, limit), |best, next| if next.0 > best.0 { next } else { best })
}

/// The better of the plain partition and one that counts bubbles; packed so that no micro-batch exceeds the rank's largest
/// sample, which costs nothing.
pub fn solve(problem: &Problem, machine: &Machine, plain: &Partition, stages: u64) -> Found {
    let costs = &machine.times[0];
    let value = |samples: &Vec<Vec<u32>>| {
        let cost = |samples: &Vec<u32>| {
            let costs = || samples.iter().map(|sample| costs[*sample as usize]);
            costs().sum::<u64>() + (stages - 1) * costs().max().unwrap_or(0)
        };
        samples.iter().map(cost).max().unwrap_or(0)
    };
    let mut best = (value(&plain.samples), plain.samples.clone(), plain.algorithm.to_owned());
    if !problem.equal_count {
        let bubbled = with_bubbles(costs, problem.ranks, stages);
        let time = value(&bubbled);
        if time < best.0 {
            best = (time, bubbled, "lpt_with_bubbles".to_owned());
        }
    }
    let pack = |samples: &Vec<u32>| {
        let largest = samples.iter().map(|sample| costs[*sample as usize]).max().unwrap_or(0);
        pack_below(samples, machine.cap, largest, |sample| (machine.tokens[sample], costs[sample]))
    };
    let mut batches: Batches = best.1.iter().map(pack).collect();
    if problem.equal_micro_batches {
        even_out(&mut batches);
    }
    Found { batches, algorithm: best.2 }
}

/// LPT on sum plus bubbles: a rank's first sample is its largest.
fn with_bubbles(costs: &[u64], ranks: usize, stages: u64) -> Vec<Vec<u32>> {
    let (ids, sorted) = falling(costs);
    let mut samples = vec![Vec::new(); ranks];
    let mut heap: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut opened = 0;
    for (id, cost) in ids.into_iter().zip(sorted) {
        let fresh = (opened < ranks).then_some(cost.saturating_mul(stages));
        let joined = heap.peek().map(|Reverse((load, _))| load + cost);
        let open = match (fresh, joined) {
            (Some(fresh), Some(joined)) => fresh <= joined,
            (fresh, _) => fresh.is_some(),
        };
        let (load, rank) = if open {
            opened += 1;
            (cost.saturating_mul(stages), opened - 1)
        } else {
            let Reverse((load, rank)) = heap.pop().expect("a rank is open");
            (load + cost, rank)
        };
        samples[rank].push(id);
        heap.push(Reverse((load, rank)));
    }
    samples
}
