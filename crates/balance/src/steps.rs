//! Lock-step: in every micro-step all ranks wait for the slowest, so a step should hold samples of like duration.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::machine::{Allocator, Machine, Place};

/// A group's work in one micro-step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Work {
    /// Who does it.
    pub place: Place,
    /// Sample ids.
    pub samples: Vec<u32>,
    /// In units.
    pub time: u64,
    tokens: u64,
}

/// One micro-step: groups that share no rank.
pub type Step = Vec<Work>;

/// The sum over the steps of the slowest group.
pub fn duration(steps: &[Step]) -> u64 {
    steps.iter().map(|step| step.iter().map(|work| work.time).max().unwrap_or(0)).sum()
}

/// The candidates for a step's time limit, in percent of its longest sample, or of the mean of what is left if that is more.
/// Below 100 the longest samples go to larger groups than suits them best.
const SLACKS: [u64; 22] =
    [100, 101, 102, 104, 106, 108, 110, 115, 120, 130, 150, 175, 200, 300, 400, 98, 96, 93, 90, 80, 70, 50];

/// Samples looked at after which no further candidate is tried for all steps.
const EFFORT: usize = 1 << 27;

/// Builds micro-steps from the longest samples to the shortest: once with the candidate for every step that gets most done in
/// its time, then with the same candidate for all, as long as that may help. Returns the best; ends early near `bound`.
pub fn build(machine: &Machine, bound: u64) -> Vec<Step> {
    let falling = machine.falling();
    let mut best = build_with(machine, &falling, &SLACKS);
    let mut effort = best.len() * SLACKS.len() * falling.len();
    for slack in SLACKS {
        if effort > EFFORT || duration(&best) <= bound + bound / NEAR {
            break;
        }
        let steps = build_with(machine, &falling, &[slack]);
        effort += steps.len() * falling.len();
        if duration(&steps) < duration(&best) {
            best = steps;
        }
    }
    best
}

/// Steps that are above the bound by less than this part of it are good enough.
const NEAR: u64 = 50;

fn build_with(machine: &Machine, falling: &[u32], slacks: &[u64]) -> Vec<Step> {
    let mut remaining = falling.to_vec();
    let mut steps = Vec::new();
    let mut work: u64 = remaining.iter().map(|sample| machine.least_work(*sample as usize)).sum();
    let mut tokens: u128 = machine.tokens.iter().copied().map(u128::from).sum();
    let mut done = vec![false; machine.tokens.len()];
    let room = u128::from(machine.cap).saturating_mul(machine.ranks as u128);
    while let Some(first) = remaining.first().map(|first| *first as usize) {
        let mean = work.div_ceil(machine.ranks as u64);
        let least_steps = tokens.div_ceil(room).max(1) as u64;
        let longest = machine.times[machine.best_degree(first, mean)][first];
        let limit = longest.max(mean.div_ceil(least_steps));
        let step = best_step(machine, &remaining, slacks.iter().map(|slack| percent(limit, *slack)));
        for sample in step.iter().flat_map(|work| &work.samples) {
            let sample = *sample as usize;
            done[sample] = true;
            work -= machine.least_work(sample);
            tokens -= u128::from(machine.tokens[sample]);
        }
        remaining.retain(|sample| !done[*sample as usize]);
        steps.push(step);
    }
    steps
}

/// The step that does most, by the least rank-time of its samples, in the time that it takes; the first of equals.
fn best_step(machine: &Machine, remaining: &[u32], limits: impl Iterator<Item = u64>) -> Step {
    let mut best: Option<(u128, u128, Step)> = None;
    for limit in limits {
        let step = fill(machine, remaining, limit);
        let samples = step.iter().flat_map(|work| &work.samples);
        let done: u128 = samples.map(|sample| u128::from(machine.least_work(*sample as usize))).sum();
        let time = step.iter().map(|work| u128::from(work.time)).max().unwrap_or(0);
        // Sums are below 2^62: the products fit.
        if best.as_ref().is_none_or(|best| done * best.1 > best.0 * time) {
            best = Some((done, time, step));
        }
    }
    best.map(|best| best.2).unwrap_or_default()
}

fn percent(value: u64, percent: u64) -> u64 {
    (u128::from(value) * u128::from(percent) / 100) as u64
}

/// Fills one step: each sample to a new group of the degree that suits it while there are ranks, then to the least loaded
/// group with time and room for it. The first sample always finds a place.
fn fill(machine: &Machine, remaining: &[u32], limit: u64) -> Step {
    let mut allocator = Allocator::new(machine);
    let mut groups: Vec<Work> = Vec::new();
    let mut heaps: Vec<BinaryHeap<Reverse<(u64, usize)>>> = vec![BinaryHeap::new(); machine.degrees.len()];
    let (mut index, mut failures) = (0, 0);
    while let Some(sample) = remaining.get(index).map(|sample| *sample as usize) {
        index += 1;
        let degree = machine.best_degree(sample, limit);
        let time = machine.times[degree][sample];
        let in_time = time <= limit || groups.is_empty();
        let place = if in_time && allocator.left > 0 { allocator.take(degree) } else { None };
        if let Some(place) = place {
            heaps[degree].push(Reverse((time, groups.len())));
            groups.push(Work { place, samples: vec![sample as u32], time, tokens: machine.tokens[sample] });
            continue;
        }
        let mut degrees = heaps.iter_mut().enumerate().skip(machine.smallest[sample]);
        let joined = degrees.any(|(degree, heap)| join(machine, &mut groups, heap, (degree, sample), limit));
        failures = if joined { 0 } else { failures + 1 };
        if failures > groups.len() && allocator.left == 0 {
            index += no_room(machine, &groups, &remaining[index..], limit);
            failures = 0;
        }
    }
    groups
}

/// How many of the first samples fit no group: those that are longer than the most room and the most time that is left.
fn no_room(machine: &Machine, groups: &[Work], remaining: &[u32], limit: u64) -> usize {
    let mut most = vec![None; machine.degrees.len()];
    for group in groups {
        let degree = group.place.degree;
        let left = (machine.room(degree) - group.tokens, limit.saturating_sub(group.time));
        let (room, time) = most[degree].unwrap_or((0, 0));
        most[degree] = Some((left.0.max(room), left.1.max(time)));
    }
    let fits = |sample: &u32| {
        let sample = *sample as usize;
        let in_degree = |(degree, most): (usize, &Option<(u64, u64)>)| {
            most.is_some_and(|(room, time)| {
                machine.tokens[sample] <= room && machine.times[degree][sample] <= time
            })
        };
        most.iter().enumerate().any(in_degree)
    };
    remaining.partition_point(|sample| !fits(sample))
}

/// Groups of one degree that are looked at for one sample.
const LOOKS: usize = 4;

fn join(
    machine: &Machine,
    groups: &mut [Work],
    heap: &mut BinaryHeap<Reverse<(u64, usize)>>,
    (degree, sample): (usize, usize),
    limit: u64,
) -> bool {
    let (time, tokens) = (machine.times[degree][sample], machine.tokens[sample]);
    let mut passed = [None; LOOKS];
    let mut joined = false;
    for slot in &mut passed {
        let Some(Reverse((load, group))) = heap.pop() else { break };
        let fits = load.saturating_add(time) <= limit;
        if fits && groups[group].tokens.saturating_add(tokens) <= machine.room(degree) {
            groups[group].samples.push(sample as u32);
            groups[group].tokens += tokens;
            groups[group].time += time;
            heap.push(Reverse((load + time, group)));
            joined = true;
            break;
        }
        *slot = Some(Reverse((load, group)));
        if !fits {
            break;
        }
    }
    heap.extend(passed.into_iter().flatten());
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_samples_share_a_step_and_short_ones_another() {
        let costs = vec![100, 1, 99, 1, 98, 1, 97, 1];
        let machine = Machine::flat(4, costs.clone(), costs, Some(100)).unwrap();
        let steps = build(&machine, 0);
        assert!(duration(&steps) <= 101, "{steps:?}");
    }

    #[test]
    fn without_a_cap_one_step_is_enough() {
        let costs = vec![5, 4, 3, 2, 1, 1];
        let machine = Machine::flat(2, costs.clone(), costs, None).unwrap();
        let steps = build(&machine, 8);
        assert_eq!((steps.len(), duration(&steps)), (1, 8));
    }
}
