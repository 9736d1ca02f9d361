//! What a rank computes by itself: numbers stand in the place of what others send, so that it runs, and can be measured, without them.

use base::Result;
use ir::{Arg, Dtype, Graph, Patch, TensorType};

use crate::Pass;

const FULL: &str = "aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";

/// Any number that no operation takes longer for.
const ANY: f64 = 0.01;

/// Replaces collectives by their operands, or by tensors of a number where others are larger or smaller than these.
pub struct WithoutCollectives;

impl Pass for WithoutCollectives {
    fn name(&self) -> &'static str {
        "without_collectives"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        for id in graph.order.iter().filter(|id| graph.is_communication(**id)) {
            let node = &graph.nodes[*id];
            for (operand, result) in node.operands().zip(node.results()) {
                let ty = graph.ty(result);
                let alike = graph.ty(operand).shape == ty.shape;
                let stands =
                    if alike { operand } else { patch.push_value(*id, FULL, filled(ty), ty.clone()) };
                patch.replace(result, stands);
            }
            patch.remove(*id);
        }
        Ok(patch)
    }
}

/// The arguments of a tensor of a number.
fn filled(ty: &TensorType) -> Vec<Arg> {
    let number = match ty.dtype {
        Dtype::Bool => Arg::Bool(false),
        dtype if dtype.is_floating() => Arg::Float(ANY),
        _ => Arg::Int(0),
    };
    let shape = Arg::Ints(ty.shape.iter().copied().collect());
    vec![shape, number, Arg::Dtype(ty.dtype), Arg::None, Arg::Device(ty.device), Arg::None]
}
