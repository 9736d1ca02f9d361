//! Whether an axis divides what a step computes.

use base::{Code, Diagnostic, Result};
use ir::{AxisKind, Graph, InputClass, Mesh, MeshAxis, Placement};
use shard::{Offered, Space};

/// Whether something that a step computes can be sliced into so many micro-batches.
pub fn slices(graph: &Graph, micro_batches: u32) -> bool {
    micro_batches == 1 || divides(graph, &MeshAxis::micro_batches(micro_batches), Offered::Even)
}

/// The number of micro-batches into which a step can be sliced that is nearest to one that would suit it: at most twice as many.
pub fn nearest_slices(graph: &Graph, micro_batches: u32) -> Option<u32> {
    let rows = |count: &u32| {
        let batch = graph.inputs.values().filter(|input| input.class == InputClass::Batch);
        let mut rows = batch.filter_map(|input| graph.ty(input.value).shape.first().copied());
        rows.any(|rows| rows > 0 && rows % i64::from(*count) == 0)
    };
    let near = (0..=micro_batches).flat_map(|far| [micro_batches + far, micro_batches - far]);
    near.filter(|count| *count > 0).filter(rows).find(|count| slices(graph, *count))
}

/// Refuses a number of micro-batches that nothing which computes can be sliced into.
pub fn require_slices(graph: &Graph, axis: &MeshAxis) -> Result<()> {
    if slices(graph, axis.size) {
        return Ok(());
    }
    let fewer = (2..axis.size).rev().find(|count| slices(graph, *count));
    let more = (axis.size + 1..=MOST_TRIED).find(|count| slices(graph, *count));
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::layers::tests::{Tower, tower};

    #[test]
    fn the_nearest_number_of_micro_batches_divides_the_batch() {
        let nearest = |rows, counts: [u32; 4]| {
            let graph = tower(Tower { layers: 1, rows, width: 64, reach: 1, odd: None });
            counts.map(|count| nearest_slices(&graph, count).unwrap())
        };
        assert_eq!(nearest(16, [2, 3, 6, 12]), [2, 4, 8, 16]);
        assert_eq!(nearest(7, [2, 3, 6, 12]), [1, 1, 7, 7]);
        assert_eq!(nearest(30, [3, 4, 8, 64]), [3, 5, 10, 30]);
    }
}
