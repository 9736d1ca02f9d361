//! What decisions along the axes of a mesh are made on: for each axis the graph that the axes outside it leave.

use std::borrow::Cow;

use base::Result;
use ir::{Graph, Mesh, MeshAxis};
use shard::{Assignment, Space, divided};

use crate::divides::space;

/// An axis with what is decided along it, and on what.
pub struct OnAxis<'a> {
    /// The axis.
    pub axis: &'a MeshAxis,
    /// The graph that the axes outside it leave.
    pub graph: Cow<'a, Graph>,
    /// What may be done along it.
    pub space: Space,
    /// What is.
    pub decided: Cow<'a, Assignment>,
}

/// The axes of a mesh that something may be decided along, the outer one first, under decisions for a graph in canonical form.
pub fn on_axes<'a>(
    graph: &'a Graph,
    mesh: &'a Mesh,
    assignments: &'a [Assignment],
) -> Result<Vec<OnAxis<'a>>> {
    let axes: Vec<&MeshAxis> = mesh.sharding_axes().collect();
    let mut decisions = assignments.iter();
    let mut graph = Cow::Borrowed(graph);
    let mut found = Vec::with_capacity(axes.len());
    for (number, axis) in axes.iter().enumerate() {
        let decided = decisions.next().map_or_else(|| Cow::Owned(Assignment::default()), Cow::Borrowed);
        let space = space(&graph, mesh, axis);
        // What the last one leaves, all micro-batches written out perhaps, is no graph that anything is decided on.
        let left = match axis.size {
            2.. if number + 1 < axes.len() => Cow::Owned(divided(&graph, &decided, axis, 0)?),
            _ if number + 1 < axes.len() => graph.clone(),
            _ => Cow::Owned(Graph::default()),
        };
        found.push(OnAxis { axis, graph: std::mem::replace(&mut graph, left), space, decided });
    }
    Ok(found)
}
