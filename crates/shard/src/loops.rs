//! The loops of a program of micro-batches: what is computed once, what in each iteration, and in which of several loops.

use base::{Diagnostic, Result, SecondaryMap};
use ir::{Arg, CollectiveKind, Graph, InputClass, MeshAxis, NodeId, ValueId};
use rustc_hash::FxHashMap;

use crate::{draws::may_draw, partition::Gathers, users::users};

/// What becomes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// It is the same in all iterations: computed once.
    Once,
    /// It is computed in each iteration.
    Each,
    /// It combines what the iterations have.
    Combine(CollectiveKind),
    /// It waits for that.
    Combined,
}

impl Role {
    /// Whether what it gives is another value in each iteration.
    const fn varies(self) -> bool {
        matches!(self, Self::Each | Self::Combine(CollectiveKind::ReduceScatter | CollectiveKind::AllToAll))
    }
}

/// The numbers of an iteration: the arguments of the nodes that have others than in the first one.
pub struct Numbers(FxHashMap<NodeId, Vec<Arg>>);

impl Numbers {
    /// Those of an iteration beside the first one.
    pub fn of(iteration: &Graph, first: &Graph) -> Result<Self> {
        if iteration.order != first.order {
            return Err(Diagnostic::bug("the iterations of a loop have other operations than the first"));
        }
        let args =
            |id: &NodeId| Some(&iteration.nodes[*id].args).filter(|args| **args != first.nodes[*id].args);
        Ok(Self(first.order.iter().filter_map(|id| Some((*id, args(id)?.clone()))).collect()))
    }

    /// The arguments of a node, if they are others than in the first iteration.
    pub fn of_node(&self, id: NodeId) -> Option<&Vec<Arg>> {
        self.0.get(&id)
    }
}

/// What becomes of each node, from the graph of the first iteration and the numbers of the others.
pub fn roles(
    first: &Graph,
    others: &[Numbers],
    axis: &MeshAxis,
    gathers: Gathers,
) -> SecondaryMap<NodeId, Role> {
    let mut roles = SecondaryMap::with_default(Role::Once);
    let mut varies: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    let mut combined: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    for id in &first.order {
        let node = &first.nodes[*id];
        let collective = first.collective(*id).filter(|collective| collective.axis == axis.name);
        let operand = node.operands().next();
        let role = match collective {
            Some(collective) => Role::Combine(collective.kind),
            None if first.is_wait(*id) && operand.is_some_and(|value| combined[value]) => Role::Combined,
            None if node.operands().any(|value| varies[value])
                || others.iter().any(|other| other.of_node(*id).is_some()) =>
            {
                Role::Each
            }
            None => Role::Once,
        };
        let is_varying =
            role.varies() || role == Role::Combined && operand.is_some_and(|value| varies[value]);
        for value in node.results() {
            varies[value] = is_varying;
            combined[value] = collective.is_some();
        }
        roles[*id] = role;
    }
    if gathers == Gathers::Each {
        for id in gathered_for_loops(first, &roles) {
            roles[id] = Role::Each;
        }
    }
    roles
}

/// What is gathered along other axes for nothing but what iterations compute, with what is made of it for them: it can be gathered in each.
fn gathered_for_loops(graph: &Graph, roles: &SecondaryMap<NodeId, Role>) -> Vec<NodeId> {
    let users = users(graph);
    let mut ends: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    graph.updates.iter().map(|(_, value)| value).chain(&graph.returns).for_each(|value| ends[*value] = true);
    // Of what is computed once, what only iterations need.
    let mut is_for_loops: SecondaryMap<NodeId, bool> = SecondaryMap::with_default(false);
    for id in graph.order.iter().rev().filter(|id| roles[**id] == Role::Once) {
        let is_needed = |value: ValueId| {
            users[value].iter().all(|user| match roles[*user] {
                Role::Once => is_for_loops[*user],
                Role::Each => true,
                Role::Combine(_) | Role::Combined => false,
            })
        };
        is_for_loops[*id] =
            !may_draw(graph, *id) && graph.nodes[*id].results().all(|value| !ends[value] && is_needed(value));
    }
    let mut is_gathered: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    // The batch is there whole anyway, and nothing is held for it.
    let batch = graph.inputs.values().filter(|input| input.class == InputClass::Batch);
    let mut is_of_batch: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    batch.for_each(|input| is_of_batch[input.value] = true);
    let mut found = Vec::new();
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let of_batch = node.operands().any(|value| is_of_batch[value]);
        node.results().for_each(|value| is_of_batch[value] = of_batch);
        let gathers = graph.collective(*id).is_some_and(|one| one.kind == CollectiveKind::AllGather);
        let is_again = gathers && !of_batch || node.operands().any(|value| is_gathered[value]);
        if is_for_loops[*id] && is_again {
            node.results().for_each(|value| is_gathered[value] = true);
            found.push(*id);
        }
    }
    found
}

/// In which loop, or before which, each node is computed: loops are numbered from 0, and what is computed once has the number of the loop
/// that it comes before.
pub struct Loops {
    /// The number by node.
    pub of: SecondaryMap<NodeId, u32>,
    /// The last number.
    pub last: u32,
}

/// The number of a loop by node.
type LoopOf = SecondaryMap<NodeId, u32>;

impl Loops {
    /// Each loop has what it must, and of what may also come later either all or nothing: what leaves less to hold for all iterations until
    /// the next loop. Where a sum over the iterations is needed by a small part of backward, the rest of backward does not wait for it; where
    /// forward could start before a number that backward needs is known, it waits.
    pub fn of(graph: &Graph, roles: &SecondaryMap<NodeId, Role>, iterations: u32) -> Self {
        let early = earliest(graph, roles);
        let last = graph.order.iter().map(|id| early[*id] + ends_loop(roles[*id])).max().unwrap_or(0);
        let late = latest(graph, roles, last);
        let users = users(graph);
        // Bytes of what is made up to a loop and used behind it: of what is another value in each iteration, for all iterations.
        let held = |of: &LoopOf, boundary: u32| -> u64 {
            let made = graph.order.iter().filter(|id| of[**id] <= boundary);
            let values = made.flat_map(|id| graph.nodes[*id].results().map(move |value| (*id, value)));
            let held = values.filter(|(_, value)| users[*value].iter().any(|user| of[*user] > boundary));
            held.map(|(id, value)| {
                let times = if roles[id].varies() { u64::from(iterations) } else { 1 };
                graph.ty(value).bytes().0 * times
            })
            .sum()
        };
        let mut wanted = late.clone();
        for boundary in (0..last).rev() {
            if held(&early, boundary) < held(&late, boundary) {
                let ends = graph.order.iter().filter(|id| early[**id] <= boundary);
                ends.for_each(|id| wanted[*id] = wanted[*id].min(boundary));
            }
        }
        Self { of: in_order(graph, roles, &wanted), last }
    }
}

/// Whether what uses a node's results comes in a later loop: what a loop combines is there when it is over.
fn ends_loop(role: Role) -> u32 {
    u32::from(matches!(role, Role::Combine(_)))
}

/// As early as what each node needs allows; random operations in their order.
fn earliest(graph: &Graph, roles: &SecondaryMap<NodeId, Role>) -> LoopOf {
    in_order(graph, roles, &SecondaryMap::with_default(0))
}

/// No earlier than `wanted`, and than what each node needs allows; random operations in their order.
fn in_order(graph: &Graph, roles: &SecondaryMap<NodeId, Role>, wanted: &LoopOf) -> LoopOf {
    let mut ready: SecondaryMap<ValueId, u32> = SecondaryMap::with_default(0);
    let mut of = SecondaryMap::with_default(0);
    let mut random = 0;
    for id in &graph.order {
        let node = &graph.nodes[*id];
        let mut number = node.operands().map(|value| ready[value]).max().unwrap_or(0).max(wanted[*id]);
        if may_draw(graph, *id) {
            number = number.max(random);
            random = number;
        }
        of[*id] = number;
        node.results().for_each(|value| ready[value] = number + ends_loop(roles[*id]));
    }
    of
}

/// As late as what uses each node allows; random operations in their order.
fn latest(graph: &Graph, roles: &SecondaryMap<NodeId, Role>, last: u32) -> LoopOf {
    let users = users(graph);
    let mut of = SecondaryMap::with_default(last);
    let mut next_random = last;
    for id in graph.order.iter().rev() {
        let results = graph.nodes[*id].results();
        let least = results.flat_map(|value| &users[value]).map(|user| of[*user]).min().unwrap_or(last);
        of[*id] = least.saturating_sub(ends_loop(roles[*id]));
        if may_draw(graph, *id) {
            of[*id] = of[*id].min(next_random);
            next_random = of[*id];
        }
    }
    of
}
