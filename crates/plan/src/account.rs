//! Where the time of a plan goes, as the simulator sees the program of one rank: by module, and by collective and what it moves.

use std::collections::BTreeMap;

use base::Result;
use cost::Machine;
use indexmap::IndexMap;
use ir::{CollectiveKind, Graph, NodeId, PartKind, RankGraph, ValueId};
use serde::Serialize;
use sim::{Factor, Interval, Observer, Programs};

use crate::{
    roles::{gradients, of_state},
    text::patterns::folded,
};

const PICOS_PER_MILLI: f64 = 1e9;

/// The operations of a module, or of all modules that differ in numbers only.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModuleTime {
    /// The path, with `*` for numbers.
    pub module: String,
    /// The part of the program.
    pub part: &'static str,
    /// Time of the operations, in milliseconds.
    pub ms: f64,
}

/// Collectives of a kind along an axis that move the same.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CollectiveTime {
    /// What they do.
    pub kind: String,
    /// Along which axis.
    pub axis: String,
    /// What they move: `parameters`, `gradients`, `new parameters`, `activations`.
    pub of: &'static str,
    /// How many there are.
    pub count: u32,
    /// Bytes of the whole tensors that they gather, reduce or hand on; of an all-to-all those of one rank.
    pub bytes: u64,
    /// Their time, in milliseconds.
    pub ms: f64,
    /// How much of it the rank waits for, in milliseconds.
    pub exposed_ms: f64,
}

/// Where the time of a step goes, most first.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Account {
    /// Operations.
    pub modules: Vec<ModuleTime>,
    /// Collectives.
    pub collectives: Vec<CollectiveTime>,
}

/// The account of the program that one rank runs.
pub fn account(graph: &RankGraph, machine: Machine<'_>) -> Result<Account> {
    let programs = Programs::new(&[graph], machine)?;
    let mut times = Times::none(graph);
    sim::observe(&programs, Factor::of(machine.cluster), &mut times)?;
    Ok(Account { modules: by_module(graph, &times), collectives: by_collective(graph, &times) })
}

/// What each node takes, by its position in program order, in picoseconds.
struct Times<'g> {
    graph: &'g Graph,
    operations: Vec<i64>,
    collectives: Vec<i64>,
    /// Waiting for the collective that starts at this position.
    exposed: Vec<i64>,
    started: BTreeMap<ValueId, usize>,
    last: usize,
}

impl<'g> Times<'g> {
    fn none(graph: &'g Graph) -> Self {
        let count = graph.order.len();
        let zeros = || vec![0; count];
        let starts = graph.order.iter().enumerate().filter(|(_, id)| graph.collective(**id).is_some());
        let started = starts.flat_map(|(at, id)| graph.nodes[*id].results().map(move |value| (value, at)));
        Self {
            graph,
            operations: zeros(),
            collectives: zeros(),
            exposed: zeros(),
            started: started.collect(),
            last: 0,
        }
    }
}

impl Observer for Times<'_> {
    fn operation(&mut self, _: usize, step: usize, interval: Interval) {
        self.operations[step] += interval.end - interval.start;
    }

    fn wait(&mut self, _: usize, step: Option<usize>, interval: Interval) {
        let waited = step.and_then(|step| {
            let value = self.graph.nodes[self.graph.order[step]].operands().next()?;
            self.started.get(&value).copied()
        });
        // What is waited for at the end is the last collective.
        self.exposed[waited.unwrap_or(self.last)] += interval.end - interval.start;
    }

    fn collective(&mut self, _: usize, step: usize, _: usize, interval: Interval) {
        self.collectives[step] += interval.end - interval.start;
        self.last = step;
    }
}

fn millis(picos: i64) -> f64 {
    picos as f64 / PICOS_PER_MILLI
}

fn by_module(graph: &Graph, times: &Times<'_>) -> Vec<ModuleTime> {
    let mut sums: IndexMap<(String, PartKind), i64> = IndexMap::new();
    for (id, time) in graph.order.iter().zip(&times.operations).filter(|(_, time)| **time > 0) {
        let module = graph.nodes[*id].module.map_or("", |module| &graph.modules[module]);
        *sums.entry((folded(module), graph.part_kind(*id))).or_default() += time;
    }
    sums.sort_by(|_, a, _, b| b.cmp(a));
    let entry = |((module, part), time): (&(String, PartKind), &i64)| ModuleTime {
        module: module.clone(),
        part: part.text(),
        ms: millis(*time),
    };
    sums.iter().map(entry).collect()
}

fn by_collective(graph: &Graph, times: &Times<'_>) -> Vec<CollectiveTime> {
    let (of_state, gradients) = (of_state(graph), gradients(graph));
    let moved = |id: NodeId| {
        let node = &graph.nodes[id];
        let gathers =
            graph.collective(id).is_some_and(|collective| collective.kind == CollectiveKind::AllGather);
        if node.operands().all(|value| of_state[value]) {
            "parameters"
        } else if gathers && graph.part_kind(id) == PartKind::Update {
            "new parameters"
        } else if node.results().all(|value| gradients[value]) {
            "gradients"
        } else {
            "activations"
        }
    };
    let mut sums: IndexMap<(String, String, &'static str), CollectiveTime> = IndexMap::new();
    for (at, id) in graph.order.iter().enumerate() {
        let Some(collective) = graph.collective(*id) else { continue };
        let (kind, axis, of) = (collective.kind.to_string(), collective.axis.to_owned(), moved(*id));
        let empty = CollectiveTime {
            kind: kind.clone(),
            axis: axis.clone(),
            of,
            count: 0,
            bytes: 0,
            ms: 0.0,
            exposed_ms: 0.0,
        };
        let sum = sums.entry((kind, axis, of)).or_insert(empty);
        sum.count += 1;
        sum.bytes += collective.bytes.0;
        sum.ms += millis(times.collectives[at]);
        sum.exposed_ms += millis(times.exposed[at]);
    }
    let mut found: Vec<CollectiveTime> = sums.into_values().collect();
    found.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    found
}
