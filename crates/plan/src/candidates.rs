//! Schedules of cut programs, by what they take at the costs of their chunks.

use schedule::{Kind, Schedule};

use crate::{axis::PICOS_PER_NANO, plan::Prediction, recompute::again_ns, tried::Cut};

/// A schedule of a cut program, by its number, and what it takes at the costs of the chunks.
pub struct Candidate<'a> {
    /// The number of the cut program.
    pub cut: usize,
    /// How the schedule is made.
    pub kind: Kind,
    /// The schedule.
    pub schedule: &'a Schedule,
    /// The time of a step, in picoseconds.
    pub step: i64,
    /// The most that a stage holds, in bytes.
    pub peak: i64,
}

/// The first of each way to put chunks on stages.
pub fn first_of_each_placement<T>(all: &[T], schedule: impl Fn(&T) -> &Schedule) -> Vec<&T> {
    let mut first: Vec<&T> = Vec::new();
    for one in all {
        if first.iter().all(|known| schedule(known).placement != schedule(one).placement) {
            first.push(one);
        }
    }
    first
}

/// What there is to simulate: what takes least at the costs of its chunks first, as many as are simulated in any case, and behind them what
/// holds least.
pub fn candidates<'a>(cuts: &[Cut], schedules: &'a [(Kind, Schedule)], most: usize) -> Vec<Candidate<'a>> {
    let of_cut = |(number, cut): (usize, &Cut)| {
        let suits = |(_, schedule): &&(Kind, Schedule)| schedule.placement == cut.costs.placement;
        let candidate = |(kind, schedule): &'a (Kind, Schedule)| {
            let run = cut.costs.run(schedule).ok()?;
            let peak = run.peaks.into_iter().max().unwrap_or(0);
            Some(Candidate { cut: number, kind: *kind, schedule, step: run.step, peak })
        };
        schedules.iter().filter(suits).filter_map(candidate).collect::<Vec<_>>()
    };
    let mut found: Vec<Candidate<'_>> = cuts.iter().enumerate().flat_map(of_cut).collect();
    found.sort_by_key(|one| (one.step, one.peak));
    let most = most.min(found.len());
    found[most..].sort_by_key(|one| (one.peak, one.step));
    found
}

/// How what was simulated last differs from the costs of its chunks.
pub struct Learned {
    /// How many times longer it takes.
    longer: f64,
    /// What its fullest stage holds beside them, in bytes.
    beside: i64,
}

impl Default for Learned {
    /// Nothing is known.
    fn default() -> Self {
        Self { longer: 1.0, beside: 0 }
    }
}

impl Learned {
    /// From what a candidate became.
    pub fn of(one: &Candidate<'_>, simulated: &Prediction) -> Self {
        let longer = (simulated.step_ns * PICOS_PER_NANO) as f64 / one.step.max(1) as f64;
        Self { longer, beside: simulated.peak_bytes as i64 - one.peak }
    }

    /// What another one is expected to take within a memory limit, in nanoseconds.
    pub fn promise(&self, one: &Candidate<'_>, limit: u64) -> i64 {
        let step_ns = ((one.step / PICOS_PER_NANO) as f64 * self.longer) as i64;
        within(step_ns, (one.peak + self.beside).max(0).unsigned_abs(), one.peak.unsigned_abs(), limit)
    }
}

/// What a pipeline is expected to take once it keeps a memory limit, in nanoseconds.
pub fn promised(simulated: &Prediction, limit: u64) -> i64 {
    within(simulated.step_ns, simulated.peak_bytes, simulated.activation_bytes, limit)
}

/// The time of a step whose fullest stage holds so much, so much of it from forward to backward.
fn within(step_ns: i64, peak: u64, activations: u64, limit: u64) -> i64 {
    step_ns + again_ns(step_ns, peak.saturating_sub(limit), activations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_keep_the_limit_promises_to_take_longer_the_more_it_is_over_it() {
        let within = |peak| within(1000, peak, 80, 100);
        assert_eq!([within(60), within(100), within(140), within(180)], [1000, 1000, 1062, 1250]);
        assert_eq!([within(1_000), within(u64::MAX)], [2000, 2000]);
    }
}
