//! Starts each collective right after its operand is computed, and moves what only prepares the operand with it: views, copies,
//! casts, and concatenations. Gathers of state, cast or not, stay where they are: they could start at any time, and what they gather takes
//! memory from then on. Ordering hoists them as far as memory allows. What runs again in backward stays too: what it reads is there since forward.
//!
//! It runs before bucketing and puts collectives in the order in which they can start: gradients in the order of backward, not of the
//! optimizer. It takes no more memory: what a copy reads exists already, and its result is used at once.

use base::{Id, Result, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{Graph, NodeId, Patch};

use crate::{
    Pass,
    facts::{Facts, end_values, is_uneven, of_state_alone, users},
    recompute::runs_again,
};

/// Starts collectives early.
pub struct StartCollectives;

/// The new position of a node relative to a position of the old program: before it (below 0), at it (0) or after it (1).
pub type Wanted = (usize, i32);

impl Pass for StartCollectives {
    fn name(&self) -> &'static str {
        "start_collectives"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label("start_collectives");
        let facts = Facts::new(graph);
        reorder(graph, &mut patch, &start_early(graph, &facts));
        Ok(patch)
    }
}

/// Every node at its old position, but collectives and what prepares them right after the last of their operands; not those of state alone.
pub fn start_early(graph: &Graph, facts: &Facts) -> SecondaryMap<NodeId, Wanted> {
    let (prepares, alone) = (preparations(graph, facts), of_state_alone(graph, facts));
    let mut wanted: SecondaryMap<NodeId, Wanted> = SecondaryMap::with_default((0, 0));
    for (position, id) in graph.order.iter().enumerate() {
        let node = &graph.nodes[*id];
        let ready =
            node.operands().filter_map(|operand| graph.maker(operand)).map(|maker| wanted[maker]).max();
        let moves = || facts.is_collective(node) || prepares.contains(id.index());
        let waits = || node.operands().any(|operand| !alone.contains(operand.index()));
        wanted[*id] = match ready {
            // What runs again does so for what reads it to be held no earlier.
            Some(ready) if moves() && waits() && !runs_again(graph, *id) => (ready.0, 1),
            _ => (position, 0),
        };
    }
    wanted
}

/// The nodes that only prepare the operand of a collective; views may have other uses too.
fn preparations(graph: &Graph, facts: &Facts) -> FixedBitSet {
    let (users, ends) = (users(graph), end_values(graph));
    let mut prepares = FixedBitSet::with_capacity(graph.nodes.len());
    for id in graph.order.iter().rev() {
        let node = &graph.nodes[*id];
        let results = || node.results().flat_map(|result| &users[result]);
        let serves =
            |user: &NodeId| facts.is_collective(&graph.nodes[*user]) || prepares.contains(user.index());
        let alone = || results().all(serves) && !node.results().any(|result| ends.contains(result.index()));
        // What pads an unequal shard serves nothing else.
        let pads = is_uneven(graph, *id) && facts.is_pure(node) && node.operands().count() == 1;
        let is_light = facts.carries(node) && !facts.is_wait(node) || facts.joins(node) || pads;
        if is_light && results().any(serves) && (facts.is_view(node) || alone()) {
            prepares.insert(id.index());
        }
    }
    prepares
}

/// Moves every node to its new position, and into the part of the program at that position.
pub fn reorder(graph: &Graph, patch: &mut Patch<'_>, wanted: &SecondaryMap<NodeId, Wanted>) {
    let mut order = graph.order.clone();
    order.sort_by_key(|id| wanted[*id]);
    if order == graph.order {
        return;
    }
    let part = |id: NodeId| graph.nodes[graph.order[wanted[id].0.min(graph.order.len() - 1)]].part;
    patch.reorder(order.into_iter().map(|id| (id, part(id))).collect());
}
