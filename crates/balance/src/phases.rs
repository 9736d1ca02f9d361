//! Several phases per sample (an encoder, then a language model), with a meeting of all ranks after each: the sum over phases
//! of the slowest rank counts. One assignment for all phases, or one for each where moving samples in between pays.

use base::Result;

use crate::{
    batches::even_out,
    bound::{Limit, lower_bound},
    cost::phase_costs,
    microbatch::pack_below,
    order::falling,
    plan::{Layout, Plan, Unit},
    problem::Problem,
    redispatch::redispatch,
    vector::assign,
};

/// One assignment for all phases; the better of that and a re-dispatch where the problem says what moving costs.
pub fn solve(problem: &Problem) -> Result<Plan> {
    let (phases, unit) = phase_costs(&problem.costs, &problem.lengths)?;
    problem.check_room(&problem.lengths)?;
    let bounds: Vec<_> = phases.iter().map(|costs| lower_bound(&falling(costs).1, problem.ranks)).collect();
    let lower: u64 = bounds.iter().map(|bound| bound.value).sum();
    let giant = bounds.iter().any(|bound| bound.limit != Limit::Mean);
    let each: Vec<u64> = bounds.iter().map(|bound| bound.value).collect();
    let samples = assign(&phases, problem.ranks, &each);
    let total: Vec<u64> =
        (0..problem.samples()).map(|sample| phases.iter().map(|costs| costs[sample]).sum()).collect();
    let mut batches: Vec<Vec<Vec<u32>>> = match problem.tokens_per_rank {
        None => samples.iter().map(|samples| vec![samples.clone()]).collect(),
        Some(cap) => samples.iter().map(|samples| pack_phases(problem, samples, cap)).collect(),
    };
    if problem.equal_micro_batches {
        even_out(&mut batches);
    }
    let limit = if giant { Limit::Giant } else { Limit::Mean };
    let time = |_: usize, sample: u32| total[sample as usize];
    let facts = (lower, limit, "vector_local_search".to_owned());
    let mut plan = Plan::new(problem, Layout::Ranks(batches), Unit::Whole(unit), time, facts);
    plan.set_phases(&phases, &samples);
    if let Some(price) = problem.moving {
        let moved = redispatch(problem, &phases, price, unit)?;
        if moved.makespan < plan.makespan {
            plan.redispatch(&phases, moved);
        }
    }
    Ok(plan)
}

/// Micro-batches within the cap in every phase: the larger of the phases' tokens is packed first.
fn pack_phases(problem: &Problem, samples: &[u32], cap: u64) -> Vec<Vec<u32>> {
    let tokens = |phase: usize, sample: usize| problem.lengths[phase][sample];
    if problem.lengths.len() == 2 {
        return pack_below(samples, cap, cap, |sample| (tokens(0, sample), tokens(1, sample)));
    }
    let all = |sample: usize| problem.lengths.iter().map(|phase| phase[sample]).sum();
    pack_below(samples, cap, u64::MAX, |sample| (all(sample), 0))
}
