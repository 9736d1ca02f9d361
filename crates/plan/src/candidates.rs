//! Schedules of cut programs, by what they take at the costs of their chunks.

use schedule::{Kind, Schedule};

use crate::tried::Cut;

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
