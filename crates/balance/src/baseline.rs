//! What people do without a balancer, measured like a plan.

use base::Result;

use crate::{
    batches::{even_out, pack_all},
    cost::phase_costs,
    order::falling,
    plan::{Layout, Plan, Unit},
    problem::{Objective, Problem},
};

/// A way to split samples that looks at their lengths little or not at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Baseline {
    /// Consecutive samples to each rank, in the order of the file: what a distributed sampler without shuffling does.
    Arrival,
    /// Sorted by length, then dealt out: rank `r` takes samples `r`, `r + K`, `r + 2K`, ...
    SortedStrided,
    /// Each sample to the least loaded rank, in the order of the file.
    Greedy,
}

impl Baseline {
    /// All baselines by name.
    pub const ALL: [(Self, &'static str); 3] = [
        (Self::Arrival, "arrival order"),
        (Self::SortedStrided, "sorted, strided"),
        (Self::Greedy, "greedy"),
    ];
}

/// Splits a problem the naive way, on ranks of their own: sequence parallelism is not used, and a sample may exceed the cap
/// (it then has a micro-batch of its own). With sequence parallelism, costs are compute seconds on one rank.
pub fn naive(problem: &Problem, baseline: Baseline) -> Result<Plan> {
    let (phases, unit) = phase_costs(&problem.costs, &problem.lengths)?;
    let costs: Vec<u64> =
        (0..problem.samples()).map(|sample| phases.iter().map(|c| c[sample]).sum()).collect();
    let samples = split(&costs, problem.ranks, baseline);
    let mut batches = pack_all(problem, samples.clone());
    if matches!(problem.objective, Objective::Lockstep | Objective::Grouped) {
        even_out(&mut batches);
    }
    let unit = match &problem.sequence_parallel {
        None => Unit::Whole(unit),
        Some(parallel) => Unit::Seconds(unit as f64 * parallel.passes / parallel.rate),
    };
    let name = Baseline::ALL.iter().find(|row| row.0 == baseline).map_or("", |row| row.1);
    let time = |_: usize, sample: u32| costs[sample as usize];
    let facts = (0, crate::bound::Limit::Mean, name.to_owned());
    let mut plan = Plan::new(problem, Layout::Ranks(batches), unit, time, facts);
    if phases.len() > 1 {
        plan.set_phases(&phases, &samples);
    }
    Ok(plan)
}

fn split(costs: &[u64], ranks: usize, baseline: Baseline) -> Vec<Vec<u32>> {
    let mut samples = vec![Vec::new(); ranks];
    match baseline {
        Baseline::Arrival => {
            for id in 0..costs.len() {
                samples[id * ranks / costs.len()].push(id as u32);
            }
        }
        Baseline::SortedStrided => {
            for (index, id) in falling(costs).0.into_iter().enumerate() {
                samples[index % ranks].push(id);
            }
        }
        Baseline::Greedy => {
            let mut heap: std::collections::BinaryHeap<_> =
                (0..ranks).map(|rank| std::cmp::Reverse((0, rank))).collect();
            for (id, cost) in costs.iter().enumerate() {
                let mut top = heap.peek_mut().expect("there is at least one rank");
                let (load, rank) = top.0;
                samples[rank].push(id as u32);
                top.0 = (load + cost, rank);
            }
        }
    }
    samples
}
