//! What a value is in a step: of state, or a gradient, in whatever form it is.

use aten::{Linear, Row, Work};
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
    let shape = |value| &graph.ty(value).shape;
    let node = &graph.nodes[id];
    // Of a parameter that is used several times.
    let adds = |row: &Row| {
        matches!(row.linear, Linear::Jointly | Linear::Together(_))
            && node.operands().count() > 1
            && node.results().all(|sum| node.operands().all(|part| shape(part) == shape(sum)))
    };
    let row = aten::row(graph.op_name(id));
    row.is_some_and(|row| row.copies || matches!(row.work, Work::View) || adds(row))
        || graph.is_communication(id)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A weight that is used twice, and its update.
    const TIED: &str = r#"unisono graph 2
op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
op aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
input v0: f32[8, 8] = parameter "params.tied"
input v1: f32[8, 8] = batch "batch.x"
part forward
v2: f32[8, 8] = aten::mm(v1, v0)
v3: f32[8, 8] = aten::mm(v2, v0)
part backward
v4: f32[8, 8] = aten::mm(v2, v3)
v5: f32[8, 8] = aten::mm(v3, v0)
v6: f32[8, 8] = aten::add.Tensor(v5, v3, 1)
v7: f32[8, 8] = aten::mm(v1, v6)
v8: f32[8, 8] = aten::add.Tensor(v4, v7, 1)
part update
v9: f32[8, 8] = aten::sub.Tensor(v0, v8, 1)
return v3
update "params.tied" = v9
"#;

    #[test]
    fn gradients_that_are_added_up_for_an_update_are_gradients() {
        let graph = Graph::from_text("step", TIED).unwrap();
        let gradients = gradients(&graph);
        let found: Vec<ValueId> = graph.values.ids().filter(|value| gradients[*value]).collect();
        // Not the sum of v5 and v3, which a product reads.
        assert_eq!(found, [4, 7, 8].map(ValueId));
    }
}
