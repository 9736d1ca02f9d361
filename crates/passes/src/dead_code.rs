//! Dead-code elimination: nodes whose results nothing needs go.

use base::{Id, Result};
use ir::{Graph, Patch};

use crate::{
    Pass,
    facts::{Facts, end_values},
};

/// Removes what neither a return nor an update nor an effect needs.
pub struct DeadCode;

impl Pass for DeadCode {
    fn name(&self) -> &'static str {
        "dead_code"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let facts = Facts::new(graph);
        let mut live = end_values(graph);
        let mut patch = Patch::new(graph);
        patch.label("dead_code");
        for id in graph.order.iter().rev() {
            let node = &graph.nodes[*id];
            let matters = facts.has_effect(node) || facts.is_transfer(graph, node);
            if matters || node.results().any(|result| live.contains(result.index())) {
                node.operands().for_each(|operand| live.insert(operand.index()));
            } else {
                patch.remove(*id);
            }
        }
        Ok(patch)
    }
}
