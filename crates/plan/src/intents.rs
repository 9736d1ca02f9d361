//! What is decided along an axis for each operation of a step, whatever the axes outside it leave beside these: with it decisions along one axis can be
//! made, or taken over, on meshes whose other axes are others or come in another order.

use std::ops::Range;

use aten::Strategy;
use base::Result;
use ir::{AxisKind, Graph, InputId, Mesh, MeshAxis, Placement, RankGraph};
use rustc_hash::FxHashMap;
use shard::{Assignment, divided, partition_counted};

/// For each operation of a graph, in its order, which one of the step it is; none for what axes left beside these.
#[derive(Clone, Debug, Default)]
pub struct Origins(Vec<Option<usize>>);

impl Origins {
    /// Those of the step itself.
    pub fn of(graph: &Graph) -> Self {
        Self((0..graph.order.len()).map(Some).collect())
    }

    /// Those of the graph that an axis leaves, where `ends` says how many operations are of each one or of one before: the same operator, if that
    /// is there once.
    pub fn within(&self, graph: &Graph, local: &Graph, ends: &[usize]) -> Self {
        let mut origins = vec![None; local.order.len()];
        for (at, of) in self.0.iter().enumerate().filter(|(_, of)| of.is_some()) {
            let operator = graph.op_name(graph.order[at]);
            let mut same = span(ends, at).filter(|own| local.op_name(local.order[*own]) == operator);
            if let (Some(own), None) = (same.next(), same.next()) {
                origins[own] = *of;
            }
        }
        Self(origins)
    }
}

/// What is decided along an axis for each operation of a step and for each of its inputs.
#[derive(Clone, PartialEq, Debug)]
pub struct Intent {
    nodes: FxHashMap<usize, Strategy>,
    inputs: FxHashMap<InputId, Placement>,
}

impl Intent {
    /// What decisions on the graph that the axes outside leave mean for the step.
    fn of(graph: &Graph, origins: &Origins, decided: &Assignment) -> Self {
        let own = graph.order.iter().zip(&origins.0);
        let node = |(id, of): (_, &Option<usize>)| Some(((*of)?, decided.nodes.get(id)?.clone()));
        Self { nodes: own.filter_map(node).collect(), inputs: decided.inputs.clone() }
    }

    /// The strategy of the operation at a position of the graph that the axes outside leave.
    pub fn node(&self, origins: &Origins, at: usize) -> Option<&Strategy> {
        self.nodes.get(&origins.0.get(at).copied().flatten()?)
    }

    /// The placement of an input.
    pub fn input(&self, id: InputId) -> Option<Placement> {
        self.inputs.get(&id).copied()
    }
}

/// What decisions along the axes of a mesh mean for the step: for each of its axes, none for those that nothing is decided along.
pub fn intents(graph: &Graph, mesh: &Mesh, assignments: &[Assignment]) -> Result<Vec<Option<Intent>>> {
    let (mut graph, mut origins) = (graph.clone(), Origins::of(graph));
    let mut decided = assignments.iter();
    let mut found = Vec::new();
    for axis in &mesh.axes {
        let own = if axis.kind == AxisKind::Stage { None } else { decided.next() };
        let Some(own) = own.filter(|_| axis.kind == AxisKind::Ranks && axis.size > 1) else {
            found.push(None);
            continue;
        };
        found.push(Some(Intent::of(&graph, &origins, own)));
        (graph, origins) = left(&graph, &origins, own, axis)?;
    }
    Ok(found)
}

/// What an axis leaves of a graph, and which of its operations are those of the step.
pub fn left(
    graph: &Graph,
    origins: &Origins,
    decided: &Assignment,
    axis: &MeshAxis,
) -> Result<(RankGraph, Origins)> {
    if axis.kind != AxisKind::Ranks {
        // Within micro-batches nothing is decided any more.
        return Ok((divided(graph, decided, axis, 0)?, Origins::default()));
    }
    let (local, ends) = partition_counted(graph, decided, axis)?;
    let origins = origins.within(graph, &local, &ends);
    Ok((local, origins))
}

/// The operations that are of something.
pub fn span(ends: &[usize], at: usize) -> Range<usize> {
    at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]
}
