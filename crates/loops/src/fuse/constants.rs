//! What depends on nothing that a run is given, and so is computed once, before the first one.

use base::SecondaryMap;
use ir::{Graph, Schema, ValueId};

/// For each operation in program order, whether it makes the same at each run.
pub(super) fn constants(graph: &Graph) -> Vec<bool> {
    let mut constant: SecondaryMap<ValueId, bool> = SecondaryMap::with_default(false);
    let of = |id: &ir::NodeId| {
        let (node, op) = (&graph.nodes[*id], &graph.ops[graph.nodes[*id].op]);
        let is_pure = !ir::is_communication(&op.name)
            && Schema::parse(&op.schema)
                .is_some_and(|schema| !schema.writes() && !aten::random(&op.name, &schema).draws(&node.args));
        let is_constant = is_pure && node.operands().all(|value| constant[value]);
        node.results().for_each(|value| constant[value] = is_constant);
        is_constant
    };
    graph.order.iter().map(of).collect()
}
