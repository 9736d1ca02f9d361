//! Which operation runs on which stage, and which stage holds which state.

use std::collections::BTreeMap;

use base::{Code, Diagnostic, Result, SecondaryMap};
use ir::{Graph, InputId, ModuleId, NodeId, PartKind, PlaceId, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};
use schedule::Placement;

use super::{
    StageSet,
    needs::{Needs, is_given, is_light, is_moved},
};
use crate::draws::draws;

/// A graph whose nodes say in which chunk they are.
#[derive(Clone)]
pub struct Staged {
    /// The graph.
    pub graph: Graph,
    /// The stages that hold each input; all hold those that are not here. The first one's values count.
    pub held: BTreeMap<InputId, StageSet>,
}

/// How many operations the first forward part has: the positions at which it can be cut.
pub fn forward_end(graph: &Graph) -> usize {
    let later = graph.order.iter().position(|id| graph.part_kind(*id) != PartKind::Forward);
    later.unwrap_or(graph.order.len())
}

/// `graph` with the chunks that its nodes are in, where each of `cuts`, ascending positions in the program, begins the next chunk.
///
/// An operation of backward runs where the operation of forward runs whose gradient it computes, as far as its line and module say which that
/// is, and everything else where it takes the least sending. What only depends on what every stage is given runs wherever it is needed.
/// State that changes is held by the first stage that uses it, all other state by each that does.
pub fn staged(graph: &Graph, cuts: &[usize], placement: &Placement) -> Result<Staged> {
    let end = forward_end(graph);
    let (stages, chunks) = (placement.stages, placement.chunks());
    if cuts.len() as u32 + 1 != chunks {
        return Err(Diagnostic::bug(format!("{} cuts for {chunks} chunks", cuts.len())));
    }
    if stages.max(chunks) > StageSet::MOST {
        let message = format!("a pipeline of {stages} stages with {chunks} chunks of the program");
        let hint = format!("use at most {}", StageSet::MOST);
        return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
    }
    if !cuts.is_sorted_by(|a, b| a < b) || cuts.iter().any(|cut| *cut == 0 || *cut >= end) {
        let message = format!("stages cannot begin at {cuts:?}: the forward part has {end} operations");
        return Err(Diagnostic::new(Code::BAD_MESH, message)
            .hint("give ascending positions, each above 0 and below the number of operations"));
    }
    let updated: FxHashSet<InputId> = graph.updates.iter().map(|(input, _)| *input).collect();
    let mut assign = Assign {
        graph,
        placement,
        at: SecondaryMap::default(),
        owner: FxHashMap::default(),
        changes: SecondaryMap::with_default(false),
        anywhere: SecondaryMap::with_default(false),
        chunk: SecondaryMap::with_default(None),
        backward_of: SecondaryMap::with_default(None),
        waits: SecondaryMap::with_default(false),
        by_origin: FxHashMap::default(),
    };
    for (id, input) in graph.inputs.iter() {
        let changes = updated.contains(&id) && !is_given(input.class);
        assign.changes[input.value] = changes;
        assign.anywhere[input.value] = !changes;
        assign.at[input.value] = if changes { StageSet::default() } else { StageSet::all(stages) };
    }
    for (position, id) in graph.order.iter().enumerate() {
        if assign.is_anywhere(*id) {
            assign.place(*id, None);
        } else if assign.waits_for_user(*id) {
            assign.wait(*id);
        } else if position < end {
            let chunk = cuts.iter().filter(|cut| **cut <= position).count() as u32;
            assign.note_origin(*id, chunk);
            assign.settle(*id, chunk);
        } else {
            assign.settle(*id, assign.of_later(*id));
        }
    }
    for id in &graph.order {
        if assign.waits[*id] {
            assign.settle(*id, 0);
        }
    }
    let mut made = graph.clone();
    for id in &graph.order {
        made.nodes[*id].stage = assign.chunk[*id];
    }
    let owner = |value: ValueId| StageSet::one(assign.owner.get(&value).copied().unwrap_or(0));
    let owned = |id: InputId| {
        if assign.changes[graph.inputs[id].value] {
            owner(graph.inputs[id].value)
        } else {
            StageSet::all(stages)
        }
    };
    let needs = Needs::of(&made, placement, owned);
    let held = graph.inputs.iter().filter(|(_, input)| !is_given(input.class)).filter_map(|(id, input)| {
        let changes = assign.changes[input.value];
        let stages_of = if changes { owner(input.value) } else { needs.needed[input.value] };
        (!stages_of.is_empty() && stages_of != StageSet::all(stages)).then_some((id, stages_of))
    });
    let held = held.collect();
    Ok(Staged { graph: made, held })
}

struct Assign<'a> {
    graph: &'a Graph,
    placement: &'a Placement,
    /// Where each value is, or has been sent; of state that changes nowhere until it is used.
    at: SecondaryMap<ValueId, StageSet>,
    /// The stage that uses a value first, of state that changes: the one that holds it.
    owner: FxHashMap<ValueId, u32>,
    /// Whether a value is state that the step changes.
    changes: SecondaryMap<ValueId, bool>,
    /// Whether every stage can have a value without being sent it.
    anywhere: SecondaryMap<ValueId, bool>,
    /// The chunk of each operation; none for those that run wherever they are needed.
    chunk: SecondaryMap<NodeId, Option<u32>>,
    /// The chunk that makes a value in backward.
    backward_of: SecondaryMap<ValueId, Option<u32>>,
    /// Whether an operation waits for what uses it.
    waits: SecondaryMap<NodeId, bool>,
    /// In which chunks the operations of a module's line are in forward.
    by_origin: FxHashMap<(PlaceId, Option<ModuleId>), StageSet>,
}

impl Assign<'_> {
    /// Notes in which chunk a line of a module is in forward.
    fn note_origin(&mut self, id: NodeId, chunk: u32) {
        let node = &self.graph.nodes[id];
        if let Some(place) = node.place {
            let known = self.by_origin.entry((place, node.module)).or_default();
            *known = known.with(StageSet::one(chunk));
        }
    }

    /// The chunk of an operation behind forward.
    fn of_later(&self, id: NodeId) -> u32 {
        let node = &self.graph.nodes[id];
        if self.graph.part_kind(id) != PartKind::Update
            && let Some(known) = node.place.and_then(|place| self.by_origin.get(&(place, node.module)))
            && let Some(only) = known.first().filter(|first| *known == StageSet::one(*first))
        {
            return only;
        }
        let sent = |stage: u32| -> u64 {
            let missing = node.operands().filter(|value| {
                let at = self.at[*value];
                !at.is_empty() && !at.has(stage)
            });
            missing.map(|value| self.graph.ty(value).bytes().0).sum()
        };
        // Backward goes from the last chunk to the first: no sooner than what it reads is there, and then at once.
        let made = node.operands().filter_map(|value| self.backward_of[value]).min();
        let chunk_on = |stage: u32| {
            let mut chunks = self.placement.chunks_of(stage);
            let first = chunks.clone().next().unwrap_or(0);
            chunks.by_ref().take_while(|chunk| made.is_none_or(|made| *chunk <= made)).last().unwrap_or(first)
        };
        let late = |chunk: u32| made.map(|made| (chunk > made, made.abs_diff(chunk)));
        let chunks = (0..self.placement.stages).map(|stage| (stage, chunk_on(stage)));
        let best = chunks.min_by_key(|(stage, chunk)| (sent(*stage), late(*chunk), *stage));
        best.map_or(0, |(_, chunk)| chunk)
    }

    /// Whether an operation runs where it is used first: a view that looks at no more than it shows, and what costs nothing to speak of and
    /// reads nothing but state that no stage uses yet, such as the count of steps.
    fn waits_for_user(&self, id: NodeId) -> bool {
        if is_moved(self.graph, id) {
            return true;
        }
        let is_open = |value: ValueId| self.at[value].is_empty();
        let node = &self.graph.nodes[id];
        is_light(self.graph, id)
            && node.operands().any(is_open)
            && node.operands().all(|value| is_open(value) || self.anywhere[value])
    }

    /// Leaves an operation to what uses it: until then its results are wherever what it reads is.
    fn wait(&mut self, id: NodeId) {
        self.waits[id] = true;
        let node = &self.graph.nodes[id];
        let all = StageSet::all(self.placement.stages);
        let placed = node.operands().filter(|value| !self.at[*value].is_empty());
        let at = placed.fold(None, |set: Option<StageSet>, value| {
            let here = self.at[value];
            Some(set.map_or(here, |set| all.without(all.without(set).with(all.without(here)))))
        });
        let made = node.operands().filter_map(|value| self.backward_of[value]).min();
        for value in node.results() {
            self.at[value] = at.unwrap_or_default();
            self.backward_of[value] = made;
        }
    }

    /// Puts an operation into a chunk, and there too what has waited for it.
    fn settle(&mut self, id: NodeId, chunk: u32) {
        let mut todo = vec![id];
        while let Some(id) = todo.pop() {
            self.waits[id] = false;
            self.place(id, Some(chunk));
            for value in self.graph.nodes[id].operands() {
                if let Some(maker) = self.graph.maker(value)
                    && self.waits[maker]
                {
                    todo.push(maker);
                }
            }
        }
    }

    /// Whether an operation costs nothing to speak of and only reads what every stage has, or draws random numbers, which every stage does.
    fn is_anywhere(&self, id: NodeId) -> bool {
        let given = || self.graph.nodes[id].operands().all(|value| self.anywhere[value]);
        draws(self.graph, id) || is_light(self.graph, id) && given()
    }

    /// Notes where an operation runs.
    fn place(&mut self, id: NodeId, chunk: Option<u32>) {
        self.chunk[id] = chunk;
        let stage = chunk.map(|chunk| self.placement.stage_of[chunk as usize]);
        let node = &self.graph.nodes[id];
        let here = stage.map_or(StageSet::all(self.placement.stages), StageSet::one);
        for value in node.operands() {
            if self.at[value].is_empty() {
                self.owner.insert(value, stage.unwrap_or(0));
            }
            self.at[value] = self.at[value].with(here);
        }
        for value in node.results() {
            self.at[value] = self.at[value].with(here);
            self.anywhere[value] = stage.is_none();
            self.backward_of[value] = chunk.filter(|_| self.graph.part_kind(id) == PartKind::Backward);
        }
    }
}
