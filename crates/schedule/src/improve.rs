//! A schedule made better by exchanging what stands beside each other, as long as that helps.

use crate::{costs::Costs, rows::Schedule};

/// How far an action is moved at most.
const FARTHEST: usize = 6;

/// What a schedule takes: the step, and where that is the same, when the stages end.
pub fn cost(costs: &Costs, schedule: &Schedule) -> Option<(i64, i64)> {
    let run = costs.run(schedule).ok()?;
    Some((run.step, run.spans.iter().map(|(_, end)| end).sum()))
}

/// The best schedule that moving single actions leads to, running at most so many actions.
pub fn improved(costs: &Costs, mut schedule: Schedule, mut effort: usize) -> Schedule {
    let Some(mut best) = cost(costs, &schedule) else { return schedule };
    let all: usize = schedule.rows.iter().map(Vec::len).sum();
    loop {
        let before = best;
        for stage in 0..schedule.rows.len() {
            for from in 0..schedule.rows[stage].len() {
                let to = from + 1..schedule.rows[stage].len().min(from + 1 + FARTHEST);
                for to in to {
                    for back in [false, true] {
                        if effort < all {
                            return schedule;
                        }
                        moved(&mut schedule, stage, from, to, back);
                        // What does not fit needs no run.
                        let fits = costs.peak(&schedule.rows[stage]) <= costs.room[stage];
                        effort -= if fits { all } else { schedule.rows[stage].len().min(all) };
                        match fits.then(|| cost(costs, &schedule)).flatten() {
                            Some(found) if found < best => best = found,
                            _ => moved(&mut schedule, stage, from, to, !back),
                        }
                    }
                }
            }
        }
        if best == before {
            return schedule;
        }
    }
}

/// Moves the action at `from` to `to`, or the one at `to` back.
fn moved(schedule: &mut Schedule, stage: usize, from: usize, to: usize, back: bool) {
    let span = &mut schedule.rows[stage][from..=to];
    if back { span.rotate_right(1) } else { span.rotate_left(1) }
}
