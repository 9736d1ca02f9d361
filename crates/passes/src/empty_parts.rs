//! What a rank without a part computes by operations whose kernels refuse empty tensors: nothing of nothing, and 0 of a sum.

use std::collections::BTreeSet;

use base::Result;
use ir::{Graph, NodeId, Patch, TensorType, ValueId, inverse, memory_order};

use crate::{Pass, layout::Layout};

/// Puts zeros in the place of the results of operations that are given an empty part, and whose kernels would refuse it. Ranks are alike in what
/// they exchange until then, so it comes after all passes that decide by the graph.
#[derive(Default)]
pub struct EmptyParts {
    /// Operators that the step itself gives empty tensors to: it says what becomes of them.
    stay: BTreeSet<String>,
}

impl EmptyParts {
    /// For what ranks run of this step.
    pub fn beside(step: &Graph) -> Self {
        let given_nothing = step.order.iter().filter(|id| refuses_its_operands(step, **id));
        Self { stay: given_nothing.map(|id| step.op_name(*id).to_owned()).collect() }
    }

    /// Whether it changes anything.
    pub fn is_needed(&self, graph: &Graph) -> bool {
        graph.order.iter().any(|id| self.is_without_part(graph, *id))
    }

    fn is_without_part(&self, graph: &Graph, id: NodeId) -> bool {
        refuses_its_operands(graph, id) && !self.stay.contains(graph.op_name(id))
    }
}

/// Whether an operand is empty of an operation whose kernel refuses that.
fn refuses_its_operands(graph: &Graph, id: NodeId) -> bool {
    let is_empty = |value: ValueId| graph.ty(value).elements() == 0;
    graph.nodes[id].operands().any(is_empty)
        && aten::row(graph.op_name(id)).is_some_and(|row| !row.may_be_empty)
}

impl Pass for EmptyParts {
    fn name(&self) -> &'static str {
        "empty_parts"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        for id in graph.order.iter().filter(|id| self.is_without_part(graph, **id)) {
            for result in graph.nodes[*id].results() {
                let ty = graph.ty(result);
                let order = memory_order(&ty.strides);
                let shape: Vec<i64> = order.iter().map(|dim| ty.shape[*dim]).collect();
                let lying = TensorType { device: ty.device, ..TensorType::contiguous(ty.dtype, shape) };
                let mut layout = Layout { patch: &mut patch, source: *id };
                let zeros = layout.full(lying, 0.0);
                let turned = layout.permute(zeros, &inverse(&order));
                patch.replace(result, turned);
            }
            patch.remove(*id);
        }
        Ok(patch)
    }
}
