//! Whether an axis divides what a step computes.

use base::{Code, Diagnostic, Result};
use ir::{AxisKind, Graph, InputClass, Mesh, MeshAxis, Placement};
use shard::{Offered, Space};

/// Refuses a number of micro-batches that nothing which computes can be sliced into.
pub fn require_slices(graph: &Graph, axis: &MeshAxis) -> Result<()> {
    let slices = |count: u32| {
        axis.size == 1 || divides(graph, &MeshAxis { size: count, ..axis.clone() }, Offered::Even)
    };
    if slices(axis.size) {
        return Ok(());
    }
    let fewer = (2..axis.size).rev().find(|count| slices(*count));
    let more = (axis.size + 1..=MOST_TRIED).find(|count| slices(*count));
    let near: Vec<String> = fewer.into_iter().chain(more).map(|count| count.to_string()).collect();
    let batch = graph.inputs.values().filter(|input| input.class == InputClass::Batch);
    let shapes: Vec<String> =
        batch.map(|input| format!("`{}` of shape {:?}", input.name, graph.ty(input.value).shape)).collect();
    let message = format!("nothing that this step computes can be sliced into {} micro-batches", axis.size);
    let hint = if near.is_empty() { "leave them out".into() } else { format!("use {}", near.join(" or ")) };
    Err(Diagnostic::new(Code::BAD_MESH, message)
        .because(format!("slices are of one size, and the batch is {}", shapes.join(", ")))
        .hint(hint))
}

/// The largest number that a hint proposes.
const MOST_TRIED: u32 = 64;

/// Which dimensions are sharded along an axis where its ranks do not divide them.
pub fn offered(mesh: &Mesh, axis: &MeshAxis) -> Offered {
    if mesh.may_be_uneven(&axis.name) { Offered::Useful } else { Offered::Even }
}

/// The search space of a graph along an axis of a mesh.
pub fn space(graph: &Graph, mesh: &Mesh, axis: &MeshAxis) -> Space {
    let slices = if axis.kind == AxisKind::Ranks { mesh.micro_batches() } else { 1 };
    Space::in_slices(graph, axis, offered(mesh, axis), slices)
}

/// Whether what is mostly computation can be sharded along an axis by a dimension of the batch.
pub fn divides(graph: &Graph, axis: &MeshAxis, offered: Offered) -> bool {
    let space = Space::new(graph, axis, offered);
    let is_sharded = |placement: &Placement| matches!(placement, Placement::Shard { .. });
    let by_batch = axis.kind == AxisKind::Ranks || {
        let mut batch = graph.inputs.values().filter(|input| input.class == InputClass::Batch);
        batch.any(|input| {
            space.offers[input.value]
                .iter()
                .any(|placement| matches!(placement, Placement::Shard { dim: 0, .. }))
        })
    };
    by_batch
        && graph.order.iter().any(|id| {
            let row = aten::row(graph.op_name(*id));
            let computes = row.is_some_and(|row| matches!(row.work, aten::Work::Flops(_)));
            let mut strategies = space.strategies(*id).iter();
            computes && strategies.any(|strategy| strategy.operands.iter().any(is_sharded))
        })
}
