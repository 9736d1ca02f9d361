//! The order in which each stage runs its operations.

use base::{Diagnostic, Result, SecondaryMap};
use ir::{Graph, NodeId, PartId, ValueDef, ValueId};
use rustc_hash::FxHashSet;

use super::{
    Schedule, StageSet,
    needs::Needs,
    schedule::{Cell, Half},
};

/// What is known of where values are made and needed.
pub struct Flow<'a> {
    /// The program of all stages.
    pub graph: &'a Graph,
    /// How many stages there are.
    pub stages: u32,
    /// What runs and is needed where.
    pub needs: Needs,
    /// The stages that each input is on.
    pub held: SecondaryMap<ValueId, StageSet>,
}

impl Flow<'_> {
    /// The stages that a value is made on.
    pub fn made_on(&self, value: ValueId) -> StageSet {
        match self.graph.values[value].def {
            ValueDef::Result(maker, _) => self.needs.runs[maker],
            ValueDef::Input(_) => self.held[value],
        }
    }

    /// The stages that a value is sent to.
    pub fn sent_to(&self, value: ValueId) -> StageSet {
        self.needs.needed[value].without(self.made_on(value))
    }

    /// The stage that sends a value.
    pub fn sender(&self, value: ValueId) -> Option<u32> {
        self.made_on(value).first()
    }
}

/// What each stage runs.
pub struct Orders {
    /// The operations of each stage in their order.
    pub of: Vec<Vec<NodeId>>,
    /// The moment at which each of them runs, in one order of all stages.
    pub at: Vec<Vec<usize>>,
}

/// The operations of each stage in an order in which no stage ever waits for one that waits for it.
///
/// Each stage follows its schedule strictly. Where a step needs all micro-batches in the middle of forward, as batch norm does, no stage can;
/// then what can run next in the order of some stage's schedule runs.
pub fn orders(flow: &Flow<'_>, schedule: Schedule) -> Result<Orders> {
    let graph = flow.graph;
    let mut waiting: Vec<Vec<NodeId>> =
        (0..flow.stages).map(|stage| scheduled(flow, schedule, stage)).collect();
    let mut done: Vec<Vec<NodeId>> = waiting.iter().map(|all| Vec::with_capacity(all.len())).collect();
    let mut at: Vec<Vec<usize>> = vec![Vec::new(); waiting.len()];
    let mut now = 0;
    let mut there: SecondaryMap<ValueId, StageSet> = SecondaryMap::default();
    for input in graph.inputs.values() {
        there[input.value] = flow.held[input.value].with(flow.sent_to(input.value));
    }
    let mut next = vec![0; waiting.len()];
    loop {
        let mut moved = false;
        for stage in 0..flow.stages {
            let own = stage as usize;
            while let Some(id) = waiting[own].get(next[own]).copied() {
                if graph.nodes[id].operands().any(|value| !there[value].has(stage)) {
                    break;
                }
                run(flow, id, stage, &mut there);
                done[own].push(id);
                at[own].push(now);
                (next[own], now, moved) = (next[own] + 1, now + 1, true);
            }
        }
        if next.iter().zip(&waiting).all(|(next, all)| *next == all.len()) {
            return Ok(Orders { of: done, at });
        }
        if !moved {
            let found = (0..flow.stages).find_map(|stage| {
                let rest = &waiting[stage as usize][next[stage as usize]..];
                let ready = |id: &NodeId| graph.nodes[*id].operands().all(|value| there[value].has(stage));
                rest.iter().position(ready).map(|ahead| (stage as usize, ahead))
            });
            let Some((stage, ahead)) = found else {
                return Err(Diagnostic::bug("stages wait for each other"));
            };
            let first = next[stage];
            waiting[stage][first..=first + ahead].rotate_right(1);
        }
    }
}

/// The operations of a stage in the order of a schedule.
fn scheduled(flow: &Flow<'_>, schedule: Schedule, stage: u32) -> Vec<NodeId> {
    let graph = flow.graph;
    let mut of_part: SecondaryMap<PartId, Vec<NodeId>> = SecondaryMap::default();
    for id in graph.order.iter().filter(|id| flow.needs.runs[**id].has(stage)) {
        of_part[graph.nodes[*id].part].push(*id);
    }
    let cells = schedule.cells(graph, stage, flow.stages);
    if cells.iter().all(|cell| cell.half == Half::Both) {
        return cells.into_iter().flat_map(|cell| std::mem::take(&mut of_part[cell.part])).collect();
    }
    let needed = needed_elsewhere(flow, stage);
    let of_cell = |Cell { part, half }: Cell| {
        let is_of = |id: &&NodeId| match half {
            Half::Both => true,
            Half::Needed => needed.contains(id),
            Half::Rest => !needed.contains(id),
        };
        of_part[part].iter().filter(is_of).copied().collect::<Vec<_>>()
    };
    cells.into_iter().flat_map(of_cell).collect()
}

/// The operations of a stage on which, within their part of the program, something depends that is sent to another stage.
fn needed_elsewhere(flow: &Flow<'_>, stage: u32) -> FxHashSet<NodeId> {
    let graph = flow.graph;
    let mut needed: FxHashSet<NodeId> = FxHashSet::default();
    for id in graph.order.iter().rev().filter(|id| flow.needs.runs[**id].has(stage)) {
        let node = &graph.nodes[*id];
        let is_sent = |value: ValueId| flow.sender(value) == Some(stage) && !flow.sent_to(value).is_empty();
        if !needed.contains(id) && !node.results().any(is_sent) {
            continue;
        }
        needed.insert(*id);
        for value in node.operands() {
            if let ValueDef::Result(maker, _) = graph.values[value].def
                && graph.nodes[maker].part == node.part
            {
                needed.insert(maker);
            }
        }
    }
    needed
}

/// Notes that an operation has run.
fn run(flow: &Flow<'_>, id: NodeId, stage: u32, there: &mut SecondaryMap<ValueId, StageSet>) {
    for value in flow.graph.nodes[id].results() {
        there[value] = there[value].with(StageSet::one(stage));
        if flow.sender(value) == Some(stage) {
            there[value] = there[value].with(flow.sent_to(value));
        }
    }
}
