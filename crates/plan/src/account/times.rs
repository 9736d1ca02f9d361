//! What each node of a rank's program takes.

use std::collections::BTreeMap;

use base::Result;
use cost::Machine;
use ir::{Graph, RankGraph, ValueId};
use sim::{Factors, Interval, Observer, Programs};

const PICOS_PER_MILLI: f64 = 1e9;

/// A time in milliseconds.
pub fn millis(picos: i64) -> f64 {
    picos as f64 / PICOS_PER_MILLI
}

/// What each node takes, by its position in program order, in picoseconds.
pub struct Times {
    /// Operations.
    pub operations: Vec<i64>,
    /// Collectives.
    pub collectives: Vec<i64>,
    /// Waiting while the collective that starts at this position runs: of its time, what nothing hides.
    pub exposed: Vec<i64>,
    /// Waiting while the collectives of the group that is waited for do not run yet.
    pub idle: i64,
}

impl Times {
    /// All operations.
    pub fn compute(&self) -> i64 {
        self.operations.iter().sum()
    }
}

/// The times of one rank that stands for all, or of one rank of each pipeline stage.
pub fn timed(programs: &[&RankGraph], machine: Machine<'_>) -> Result<Vec<Times>> {
    let run = match programs {
        [_] => Programs::new(programs, machine)?,
        _ => Programs::of_stages(programs, machine)?,
    };
    let mut watched = Watched { ranks: programs.iter().map(|graph| Watch::new(graph)).collect() };
    sim::observe(&run, Factors::of(machine.cluster), &mut watched)?;
    Ok(watched.ranks.into_iter().map(|watch| watch.times).collect())
}

/// The rank whose operations take most time, by its number; of equals the first.
pub fn busiest(ranks: &[Times]) -> Option<(usize, &Times)> {
    ranks.iter().enumerate().rev().max_by_key(|(_, times)| times.compute())
}

struct Watched<'g> {
    ranks: Vec<Watch<'g>>,
}

/// What has run on one rank so far.
struct Watch<'g> {
    graph: &'g Graph,
    times: Times,
    /// The position that starts the collective which makes a value.
    started: BTreeMap<ValueId, usize>,
    /// The collectives of each group that have run, in their order, with the positions that start them.
    ran: BTreeMap<usize, Vec<(usize, Interval)>>,
    /// The group of the collective that starts at a position, once it has run.
    group: BTreeMap<usize, usize>,
    /// The group of the collective that ended last.
    last: usize,
}

impl<'g> Watch<'g> {
    fn new(graph: &'g Graph) -> Self {
        let zeros = || vec![0; graph.order.len()];
        let starts = graph.order.iter().enumerate().filter(|(_, id)| graph.collective(**id).is_some());
        let started = starts.flat_map(|(at, id)| graph.nodes[*id].results().map(move |value| (value, at)));
        Self {
            graph,
            times: Times { operations: zeros(), collectives: zeros(), exposed: zeros(), idle: 0 },
            started: started.collect(),
            ran: BTreeMap::new(),
            group: BTreeMap::new(),
            last: 0,
        }
    }

    /// The group of the collective that the node at a position waits for; that of the last one where it is the end of the program.
    fn awaited(&self, step: Option<usize>) -> usize {
        let start = step.and_then(|step| {
            let value = self.graph.nodes[self.graph.order[step]].operands().next()?;
            self.started.get(&value)
        });
        start.and_then(|start| self.group.get(start)).copied().unwrap_or(self.last)
    }
}

impl Observer for Watched<'_> {
    fn operation(&mut self, rank: usize, step: usize, interval: Interval) {
        self.ranks[rank].times.operations[step] += interval.end - interval.start;
    }

    /// Who waits for a collective waits for those before it in its group too: each counts for the time in which it ran meanwhile.
    fn wait(&mut self, rank: usize, step: Option<usize>, interval: Interval) {
        let watch = &mut self.ranks[rank];
        let group = watch.awaited(step);
        let mut left = interval.end - interval.start;
        let ran = watch.ran.get(&group).map_or(&[][..], Vec::as_slice);
        for (start, one) in ran.iter().rev().take_while(|(_, one)| one.end > interval.start) {
            let beside = one.end.min(interval.end) - one.start.max(interval.start);
            watch.times.exposed[*start] += beside.max(0);
            left -= beside.max(0);
        }
        watch.times.idle += left;
    }

    fn collective(&mut self, rank: usize, step: usize, group: usize, interval: Interval) {
        let watch = &mut self.ranks[rank];
        watch.times.collectives[step] += interval.end - interval.start;
        watch.ran.entry(group).or_default().push((step, interval));
        watch.group.insert(step, group);
        watch.last = group;
    }
}
