//! From a problem to a plan: one function, all modes and objectives.

use base::Result;

use crate::{
    batches::{Batches, Found, pack_all},
    bound::Limit,
    cost::Costs,
    fixed::Fixed,
    groups::{mixed, uniform},
    layout_bound,
    machine::{Machine, Place},
    microbatch::{pack, pack_below},
    nested::{Nested, nested},
    partition::{Counts, Tier, partition},
    phases, pipeline,
    plan::{Group, Layout, Plan, Unit},
    problem::{Objective, Problem},
    steps::{Step, build},
};

/// Solves a problem. Deterministic; fails on a problem that makes no sense, overflows or has a sample that fits nowhere.
pub fn solve(problem: &Problem) -> Result<Plan> {
    problem.check()?;
    if problem.lengths.len() > 1 {
        return phases::solve(problem);
    }
    match &problem.sequence_parallel {
        Some(_) => solve_groups(problem),
        None => solve_ranks(problem),
    }
}

fn solve_ranks(problem: &Problem) -> Result<Plan> {
    let Costs { values, unit } = Costs::of(&problem.costs[0], &problem.lengths[0])?;
    problem.check_room(&problem.lengths)?;
    let counts = if problem.equal_count { Counts::Equal } else { Counts::Free };
    let plain = partition(&values, problem.ranks, problem.tier, counts)?;
    let (mut bound, mut limit) = (plain.lower_bound, plain.limit);
    let algorithm = plain.algorithm.to_owned();
    let machine = || {
        let tokens = problem.lengths[0].clone();
        Machine::flat(problem.ranks, values.clone(), tokens, problem.tokens_per_rank)
    };
    let found = match problem.objective {
        Objective::Free => Found { batches: pack_all(problem, plain.samples), algorithm },
        Objective::Pipeline => {
            let stages = problem.stages.unwrap_or(1);
            pipeline::check(&values, stages)?;
            (bound, limit) = pipeline::bound(&values, problem.ranks, stages, (bound, limit));
            pipeline::solve(problem, &machine()?, &plain, stages)
        }
        Objective::Lockstep | Objective::Grouped if problem.tokens_per_rank.is_none() => {
            Found { batches: pack_all(problem, plain.samples), algorithm }
        }
        Objective::Lockstep => lockstep(problem, &machine()?, &plain.samples, bound),
        Objective::Grouped => grouped(problem, &machine()?, &plain.samples, bound),
    };
    let layout = Layout::Ranks(found.batches);
    let times = |place: usize, sample: u32| if place < problem.ranks { values[sample as usize] } else { 0 };
    let facts = (bound, limit, found.algorithm);
    Ok(Plan::new(problem, layout, Unit::Whole(unit), times, facts))
}

/// The sum over micro-steps of the slowest rank.
pub(crate) fn lockstep_duration(batches: &[Vec<Vec<u32>>], times: &[u64]) -> u64 {
    let steps = batches.iter().map(Vec::len).max().unwrap_or(0);
    let time = |rank: &Vec<Vec<u32>>, step: usize| {
        rank.get(step).map_or(0, |batch| batch.iter().map(|sample| times[*sample as usize]).sum())
    };
    (0..steps).map(|step| batches.iter().map(|rank| time(rank, step)).max().unwrap_or(0)).sum()
}

/// The best of: like durations built step by step, and a partition whose micro-batches are ranked by duration.
fn lockstep(problem: &Problem, machine: &Machine, samples: &[Vec<u32>], bound: u64) -> Found {
    let times = &machine.times[0];
    let mut ranked = ranked_batches(machine, samples);
    even_out_empty(&mut ranked);
    let fixed = Found { batches: ranked, algorithm: "partition_then_pack".to_owned() };
    if problem.equal_count {
        return fixed;
    }
    let mut stepped = steps_to_batches(&build(machine, bound), machine.ranks);
    even_out_empty(&mut stepped);
    if lockstep_duration(&stepped, times) <= lockstep_duration(&fixed.batches, times) {
        Found { batches: stepped, algorithm: "like_steps".to_owned() }
    } else {
        fixed
    }
}

/// Appends empty micro-batches: splitting would put work where other ranks do not expect it.
fn even_out_empty(batches: &mut Batches) {
    let most = batches.iter().map(Vec::len).max().unwrap_or(0);
    for rank in batches {
        rank.resize(most, Vec::new());
    }
}

fn ranked_batches(machine: &Machine, samples: &[Vec<u32>]) -> Batches {
    let times = &machine.times[0];
    let time = |batch: &Vec<u32>| batch.iter().map(|sample| times[*sample as usize]).sum::<u64>();
    let one = |samples: &Vec<u32>| {
        let mut batches = pack(samples, &machine.tokens, machine.cap);
        batches.sort_by_key(|batch| std::cmp::Reverse(time(batch)));
        batches
    };
    samples.iter().map(one).collect()
}

fn steps_to_batches(steps: &[Step], ranks: usize) -> Batches {
    let mut batches: Batches = vec![vec![Vec::new(); steps.len()]; ranks];
    for (index, step) in steps.iter().enumerate() {
        for work in step {
            batches[work.place.first_rank][index].clone_from(&work.samples);
        }
    }
    batches
}

/// The best of: one lock-step over all ranks, and one within each group after a partition over groups.
fn grouped(problem: &Problem, machine: &Machine, samples: &[Vec<u32>], bound: u64) -> Found {
    let size = problem.shard_group.unwrap_or(problem.ranks);
    let times = &machine.times[0];
    let all = lockstep(problem, machine, samples, bound);
    let duration = |found: &Found| {
        found.batches.chunks(size).map(|group| lockstep_duration(group, times)).max().unwrap_or(0)
    };
    if problem.equal_count || size == problem.ranks {
        return all;
    }
    let split = partition(times, problem.ranks / size, Tier::Auto, Counts::Free);
    let split = split.expect("the same costs were partitioned before");
    let mut batches = Vec::with_capacity(problem.ranks);
    for ids in &split.samples {
        let (part, part_bound) = sub_machine(machine, ids, size);
        let inside = partition(&part.times[0], size, Tier::Auto, Counts::Free);
        let inside = inside.expect("a part of costs that were partitioned before");
        let found = lockstep(problem, &part, &inside.samples, part_bound);
        let rename = |batch: Vec<u32>| batch.into_iter().map(|sample| ids[sample as usize]).collect();
        batches
            .extend(found.batches.into_iter().map(|rank| rank.into_iter().map(rename).collect::<Vec<_>>()));
    }
    let nested = Found { batches, algorithm: "groups_then_like_steps".to_owned() };
    let mut best = if duration(&nested) <= duration(&all) { nested } else { all };
    even_out_empty(&mut best.batches);
    best
}

/// Some of the samples on some of the ranks.
fn sub_machine(machine: &Machine, ids: &[u32], ranks: usize) -> (Machine, u64) {
    let of = |values: &[u64]| ids.iter().map(|id| values[*id as usize]).collect::<Vec<u64>>();
    let part = Machine {
        ranks,
        ranks_per_node: machine.ranks_per_node.min(ranks),
        degrees: machine.degrees.clone(),
        times: machine.times.iter().map(|times| of(times)).collect(),
        tokens: of(&machine.tokens),
        cap: machine.cap,
        smallest: ids.iter().map(|id| machine.smallest[*id as usize]).collect(),
    };
    let bound = if ids.is_empty() { 0 } else { part.timed_bound().0 };
    (part, bound)
}

fn solve_groups(problem: &Problem) -> Result<Plan> {
    let parallel = problem.sequence_parallel.as_ref().expect("the caller has looked");
    let lengths = &problem.lengths[0];
    let operations = |length: &u64| problem.costs[0].at(*length).map_or(f64::INFINITY, |cost| cost as f64);
    let samples: Vec<(u64, f64)> = lengths.iter().map(|length| (*length, operations(length))).collect();
    let (machine, unit) = Machine::grouped(problem.ranks, parallel, &samples, problem.tokens_per_rank)?;
    let (mut bound, mut limit) = machine.timed_bound();
    if let Some(stages) = problem.stages.filter(|_| problem.objective == Objective::Pipeline) {
        pipeline::check(&machine.times[0], stages)?;
    }
    let (groups, algorithm) = match problem.objective {
        Objective::Free => free_groups(&machine, bound),
        Objective::Pipeline => {
            let (fixed, algorithm, tight) = mixed(&machine, bound);
            if tight > bound {
                (bound, limit) = (tight, Limit::LargeGroups);
            }
            // The group of a sample pays for it once per stage.
            let giant = machine.giant().saturating_mul(problem.stages.unwrap_or(1));
            if giant > bound {
                (bound, limit) = (giant, Limit::Giant);
            }
            (fixed_groups(&machine, &fixed, problem.objective), algorithm)
        }
        Objective::Lockstep => {
            let (groups, algorithm) = group_lockstep(&machine, bound);
            let tight = layout_bound::tighten(&machine, bound, group_duration(&machine, &groups));
            if tight > bound {
                (bound, limit) = (tight, Limit::LargeGroups);
            }
            (groups, algorithm)
        }
        Objective::Grouped => group_shards(problem, &machine, bound),
    };
    let degrees: Vec<usize> = groups.iter().map(|group| group.degree).collect();
    let times = |group: usize, sample: u32| machine.times[degrees[group]][sample as usize];
    let facts = (bound, limit, algorithm.to_owned());
    Ok(Plan::new(problem, Layout::Groups(groups.clone()), Unit::Seconds(unit), times, facts))
}

fn group_of(machine: &Machine, place: Place, micro_batches: Vec<Vec<u32>>) -> Group {
    let ranks = place.first_rank..place.first_rank + machine.degrees[place.degree];
    Group { ranks: ranks.map(|rank| rank as u32).collect(), degree: place.degree, micro_batches }
}

/// Above the mean of the least rank-time by more than this part of it, groups that stay through the step give way to others.
const KEPT: u64 = 34;

/// Groups that stay through the step, which are simpler to run; groups that split where these are better than what is kept.
fn free_groups(machine: &Machine, bound: u64) -> (Vec<Group>, &'static str) {
    let (fixed, algorithm, _) = mixed(machine, bound);
    let mean = machine.mean();
    let split =
        if fixed.makespan() > mean + mean / KEPT { nested(machine, bound, fixed.makespan()) } else { None };
    split.map_or_else(
        || (fixed_groups(machine, &fixed, Objective::Free), algorithm),
        |split| (nested_groups(machine, &split), "nested_groups"),
    )
}

/// Micro-batches of smaller groups follow those of the larger ones that have their ranks.
fn nested_groups(machine: &Machine, nested: &Nested) -> Vec<Group> {
    let mut steps = vec![0; machine.ranks];
    let one = |(place, samples): (&Place, &Vec<u32>)| {
        let batches = packed(machine, *place, samples, u64::MAX);
        let mut group = group_of(machine, *place, vec![Vec::new(); steps[place.first_rank]]);
        group.micro_batches.extend(batches);
        for rank in &group.ranks {
            steps[*rank as usize] = group.micro_batches.len();
        }
        group
    };
    nested.places.iter().zip(&nested.samples).map(one).collect()
}

/// Fixed groups with their samples packed.
fn fixed_groups(machine: &Machine, fixed: &Fixed, objective: Objective) -> Vec<Group> {
    let one = |(place, samples): (&Place, &Vec<u32>)| {
        let times = &machine.times[place.degree];
        let largest = samples.iter().map(|sample| times[*sample as usize]).max().unwrap_or(0);
        let limit = if objective == Objective::Pipeline { largest } else { u64::MAX };
        group_of(machine, *place, packed(machine, *place, samples, limit))
    };
    fixed.places.iter().zip(&fixed.samples).map(one).collect()
}

/// A group's samples as micro-batches of at most `limit` in time, from the slowest to the quickest.
fn packed(machine: &Machine, place: Place, samples: &[u32], limit: u64) -> Vec<Vec<u32>> {
    let times = &machine.times[place.degree];
    let size = |sample: usize| (machine.tokens[sample], times[sample]);
    let mut batches = pack_below(samples, machine.room(place.degree), limit, size);
    let time = |batch: &Vec<u32>| batch.iter().map(|sample| times[*sample as usize]).sum::<u64>();
    batches.sort_by_key(|batch| std::cmp::Reverse(time(batch)));
    batches
}

fn group_duration(machine: &Machine, groups: &[Group]) -> u64 {
    let steps = groups.iter().map(|group| group.micro_batches.len()).max().unwrap_or(0);
    let time = |group: &Group, step: usize| {
        let batch = group.micro_batches.get(step);
        batch.map_or(0, |batch| batch.iter().map(|s| machine.times[group.degree][*s as usize]).sum())
    };
    (0..steps).map(|step| groups.iter().map(|group| time(group, step)).max().unwrap_or(0)).sum()
}

/// The best of: steps of like durations, each with groups of its own; the mixed groups of the free objective; every uniform
/// degree.
fn group_lockstep(machine: &Machine, bound: u64) -> (Vec<Group>, &'static str) {
    let pad = |mut groups: Vec<Group>| {
        let most = groups.iter().map(|group| group.micro_batches.len()).max().unwrap_or(0);
        for group in &mut groups {
            group.micro_batches.resize(most, Vec::new());
        }
        groups
    };
    let fixed = |fixed: &Fixed| pad(fixed_groups(machine, fixed, Objective::Lockstep));
    let mut candidates = vec![(step_groups(machine, &build(machine, bound)), "like_steps")];
    candidates.push((fixed(&mixed(machine, bound).0), "mixed_degrees"));
    let uniform = (0..machine.degrees.len()).filter_map(|degree| uniform(machine, degree));
    candidates.extend(uniform.map(|groups| (fixed(&groups), "uniform_degree")));
    let best = candidates.into_iter().min_by_key(|candidate| group_duration(machine, &candidate.0));
    best.expect("there are candidates")
}

/// Groups that exist in some steps only have empty micro-batches in the others.
fn step_groups(machine: &Machine, steps: &[Step]) -> Vec<Group> {
    let mut places: Vec<Place> = steps.iter().flatten().map(|work| work.place).collect();
    places.sort_by_key(|place| (place.first_rank, place.degree));
    places.dedup();
    let mut groups: Vec<Group> =
        places.iter().map(|place| group_of(machine, *place, vec![Vec::new(); steps.len()])).collect();
    for (index, work) in steps.iter().enumerate().flat_map(|(i, step)| step.iter().map(move |work| (i, work)))
    {
        let key = (work.place.first_rank, work.place.degree);
        let group = places.binary_search_by_key(&key, |place| (place.first_rank, place.degree));
        groups[group.expect("every place was listed")].micro_batches[index].clone_from(&work.samples);
    }
    groups
}

/// Every shard group is a machine of its own; falls back to one lock-step over all ranks where the samples need larger
/// sequence-parallel groups than a shard group has ranks.
fn group_shards(problem: &Problem, machine: &Machine, bound: u64) -> (Vec<Group>, &'static str) {
    let size = problem.shard_group.unwrap_or(problem.ranks);
    let all = group_lockstep(machine, bound);
    let degrees = machine.degrees.iter().filter(|degree| **degree <= size).count();
    let fits = machine.smallest.iter().all(|smallest| *smallest < degrees);
    let aligned = size.is_multiple_of(machine.ranks_per_node) || machine.ranks_per_node.is_multiple_of(size);
    if size == problem.ranks || !fits || !aligned {
        return all;
    }
    let samples = 0..machine.tokens.len();
    let work: Vec<u64> = samples.map(|sample| machine.least_work(sample)).collect();
    let split = partition(&work, problem.ranks / size, Tier::Auto, Counts::Free);
    let split = split.expect("work adds up to less than the limit");
    let mut nested = Vec::new();
    let mut slowest = 0;
    for (shard, ids) in split.samples.iter().enumerate() {
        let (mut part, _) = sub_machine(machine, ids, size);
        part.degrees.truncate(degrees);
        part.times.truncate(degrees);
        let part_bound = part.timed_bound().0;
        let (mut groups, _) = group_lockstep(&part, part_bound);
        slowest = slowest.max(group_duration(&part, &groups));
        for group in &mut groups {
            group.ranks.iter_mut().for_each(|rank| *rank += (shard * size) as u32);
            group.micro_batches.iter_mut().flatten().for_each(|sample| *sample = ids[*sample as usize]);
        }
        nested.extend(groups);
    }
    if slowest <= group_duration(machine, &all.0) { (nested, "groups_then_like_steps") } else { all }
}
