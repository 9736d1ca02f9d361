//! Micro-batches: from the graphs of all iterations to the program that runs them one after the other.
//!
//! Along an axis of micro-batches, iteration `t` computes what rank `t` would along an axis of ranks, so [`partition`] gives the graphs
//! of all iterations, which differ in nothing but numbers. What is the same in all of them is computed once, what differs is computed in a
//! loop, and a collective between the iterations is where a loop ends: a sum is added up while the loop runs, a gather puts the parts side
//! by side when it is over. The loop is written out.

use base::{Diagnostic, Result, SecondaryMap};
use ir::{
    Arg, AxisKind, CollectiveKind, Dims, Graph, Mesh, MeshAxis, NodeId, Part, PartKind, RankGraph, Reduction,
    Return, TensorType, Value, ValueDef, ValueId, contiguous_strides,
};

use rustc_hash::FxHashSet;

use crate::{
    emit::{Emitter, Origin},
    loops::{Loops, Numbers, Role, roles},
    partition::{Assignment, partition},
};

/// The graph of one rank of a mesh: `decide` says what a plan decides along each axis, the outer one first, on the graph that the axes
/// outside it leave. A dimension that two axes shard is made of blocks: each shard of the outer axis is sharded by the inner one.
pub fn partition_mesh(
    graph: &Graph,
    mesh: &Mesh,
    rank: u32,
    decide: impl FnMut(&Graph, &MeshAxis) -> Result<Assignment>,
) -> Result<RankGraph> {
    let along = |graph: &Graph, assignment: &Assignment, axis: &MeshAxis, coordinate| {
        divided(graph, assignment, axis, coordinate).map(Some)
    };
    let whole = along_axes(graph, (mesh, rank), decide, along)?;
    whole.ok_or_else(|| Diagnostic::bug("an axis leaves no graph"))
}

/// The same with the first `count` micro-batches alone, as [`first_iterations`] says.
pub fn partition_mesh_in_part(
    graph: &Graph,
    mesh: &Mesh,
    (rank, count): (u32, u32),
    decide: impl FnMut(&Graph, &MeshAxis) -> Result<Assignment>,
) -> Result<Option<RankGraph>> {
    along_axes(graph, (mesh, rank), decide, |graph, assignment, axis, coordinate| match axis.kind {
        AxisKind::Time => first_iterations(graph, assignment, axis, count),
        AxisKind::Ranks | AxisKind::Stage => divided(graph, assignment, axis, coordinate).map(Some),
    })
}

/// What the axes of a mesh leave of a graph, the outer one first; none where `along` one of them leaves none.
fn along_axes(
    graph: &Graph,
    (mesh, rank): (&Mesh, u32),
    mut decide: impl FnMut(&Graph, &MeshAxis) -> Result<Assignment>,
    along: impl Fn(&Graph, &Assignment, &MeshAxis, u32) -> Result<Option<RankGraph>>,
) -> Result<Option<RankGraph>> {
    let mut graph = graph.clone();
    for (number, axis) in mesh.axes.iter().enumerate() {
        // Stages have parts of the program, not of tensors.
        if axis.kind == AxisKind::Stage {
            continue;
        }
        let assignment = decide(&graph, axis)?;
        if axis.size == 1 {
            continue;
        }
        match along(&graph, &assignment, axis, mesh.coordinate(rank, number))? {
            Some(left) => graph = left,
            None => return Ok(None),
        }
    }
    Ok(Some(graph))
}

/// The graph that an axis leaves of a graph: that of the rank at `coordinate` along it, or the program of all micro-batches.
pub fn divided(
    graph: &Graph,
    assignment: &Assignment,
    axis: &MeshAxis,
    coordinate: u32,
) -> Result<RankGraph> {
    let divided = match axis.kind {
        AxisKind::Ranks => partition(graph, assignment, axis, coordinate)?,
        AxisKind::Time => {
            unroll(graph, (&partition(graph, assignment, axis, 0)?, axis.size), assignment, axis)?
        }
        AxisKind::Stage => return Err(Diagnostic::bug("nothing is sharded along stages")),
    };
    Ok(divided.into_renumbered())
}

/// What an axis of micro-batches leaves, with the first `count` iterations alone: a program of the same operations that takes what the whole one does
/// without the others. None where something else than sums of all iterations is combined, whose shape is that of all.
pub fn first_iterations(
    graph: &Graph,
    assignment: &Assignment,
    axis: &MeshAxis,
    count: u32,
) -> Result<Option<RankGraph>> {
    let first = partition(graph, assignment, axis, 0)?;
    let combines = |id| first.collective(id).filter(|collective| collective.axis == axis.name);
    if first.order.iter().filter_map(|id| combines(*id)).any(|one| one.kind != CollectiveKind::AllReduce) {
        return Ok(None);
    }
    Ok(Some(unroll(graph, (&first, count), assignment, axis)?.into_renumbered()))
}

/// The program of the first `count` iterations along an axis of micro-batches, of which the first one is known.
fn unroll(
    graph: &Graph,
    (first, count): (&Graph, u32),
    assignment: &Assignment,
    axis: &MeshAxis,
) -> Result<RankGraph> {
    let others = (1..count).map(|t| Numbers::of(&partition(graph, assignment, axis, t)?, first));
    let others = others.collect::<Result<Vec<_>>>()?;
    let roles = roles(first, &others, axis, assignment.gathers);
    let loops = Loops::of(first, &roles, axis.size);
    let mut writer = Writer::new(first, &others, &roles);
    for number in 0..=loops.last {
        writer.one(&loops, number);
    }
    writer.finish()
}

/// What a loop has combined so far.
#[derive(Clone, Default)]
struct Collected {
    /// The sum, or another reduction, of what the iterations had.
    reduced: Option<ValueId>,
    /// What each iteration had.
    parts: Vec<ValueId>,
}

struct Writer<'a> {
    /// The first iteration.
    first: &'a Graph,
    /// The others.
    others: &'a [Numbers],
    roles: &'a SecondaryMap<NodeId, Role>,
    out: Graph,
    /// Each value in each iteration; of one that is the same in all, one.
    made: SecondaryMap<ValueId, Vec<ValueId>>,
    collected: SecondaryMap<NodeId, Collected>,
    /// The micro-batch that is written; none for what belongs to all.
    micro_batch: Option<u32>,
}

impl<'a> Writer<'a> {
    fn new(first: &'a Graph, others: &'a [Numbers], roles: &'a SecondaryMap<NodeId, Role>) -> Self {
        let mut out = Graph {
            ops: first.ops.clone(),
            places: first.places.clone(),
            modules: first.modules.clone(),
            labels: first.labels.clone(),
            ..Graph::default()
        };
        let mut made: SecondaryMap<ValueId, Vec<ValueId>> = SecondaryMap::default();
        for input in first.inputs.values() {
            let ty = first.ty(input.value).clone();
            made[input.value] = vec![out.input(input.class, input.name.clone(), ty)];
        }
        Self { first, others, roles, out, made, collected: SecondaryMap::default(), micro_batch: None }
    }

    /// A loop, behind what is computed once before it.
    fn one(&mut self, loops: &Loops, number: u32) {
        let first = self.first;
        let here: Vec<NodeId> = first.order.iter().copied().filter(|id| loops.of[*id] == number).collect();
        let roles = self.roles;
        let of_role = |wanted: fn(Role) -> bool| -> Vec<NodeId> {
            here.iter().copied().filter(|id| wanted(roles[*id])).collect()
        };
        let once = of_role(|role| role == Role::Once);
        let each = self.summed_early(&of_role(|role| matches!(role, Role::Each | Role::Combine(_))));
        let combined = of_role(|role| matches!(role, Role::Combine(_)));
        // What is waited for, the loops before have combined.
        for id in of_role(|role| role == Role::Combined) {
            self.wait(id);
        }
        for id in once {
            self.copy(id, 0);
        }
        for iteration in 0..=self.others.len() {
            self.micro_batch = Some(iteration as u32);
            for id in &each {
                match self.roles[*id] {
                    Role::Combine(kind) => self.collect(*id, kind, iteration),
                    _ => self.copy(*id, iteration),
                }
            }
        }
        self.micro_batch = None;
        for id in combined {
            self.combine(id);
        }
    }

    /// The nodes of a loop with sums right behind what they add up, so that the gradient of one parameter at a time is there twice.
    fn summed_early(&self, each: &[NodeId]) -> Vec<NodeId> {
        let mut sums: SecondaryMap<NodeId, Vec<NodeId>> = SecondaryMap::default();
        let mut moved: SecondaryMap<NodeId, bool> = SecondaryMap::with_default(false);
        let there: FxHashSet<NodeId> = each.iter().copied().collect();
        for id in each.iter().filter(|id| self.is_sum(**id)) {
            if let Some(maker) = self.summed(*id).filter(|maker| there.contains(maker)) {
                sums[maker].push(*id);
                moved[*id] = true;
            }
        }
        let kept = each.iter().filter(|id| !moved[**id]);
        kept.flat_map(|id| std::iter::once(*id).chain(sums[*id].iter().copied()).collect::<Vec<_>>())
            .collect()
    }

    /// Whether a node adds up what the iterations have.
    fn is_sum(&self, id: NodeId) -> bool {
        matches!(self.roles[id], Role::Combine(CollectiveKind::AllReduce | CollectiveKind::ReduceScatter))
    }

    /// What makes the value that a node combines.
    fn summed(&self, id: NodeId) -> Option<NodeId> {
        let first = self.first;
        first.maker(first.nodes[id].operands().next()?)
    }

    /// A value in an iteration.
    fn value(&self, value: ValueId, iteration: usize) -> ValueId {
        let made = &self.made[value];
        made[iteration.min(made.len() - 1)]
    }

    /// Where a node comes from, but for the part that it stands in.
    fn origin_in(&self, id: NodeId) -> Origin {
        Origin::of(&self.first.nodes[id])
    }

    /// Where what comes of a node stands: in the last part of the program, if that is of its kind and micro-batch, and else in a new one.
    fn origin(&mut self, id: NodeId) -> Origin {
        let first = self.first;
        let kind = match first.part_kind(id) {
            // What a gradient goes through on the way to its shard.
            PartKind::Update if self.micro_batch.is_some() => PartKind::Backward,
            kind => kind,
        };
        let wanted = Part { kind, micro_batch: self.micro_batch };
        let known = self.out.parts.ids().next_back().filter(|part| self.out.parts[*part] == wanted);
        let part = known.unwrap_or_else(|| self.out.begin_part_of(wanted));
        Origin { part, ..self.origin_in(id) }
    }

    /// The node of an iteration.
    fn copy(&mut self, id: NodeId, iteration: usize) {
        let origin = self.origin(id);
        let graph = self.first;
        let mut node = graph.nodes[id].clone();
        if let Some(args) = iteration.checked_sub(1).and_then(|other| self.others[other].of_node(id)) {
            node.args.clone_from(args);
        }
        for arg in &mut node.args {
            arg.map_values(|value| self.value(value, iteration));
        }
        let new = self.out.nodes.next_id();
        for (position, value) in graph.nodes[id].results().enumerate() {
            let def = ValueDef::Result(new, position as u32);
            let made = self.out.values.push(Value { ty: graph.ty(value).clone(), def });
            self.made[value].push(made);
        }
        for returned in &mut node.returns {
            match returned {
                Return::None => {}
                Return::Value(value) => *value = self.value(*value, iteration),
                Return::Values(values) => {
                    for value in values {
                        *value = self.value(*value, iteration);
                    }
                }
            }
        }
        node.part = origin.part;
        self.out.nodes.push(node);
        self.out.order.push(new);
    }

    /// Adds what an iteration has to what a loop combines.
    fn collect(&mut self, id: NodeId, kind: CollectiveKind, iteration: usize) {
        let first = self.first;
        let Some(operand) = first.nodes[id].operands().next() else { return };
        let mine = self.value(operand, iteration);
        let before = self.collected[id].reduced;
        let reduced = match kind {
            CollectiveKind::AllReduce | CollectiveKind::ReduceScatter => Some(match before {
                Some(before) => {
                    // In the part that makes what is added.
                    let part = self.summed(id).unwrap_or(id);
                    let origin = Origin { part: self.origin(part).part, ..self.origin_in(id) };
                    let mut emitter = Emitter::new(&mut self.out, origin);
                    match first.collective(id).and_then(|collective| collective.reduction) {
                        Some(Reduction::Max) => emitter.binary("maximum", before, mine),
                        _ => emitter.sum("add", before, mine),
                    }
                }
                None => mine,
            }),
            _ => None,
        };
        let collected = &mut self.collected[id];
        collected.reduced = reduced;
        if reduced.is_none() {
            collected.parts.push(mine);
        }
    }

    /// What a loop has combined.
    fn combine(&mut self, id: NodeId) {
        let (first, count) = (self.first, self.others.len() as i64 + 1);
        let Role::Combine(kind) = self.roles[id] else { return };
        let Collected { reduced, parts } = std::mem::take(&mut self.collected[id]);
        let origin = self.origin(id);
        let mut out = Emitter::new(&mut self.out, origin);
        let slices = |out: &mut Emitter<'_>, of: ValueId| -> Vec<ValueId> {
            let size = out.graph.ty(of).shape[0] / count;
            (0..count).map(|t| out.slice(of, 0, t * size, (t + 1) * size)).collect()
        };
        let made: Vec<ValueId> = match (kind, reduced) {
            (CollectiveKind::AllReduce, Some(all)) => vec![all],
            (CollectiveKind::ReduceScatter, Some(all)) => slices(&mut out, all),
            (CollectiveKind::AllToAll, _) => {
                let pieces: Vec<Vec<ValueId>> = parts.iter().map(|part| slices(&mut out, *part)).collect();
                let of = |t: usize| pieces.iter().map(move |pieces| pieces[t]).collect::<Vec<_>>();
                (0..parts.len()).map(|t| joined(&mut out, &of(t))).collect()
            }
            _ => vec![joined(&mut out, &parts)],
        };
        for value in first.nodes[id].results() {
            self.made[value].clone_from(&made);
        }
    }

    /// A wait for what a loop has combined is nothing: its value is what was combined.
    fn wait(&mut self, id: NodeId) {
        let node = &self.first.nodes[id];
        for (value, combined) in node.results().zip(node.operands()) {
            let made = self.made[combined].clone();
            self.made[value] = made;
        }
    }

    fn finish(mut self) -> Result<RankGraph> {
        let first = self.first;
        let ends = first.updates.iter().map(|(_, value)| value).chain(&first.returns);
        if ends.clone().any(|value| self.made[*value].len() != 1) {
            return Err(Diagnostic::bug("what a loop ends with is another value in each iteration"));
        }
        self.out.updates =
            first.updates.iter().map(|(input, value)| (*input, self.made[*value][0])).collect();
        self.out.returns = first.returns.iter().map(|value| self.made[*value][0]).collect();
        Ok(self.out)
    }
}

/// Tensors one after the other along their first dimension.
fn joined(out: &mut Emitter<'_>, parts: &[ValueId]) -> ValueId {
    let ty = out.ty(parts[0]);
    let mut shape: Dims = ty.shape.clone();
    shape[0] *= parts.len() as i64;
    let ty = TensorType { strides: contiguous_strides(&shape), shape, ..ty };
    let args = vec![Arg::Values(parts.iter().copied().map(Some).collect()), Arg::Int(0)];
    out.op("aten::cat(Tensor[] tensors, int dim=0) -> Tensor", args, ty)
}
