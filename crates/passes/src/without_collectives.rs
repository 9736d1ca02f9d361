//! What a rank computes by itself: numbers stand in the place of what others send, so that it runs, and can be measured, without them.

use aten::{Call, RunTimeSizes};
use base::Result;
use ir::{Arg, Graph, NodeId, Patch, RowOperator, TensorType, ValueId, expected};

use crate::{Pass, layout::Layout};

/// Any number that no operation takes longer for.
const ANY: f64 = 0.01;

const ARANGE: &str = "aten::arange.start_step(Scalar start, Scalar end, Scalar step=1, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";

/// Replaces collectives by their operands, or by tensors of a number where others are larger or smaller than these. Groups that offsets
/// divide are equally large.
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
                let mut layout = Layout { patch: &mut patch, source: *id };
                let stands = if alike { operand } else { layout.full(ty.clone(), ANY) };
                patch.replace(result, stands);
            }
            patch.remove(*id);
        }
        with_equal_groups(graph, &mut patch);
        Ok(patch)
    }
}

/// Sizes that are known at run time only are then what they are expected to be, as those of what stands for collectives are.
fn with_equal_groups(graph: &Graph, patch: &mut Patch<'_>) {
    let sizes = RunTimeSizes::of(graph);
    for id in graph.order.iter().filter(|_| !sizes.is_empty()) {
        let call = Call::new(graph, *id);
        if graph.row_operator(*id) == Some(RowOperator::Bounds) {
            let (ranks, size) = (call.int(1).unwrap_or(1), call.int(2).unwrap_or_default());
            let own = expected(size, ranks as u32);
            let bounds = counted(patch, *id, (0, own, ranks + 1), call.result(0));
            patch.replace(call.results[0], bounds);
            patch.remove(*id);
        } else if call.operands.iter().any(|value| sizes.has(*value)) {
            with_equal_offsets(patch, &call);
        }
    }
}

/// The same product with offsets of which each is as far from the one before.
fn with_equal_offsets(patch: &mut Patch<'_>, call: &Call<'_>) {
    let Some(offsets) = aten::row(call.name()).and_then(|row| aten::offsets(row, call)) else { return };
    let ty = call.graph.ty(offsets);
    let (rows, groups) = (call.operand(0).shape[usize::from(call.operand(1).rank() == 2)], ty.shape[0]);
    let each = rows / groups.max(1);
    let equal = counted(patch, call.id, (each, each, groups), ty);
    let mut args = call.node.args.clone();
    for arg in &mut args {
        arg.map_values(|value| if value == offsets { equal } else { value });
    }
    let schema = format!("{}{}", call.name(), call.op().schema);
    let made = patch.push_value(call.id, &schema, args, call.result(0).clone());
    patch.replace(call.results[0], made);
    patch.remove(call.id);
}

/// So many numbers from the first on, each as far from the one before.
fn counted(
    patch: &mut Patch<'_>,
    source: NodeId,
    (first, step, count): (i64, i64, i64),
    ty: &TensorType,
) -> ValueId {
    // A step of 0 is none.
    let step = step.max(1);
    let numbers = [first, first + step * count, step].map(Arg::Int);
    let kind = [Arg::Dtype(ty.dtype), Arg::None, Arg::Device(ty.device), Arg::None];
    patch.push_value(source, ARANGE, numbers.into_iter().chain(kind).collect(), ty.clone())
}
