//! What a value is in a step: of state, or a gradient, in whatever form it is.

use aten::Work;
use base::SecondaryMap;
use ir::{Graph, NodeId, PartKind, ValueId};

/// What a value is in a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// State as it is stored.
    Stored,
    /// What comes from state alone: views and casts of it, what an outer axis gathers of it.
    OfState,
    /// A gradient that only updates need.
    Gradient,
    /// Anything else: the batch, activations, numbers of the step.
    Other,
}

impl Role {
    /// Whether it is state in any form.
    pub const fn is_of_state(self) -> bool {
        matches!(self, Self::Stored | Self::OfState)
    }
}

/// What each value is.
pub fn roles(graph: &Graph) -> SecondaryMap<ValueId, Role> {
    let (of_state, gradients) = (of_state(graph), gradients(graph));
    let mut roles = SecondaryMap::with_default(Role::Other);
    for value in graph.values.ids() {
        roles[value] = match (of_state[value], gradients[value]) {
            (true, _) => Role::OfState,
            (false, true) => Role::Gradient,
            (false, false) => Role::Other,
        };
    }
    let stored = graph.inputs.values().filter(|input| input.class.is_state());
    stored.for_each(|input| roles[input.value] = Role::Stored);
    roles
}

/// The values that come from state alone: stored parameters, and what is viewed, cast, gathered or computed of them.
pub fn of_state(graph: &Graph) -> SecondaryMap<ValueId, bool> {
    let mut of_state = SecondaryMap::with_default(false);
    for input in graph.inputs.values() {
        of_state[input.value] = input.class.is_state();
    }
    for id in &graph.order {
        let node = &graph.nodes[*id];
        if node.operands().next().is_some() && node.operands().all(|value| of_state[value]) {
            node.results().for_each(|value| of_state[value] = true);
        }
    }
    of_state
}

/// The values that only updates need, in other forms of them included: gradients of parameters.
pub fn gradients(graph: &Graph) -> SecondaryMap<ValueId, bool> {
    // Per value: whether anything uses it, and whether something other than an update does.
    let mut used = SecondaryMap::with_default(false);
    let mut elsewhere = SecondaryMap::with_default(false);
    for id in graph.order.iter().rev() {
        let node = &graph.nodes[*id];
        let passes_on = gives_on(graph, *id) && node.results().all(|value| used[value] && !elsewhere[value]);
        let counts = passes_on || graph.part_kind(*id) == PartKind::Update;
        for value in node.operands() {
            used[value] = true;
            elsewhere[value] |= !counts;
        }
    }
    graph.returns.iter().for_each(|value| elsewhere[*value] = true);
    let mut found = SecondaryMap::with_default(false);
    graph.values.ids().for_each(|value| found[value] = used[value] && !elsewhere[value]);
    found
}

/// Whether a node gives its tensor on in another form: viewed, copied, cast, put together, added up or waited for.
fn gives_on(graph: &Graph, id: NodeId) -> bool {
    let row = aten::row(graph.op_name(id));
    row.is_some_and(|row| row.copies || matches!(row.work, Work::View)) || graph.is_communication(id)
}
