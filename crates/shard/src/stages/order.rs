//! The order in which each stage runs its operations.

use base::{Diagnostic, Result, SecondaryMap};
use ir::{Graph, NodeId, PartId, ValueDef, ValueId};
use rustc_hash::FxHashSet;
use schedule::Schedule;

use super::{
    StageSet,
    cells::{Half, cells},
    needs::Needs,
};
use crate::draws::draws;

/// What is known of where values are made and needed.
pub struct Flow<'a> {
    /// The program of all stages.
    pub graph: &'a Graph,
    /// How many stages there are.
    pub stages: u32,
    /// Whether a stage has several chunks.
    pub has_chunks: bool,
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

/// An operation in the order of a stage.
#[derive(Clone, Copy)]
pub struct Step {
    /// The operation.
    pub id: NodeId,
    /// The part of the program that it runs in.
    pub part: PartId,
    /// Which of the stage's cells it belongs to, counted from 0.
    pub cell: usize,
}

/// What each stage runs.
pub struct Orders {
    /// The operations of each stage in their order.
    pub of: Vec<Vec<Step>>,
    /// The moment at which each of them runs, in one order of all stages.
    pub at: Vec<Vec<usize>>,
}

/// The operations of each stage in an order in which no stage ever waits for one that waits for it.
///
/// Each stage follows its schedule strictly. Where a step needs all micro-batches in the middle of forward, as batch norm does, no stage can;
/// then what can run next in the order of some stage's schedule runs.
pub fn orders(flow: &Flow<'_>, schedule: &Schedule) -> Result<Orders> {
    let graph = flow.graph;
    let random: Vec<NodeId> = graph.order.iter().copied().filter(|id| draws(graph, *id)).collect();
    let random = Random { order: random.clone(), all: random.into_iter().collect() };
    let mut waiting: Vec<Vec<Step>> =
        (0..flow.stages).map(|stage| Scheduled::of(flow, schedule, stage, &random)).collect();
    let mut done: Vec<Vec<Step>> = waiting.iter().map(|all| Vec::with_capacity(all.len())).collect();
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
            while let Some(step) = waiting[own].get(next[own]).copied() {
                if graph.nodes[step.id].operands().any(|value| !there[value].has(stage)) {
                    break;
                }
                run(flow, step.id, stage, &mut there);
                done[own].push(step);
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
                // Numbers are drawn in their order.
                let mut may_draw = true;
                let ready = |step: &Step| {
                    let waits = random.all.contains(&step.id) && !std::mem::take(&mut may_draw);
                    !waits && graph.nodes[step.id].operands().all(|value| there[value].has(stage))
                };
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

/// What draws random numbers, in the order of the program: each device draws what one does.
struct Random {
    order: Vec<NodeId>,
    all: FxHashSet<NodeId>,
}

/// The operations of a stage as they are put in the order of a schedule.
struct Scheduled<'a> {
    flow: &'a Flow<'a>,
    stage: u32,
    random: &'a Random,
    /// How many of what draws are in the order.
    drawn: usize,
    done: SecondaryMap<NodeId, bool>,
    steps: Vec<Step>,
}

impl<'a> Scheduled<'a> {
    /// Each cell's operations in the order of the program; what no chunk of the stage has right before it is used first.
    fn of(flow: &'a Flow<'a>, schedule: &Schedule, stage: u32, random: &'a Random) -> Vec<Step> {
        let graph = flow.graph;
        let mut made = Self {
            flow,
            stage,
            random,
            drawn: 0,
            done: SecondaryMap::with_default(false),
            steps: Vec::new(),
        };
        let here = |id: &NodeId| flow.needs.runs[*id].has(stage);
        let chunk_here = |id: NodeId| {
            flow.needs.chunks[id].filter(|chunk| schedule.placement.stage_of[*chunk as usize] == stage)
        };
        let mut of_part: SecondaryMap<PartId, Vec<(NodeId, u32)>> = SecondaryMap::default();
        for id in graph.order.iter().copied().filter(here) {
            if let Some(chunk) = chunk_here(id).filter(|_| !random.all.contains(&id)) {
                of_part[graph.nodes[id].part].push((id, chunk));
            }
        }
        let cells = cells(graph, schedule, stage);
        let is_split = cells.iter().any(|cell| cell.half != Half::Both);
        let needed = if is_split { needed_elsewhere(flow, stage) } else { FxHashSet::default() };
        for (number, cell) in cells.iter().enumerate() {
            for (id, chunk) in &of_part[cell.part] {
                let is_of_half = match cell.half {
                    Half::Both => true,
                    Half::Needed => needed.contains(id),
                    Half::Rest => !needed.contains(id),
                };
                if is_of_half && cell.chunk.is_none_or(|one| one == *chunk) {
                    made.add(*id, cell.part, number);
                }
            }
        }
        let rest: Vec<NodeId> = graph.order.iter().copied().filter(here).collect();
        for id in rest {
            made.add(id, graph.nodes[id].part, cells.len());
        }
        made.steps
    }

    /// Adds an operation, and before it what it reads of this stage's.
    fn add(&mut self, id: NodeId, part: PartId, cell: usize) {
        let graph = self.flow.graph;
        let mut todo = vec![(id, false)];
        while let Some((id, is_ready)) = todo.pop() {
            if self.done[id] {
                continue;
            }
            if is_ready {
                self.done[id] = true;
                self.steps.push(Step { id, part, cell });
                continue;
            }
            todo.push((id, true));
            let node = &graph.nodes[id];
            let makers = node.operands().filter_map(|value| graph.maker(value));
            let open =
                makers.filter(|maker| self.flow.needs.runs[*maker].has(self.stage) && !self.done[*maker]);
            let start = todo.len();
            todo.extend(open.map(|maker| (maker, false)));
            todo[start..].reverse();
            if !self.random.all.contains(&id) {
                continue;
            }
            let open = &self.random.order[self.drawn..];
            if let Some(ahead) = open.iter().position(|one| *one == id) {
                let before = &open[..ahead];
                todo.extend(before.iter().rev().map(|one| (*one, false)));
                self.drawn += ahead + 1;
            }
        }
    }
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
            if let Some(maker) = graph.maker(value)
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
