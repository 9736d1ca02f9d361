//! The search for a schedule: named ones, ones made by rules, each made better, and everything where that is little.

use crate::{
    costs::Costs,
    exact::shorter,
    greedy::{Rule, greedy},
    improve::{cost, improved},
    name::Name,
    rows::Schedule,
};

/// Pipelines of at most so many actions are searched exactly.
const MOST_EXACT: u32 = 36;

/// At most so many states are looked at for that.
const MOST_STATES: usize = 2_000_000;

/// The best so many schedules are made better.
const MOST_IMPROVED: usize = 4;

/// Actions that are run to make one of them better.
const EFFORT: usize = 400_000;

/// The schedule of least time that is found within the room of each stage, never longer than a named one that fits; none where one micro-batch
/// alone takes more.
pub fn searched(costs: &Costs, micro_batches: u32) -> Option<Schedule> {
    let named = named(costs, micro_batches);
    let mut rooms = vec![costs.room.clone()];
    for schedule in &named {
        let room: Vec<i64> = schedule.rows.iter().map(|row| costs.peak(row)).collect();
        if !rooms.contains(&room) {
            rooms.push(room);
        }
    }
    let ruled =
        rooms.iter().flat_map(|room| Rule::all().filter_map(|rule| greedy(costs, micro_batches, room, rule)));
    let mut found: Vec<((i64, i64), Schedule)> = named
        .iter()
        .map(Schedule::in_halves)
        .chain(ruled)
        .filter_map(|one| Some((cost(costs, &one)?, one)))
        .collect();
    found.sort_by_key(|(cost, _)| *cost);
    found.dedup_by(|one, other| one.1 == other.1);
    found.truncate(MOST_IMPROVED);
    let better = found.into_iter().map(|(_, one)| improved(costs, one, EFFORT));
    let best = better.min_by_key(|one| cost(costs, one))?;
    if 3 * costs.placement.chunks() * micro_batches > MOST_EXACT {
        return Some(best);
    }
    let (step, _) = cost(costs, &best)?;
    Some(shorter(costs, micro_batches, step, MOST_STATES).0.unwrap_or(best))
}

/// The named schedules of these chunks that fit.
pub fn named(costs: &Costs, micro_batches: u32) -> Vec<Schedule> {
    let placement = &costs.placement;
    let chunks = placement.most();
    let of = |name: Name| {
        name.chunks(Some(chunks)).ok()?;
        let schedule = name.schedule(placement.stages, chunks, micro_batches);
        (schedule.placement == *placement && costs.fits(&schedule)).then_some(schedule)
    };
    Name::ALL.iter().filter_map(|(name, _)| of(*name)).collect()
}
