//! What a run is read into: the figures alone, or a timeline.

use base::{Code, Diagnostic, Nanos, Result};
use ir::Graph;
use timeline::{
    Timeline,
    step::{self, Change, Figures, Span, StepTimeline},
};

use crate::{Factors, Group, Interval, Observer, Programs, Step, Stuck, prices::work_of, run};

const PICOS_PER_NANO: i64 = 1_000;

/// The begin and end that a timeline shows. Each is rounded by itself, so that what follows without a gap still does.
fn span(interval: Interval) -> Span {
    Span { start: Nanos(interval.start / PICOS_PER_NANO), end: Nanos(interval.end / PICOS_PER_NANO) }
}

fn duration(interval: Interval) -> Nanos {
    let span = span(interval);
    span.end - span.start
}

/// Runs the programs and tells `observer` of everything in the order of its end.
pub fn observe(programs: &Programs, factors: Factors, observer: &mut impl Observer) -> Result<()> {
    run(programs, factors, observer).map_err(|stuck| explain(&stuck))
}

/// The figures of each rank, without a timeline.
pub fn figures(programs: &Programs, factors: Factors) -> Result<Vec<Figures>> {
    let figures = vec![Figures::default(); programs.ranks.len()];
    let mut counting = Counting { programs, figures };
    observe(programs, factors, &mut counting)?;
    Ok(counting.figures)
}

struct Counting<'a> {
    programs: &'a Programs,
    figures: Vec<Figures>,
}

impl Counting<'_> {
    fn until(&mut self, rank: usize, interval: Interval) -> &mut Figures {
        let figures = &mut self.figures[rank];
        figures.step = figures.step.max(span(interval).end);
        figures
    }
}

impl Observer for Counting<'_> {
    fn operation(&mut self, rank: usize, step: usize, interval: Interval) {
        let starts = matches!(self.programs.ranks[rank].steps[step], Step::Start { .. });
        self.until(rank, interval).operation(duration(interval), starts);
    }

    fn wait(&mut self, rank: usize, step: Option<usize>, interval: Interval) {
        let of_copy =
            step.is_some_and(|step| matches!(self.programs.ranks[rank].steps[step], Step::WaitCopy(_)));
        let figures = self.until(rank, interval);
        *(if of_copy { &mut figures.exposed_copies } else { &mut figures.exposed }) += duration(interval);
    }

    fn collective(&mut self, rank: usize, _: usize, group: usize, interval: Interval) {
        let of_copy = self.programs.groups[group].copies;
        let figures = self.until(rank, interval);
        if of_copy {
            figures.copying += duration(interval);
        } else {
            figures.collective(duration(interval));
        }
    }
}

/// The timeline of ranks that are counted from `first`.
pub fn timeline(graphs: &[&Graph], first: u32, programs: &Programs, factors: Factors) -> Result<Timeline> {
    let ranks = (first..).zip(graphs).map(|(rank, graph)| StepTimeline::new(graph, rank, &work_of));
    let times = graphs.iter().map(|graph| vec![Span::default(); graph.order.len()]).collect();
    let mut drawing = Drawing { groups: &programs.groups, ranks: ranks.collect(), times };
    run(programs, factors, &mut drawing).map_err(|stuck| stuck_at(graphs, &stuck))?;
    let mut timeline = Timeline::default();
    for ((mut rank, graph), times) in drawing.ranks.into_iter().zip(graphs).zip(drawing.times) {
        let (before, changes) = memory_changes(graph, &times);
        rank.memory(before, changes);
        let (names, rank) = rank.finish(true);
        timeline.add(names, rank);
    }
    Ok(timeline)
}

/// The bytes that are there before a step, and what comes and goes while its operations run at these times: what an operation makes is
/// there from its begin, and what it is the last to read until its end.
fn memory_changes(graph: &Graph, times: &[Span]) -> (u64, Vec<Change>) {
    let held = memory::held(graph);
    let before = held.iter().filter(|held| held.from.is_none()).map(|held| held.bytes.0).sum();
    let mut changes: Vec<(usize, bool, Change)> = Vec::new();
    for (owner, held) in held.iter().enumerate() {
        let bytes = held.bytes.0 as i64;
        if let Some(from) = held.from {
            changes.push((from, false, Change { time: times[from].start, bytes, owner }));
            if let Some(to) = held.to {
                changes.push((to, true, Change { time: times[to].end, bytes: -bytes, owner }));
            }
        }
    }
    changes.sort_by_key(|(step, goes, _)| (*step, *goes));
    (before, changes.into_iter().map(|(.., change)| change).collect())
}

struct Drawing<'g> {
    groups: &'g [Group],
    ranks: Vec<StepTimeline<'g>>,
    /// When each operation of each rank has run.
    times: Vec<Vec<Span>>,
}

impl Observer for Drawing<'_> {
    fn operation(&mut self, rank: usize, step: usize, interval: Interval) {
        self.times[rank][step] = span(interval);
        self.ranks[rank].operation(step, span(interval));
    }

    fn wait(&mut self, rank: usize, step: Option<usize>, interval: Interval) {
        match step {
            Some(step) => self.operation(rank, step, interval),
            None => self.ranks[rank].other(ir::wait_operator(), span(interval)),
        }
    }

    fn collective(&mut self, rank: usize, step: usize, group: usize, interval: Interval) {
        let Group { name, size, stride, copies, .. } = &self.groups[group];
        if *copies {
            self.ranks[rank].copy(step, name, span(interval));
        } else {
            self.ranks[rank].collective(
                step,
                &step::Group { name, size: *size, stride: *stride },
                span(interval),
            );
        }
    }
}

fn explain(stuck: &Stuck) -> Box<Diagnostic> {
    let ranks: Vec<String> = stuck.0.iter().map(|(rank, _)| rank.to_string()).collect();
    Diagnostic::new(Code::BAD_GRAPH, "ranks wait for each other's collectives without end").because(format!(
        "ranks {} wait for collectives that others start only after their own waits",
        ranks.join(", ")
    ))
}

fn stuck_at(graphs: &[&Graph], stuck: &Stuck) -> Box<Diagnostic> {
    let diagnostic = explain(stuck);
    let node =
        stuck.0.first().and_then(|(rank, step)| Some((graphs[*rank], *graphs[*rank].order.get(*step)?)));
    match node.and_then(|(graph, id)| graph.place(id)) {
        Some(place) => diagnostic.at(place.clone()),
        None => diagnostic,
    }
}
