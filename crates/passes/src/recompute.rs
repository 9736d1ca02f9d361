//! Recomputation: what forward made and backward reads is made again in backward, right before its first use there, so that it takes no
//! memory in between.
//!
//! Which operations run again is decided by the search and stands in the plan. Views of what is made again are made again too. Where
//! backward gathers the same state as forward, what runs again reads what backward has gathered.

use std::{collections::BTreeSet, fmt, str::FromStr};

use base::{Code, Diagnostic, Id, Result, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{Graph, NodeId, PartId, PartKind, Patch, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    facts::{Facts, is_uneven, of_state_alone},
};

/// What nodes that run again are labelled.
pub const RECOMPUTE: &str = "recompute";

/// Whether a node is what runs again.
pub fn runs_again(graph: &Graph, id: NodeId) -> bool {
    graph.nodes[id].label.is_some_and(|label| graph.labels[label] == RECOMPUTE)
}

/// Runs operations of forward again in backward.
pub struct Recompute {
    /// Which, by their positions in program order.
    pub again: Positions,
}

/// Positions of a program's order; as text ranges, `3-7 9`.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Positions(pub BTreeSet<u32>);

impl Positions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Positions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for position in &self.0 {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *position => *last = *position,
                _ => ranges.push((*position, *position)),
            }
        }
        for (number, (first, last)) in ranges.iter().enumerate() {
            let space = if number == 0 { "" } else { " " };
            match last {
                last if last == first => write!(f, "{space}{first}")?,
                last => write!(f, "{space}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Positions {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut positions = BTreeSet::new();
        for range in text.split_whitespace() {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            match (first.parse::<u32>(), last.parse::<u32>()) {
                (Ok(first), Ok(last)) if first <= last && last < MOST => positions.extend(first..=last),
                _ => return Err(format!("`{range}` is no range of positions such as `3-7`")),
            }
        }
        Ok(Self(positions))
    }
}

/// No program has so many operations.
const MOST: u32 = 1 << 24;

base::serialized_as_text!(Positions);

impl Pass for Recompute {
    fn name(&self) -> &'static str {
        "recompute"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(RECOMPUTE);
        if self.again.is_empty() {
            return Ok(patch);
        }
        let repeatable = Repeatable::new(graph);
        let mut chosen = FixedBitSet::with_capacity(graph.nodes.len());
        for position in &self.again.0 {
            let node = graph.order.get(*position as usize).filter(|id| repeatable.contains(**id));
            chosen.insert(node.ok_or_else(|| foreign(*position))?.index());
        }
        let mut again = Again { graph, chosen, repeatable, made: FxHashMap::default() };
        for id in &graph.order {
            if graph.part_kind(*id) == PartKind::Backward {
                again.lead(*id, &mut patch);
            }
        }
        // What backward gathers itself comes before what runs again of it.
        patch.bring_operands();
        Ok(patch)
    }
}

fn foreign(position: u32) -> Box<Diagnostic> {
    Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
        .because(format!("operation {position} cannot run again in backward"))
        .hint("plan again: the model, the batch or the version of PyTorch has changed")
}

/// Which operations of a graph can run again in backward, and what of forward backward has anyway.
pub struct Repeatable {
    nodes: FixedBitSet,
    views: FixedBitSet,
    /// For each part of the program and value of forward that is gathered from state, the same as the part gathers it.
    twins: FxHashMap<(PartId, ValueId), ValueId>,
    /// The values of forward among them, and views of these.
    has_twin: FixedBitSet,
}

impl Repeatable {
    /// Of a verified graph.
    pub fn new(graph: &Graph) -> Self {
        let facts = Facts::new(graph);
        let mut nodes = FixedBitSet::with_capacity(graph.nodes.len());
        let mut views = FixedBitSet::with_capacity(graph.nodes.len());
        let alone = of_state_alone(graph, &facts);
        for id in &graph.order {
            let node = &graph.nodes[*id];
            // What state is gathered to is held, or gathered again where a plan says so; what each micro-batch gathers is one of those.
            let may_be_sent = || {
                let is_sent = facts.is_collective(node) && !facts.has_effect(node);
                let is_of_state = node.operands().all(|operand| alone.contains(operand.index()));
                let is_gathered_once = is_of_state && graph.parts[node.part].micro_batch.is_none();
                is_sent && !is_gathered_once && !is_uneven(graph, *id)
            };
            if facts.is_view(node) || facts.is_wait(node) {
                views.insert(id.index());
            } else if graph.part_kind(*id) == PartKind::Forward && (facts.is_pure(node) || may_be_sent()) {
                nodes.insert(id.index());
            }
        }
        let twins = twins(graph, &facts);
        let mut has_twin = FixedBitSet::with_capacity(graph.values.len());
        let is_backward = |part: PartId| graph.parts[part].kind == PartKind::Backward;
        for (_, value) in twins.keys().filter(|(part, _)| is_backward(*part)) {
            has_twin.insert(value.index());
        }
        // A view of forward's is made again of what is gathered in backward.
        for id in graph.order.iter().filter(|id| views.contains(id.index())) {
            if graph.nodes[*id].operands().any(|operand| has_twin.contains(operand.index())) {
                graph.nodes[*id].results().for_each(|result| has_twin.insert(result.index()));
            }
        }
        Self { nodes, views, twins, has_twin }
    }

    /// Whether an operation of forward gives the same when it runs again, on all ranks where they give each other something of the batch.
    pub fn contains(&self, id: NodeId) -> bool {
        self.nodes.contains(id.index())
    }

    /// Whether a value is gathered by forward, or a view of what is, and backward gathers the same itself.
    pub fn has_twin(&self, value: ValueId) -> bool {
        self.has_twin.contains(value.index())
    }

    /// Whether an operation is a view, which is made again with what it views.
    pub fn is_view(&self, id: NodeId) -> bool {
        self.views.contains(id.index())
    }

    /// What a part of the program gathers itself that is equal to a value that forward gathers.
    pub fn twin(&self, part: PartId, value: ValueId) -> Option<ValueId> {
        self.twins.get(&(part, value)).copied()
    }
}

/// Values of forward that are gathered from state, as it is or cast, and equal ones of later parts.
fn twins(graph: &Graph, facts: &Facts) -> FxHashMap<(PartId, ValueId), ValueId> {
    let mut twins = FxHashMap::default();
    let mut first: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::with_default(None);
    let mut gathered = FixedBitSet::with_capacity(graph.values.len());
    for input in graph.inputs.values().filter(|input| input.class.is_state()) {
        first[input.value] = Some(input.value);
    }
    let mut known: FxHashMap<Vec<u8>, NodeId> = FxHashMap::default();
    for id in &graph.order {
        let node = &graph.nodes[*id];
        if facts.has_effect(node) || !node.operands().all(|operand| first[operand].is_some()) {
            continue;
        }
        let of_first = *known.entry(node.key(|value| first[value].unwrap_or(value).0)).or_insert(*id);
        let is_gathered =
            facts.is_communication(node) || node.operands().any(|operand| gathered.contains(operand.index()));
        for (own, one) in node.results().zip(graph.nodes[of_first].results()) {
            first[own] = Some(one);
            gathered.set(own.index(), is_gathered);
            let is_later = node.part != graph.nodes[of_first].part;
            if is_gathered && is_later && graph.part_kind(of_first) == PartKind::Forward {
                twins.entry((node.part, one)).or_insert(own);
            }
        }
    }
    twins
}

struct Again<'g> {
    graph: &'g Graph,
    chosen: FixedBitSet,
    repeatable: Repeatable,
    /// For each part and value what stands for it there.
    made: FxHashMap<(PartId, ValueId), ValueId>,
}

impl Again<'_> {
    /// Lets a node of backward read what is made again, which is made before it where it is not there yet.
    fn lead(&mut self, user: NodeId, patch: &mut Patch<'_>) {
        let part = self.graph.nodes[user].part;
        let mut todo: Vec<(ValueId, bool)> =
            self.graph.nodes[user].operands().map(|operand| (operand, false)).collect();
        while let Some((value, operands_are_there)) = todo.pop() {
            if self.made.contains_key(&(part, value)) {
                continue;
            }
            let Some(from) = self.again_from(part, value) else {
                let now = self.repeatable.twin(part, value).unwrap_or(value);
                self.made.insert((part, value), now);
                continue;
            };
            let operands = || self.graph.nodes[from].operands();
            if !operands_are_there {
                todo.push((value, true));
                todo.extend(operands().map(|operand| (operand, false)));
                continue;
            }
            let now = |operand: ValueId| self.made.get(&(part, operand)).copied().unwrap_or(operand);
            let is_view = self.repeatable.views.contains(from.index());
            let results: Vec<ValueId> = self.graph.nodes[from].results().collect();
            if is_view && operands().all(|operand| now(operand) == operand) {
                self.made.extend(results.into_iter().map(|result| ((part, result), result)));
                continue;
            }
            let copy = patch.copy(from, user, now);
            let copies: Vec<ValueId> = patch.node(copy).results().collect();
            self.made.extend(results.into_iter().map(|result| (part, result)).zip(copies));
        }
        let operands: BTreeSet<ValueId> = self.graph.nodes[user].operands().collect();
        for operand in operands {
            let now = self.made[&(part, operand)];
            if now != operand {
                patch.replace_in(user, operand, now);
            }
        }
    }

    /// The node of an earlier part that runs again for a value, or the view that may have to be made again.
    fn again_from(&self, part: PartId, value: ValueId) -> Option<NodeId> {
        let node = self.graph.maker(value)?;
        let is_earlier = self.graph.nodes[node].part != part;
        let runs = self.chosen.contains(node.index());
        let is_view =
            self.repeatable.views.contains(node.index()) && self.repeatable.twin(part, value).is_none();
        (is_earlier && (runs || is_view)).then_some(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_written_as_ranges_and_read_back() {
        let positions = Positions([3, 4, 5, 9, 11, 12].into());
        assert_eq!(positions.to_string(), "3-5 9 11-12");
        assert_eq!("3-5 9 11-12".parse(), Ok(positions));
        assert_eq!("".parse(), Ok(Positions::default()));
        for wrong in ["5-3", "a", "1-", "1-99999999999"] {
            assert!(wrong.parse::<Positions>().is_err(), "{wrong}");
        }
    }
}
