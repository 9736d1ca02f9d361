//! Matrices whose second dimension is sharded, and which are gathered for products or reduced from one: each rank turns its shard, so that
//! shards lie one after the other in the whole, and the products read or make that turned. Without it the whole matrix is copied into order.

use aten::{Call, Row, Strides};
use base::{Id, Result};
use fixedbitset::FixedBitSet;
use ir::{Arg, CollectiveKind, Dims, Graph, Node, NodeId, Patch, Return, TensorType, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    facts::{Facts, Users, end_values, is_uneven, users},
    layout::Layout,
};

const TURN: &str = "aten::t(Tensor(a) self) -> Tensor(a)";

/// Turns shards instead of whole matrices.
pub struct TurnShards;

impl Pass for TurnShards {
    fn name(&self) -> &'static str {
        "turn_shards"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        let found = Found { graph, facts: Facts::new(graph), users: users(graph), ends: end_values(graph) };
        let mut transpositions = FxHashMap::default();
        for id in graph.order.iter().filter(|id| !is_uneven(graph, **id)) {
            match graph.collective(*id).map(|collective| collective.kind) {
                Some(CollectiveKind::AllGather) => {
                    if let Some(gather) = found.gather(*id).filter(|it| found.is_for_products(it.whole)) {
                        transpositions.insert(gather.whole, found.turn_gather(&gather, &mut patch));
                    }
                }
                Some(CollectiveKind::ReduceScatter) => {
                    if let Some(reduction) = found.reduction(*id) {
                        found.turn_reduction(&reduction, &transpositions, &mut patch);
                    }
                }
                _ => {}
            }
        }
        Ok(patch)
    }
}

/// A gather along the second dimension.
struct Gather {
    /// The collective, its wait, and what puts the shards into order; each is read by the next alone.
    nodes: Vec<NodeId>,
    /// A rank's shard.
    shard: ValueId,
    /// The matrix.
    whole: ValueId,
}

/// A product that is reduced to shards of its second dimension.
struct Reduction {
    /// The product, what puts its shards one after the other, and the collective; each is read by the next alone.
    nodes: Vec<NodeId>,
    wait: NodeId,
}

struct Found<'g> {
    graph: &'g Graph,
    facts: Facts,
    users: Users,
    ends: FixedBitSet,
}

impl Found<'_> {
    /// The gather along the second dimension that a node starts: a wait, a view `[ranks, rows, 1, columns]`, that in the order 1, 2, 0, 3,
    /// a copy, and a view as a matrix.
    fn gather(&self, start: NodeId) -> Option<Gather> {
        let graph = self.graph;
        let shard = operand(&graph.nodes[start])?;
        let [rows, columns] = graph.ty(shard).shape[..] else { return None };
        let ranks = graph.ty(result(&graph.nodes[start])?).shape[0].checked_div(rows)?;
        let mut nodes = vec![start];
        let mut next = |is_it: &dyn Fn(NodeId) -> bool| {
            let user = self.only_user(result(&graph.nodes[*nodes.last()?])?)?;
            is_it(user).then(|| nodes.push(user))
        };
        next(&|id| self.facts.is_wait(&graph.nodes[id]))?;
        next(&|id| self.is_reshaped(id, &[ranks, rows, 1, columns]))?;
        next(&|id| self.order(id).is_some_and(|order| order == [1, 2, 0, 3]))?;
        next(&|id| self.is_copy(id))?;
        next(&|id| self.is_reshaped(id, &[rows, ranks * columns]))?;
        let whole = result(&graph.nodes[*nodes.last()?])?;
        Some(Gather { nodes, shard, whole })
    }

    /// The reduction of a product that a node starts: the product, a view `[rows, 1, ranks, columns]`, that in the order 2, 0, 1, 3, a copy,
    /// and a view as a matrix.
    fn reduction(&self, start: NodeId) -> Option<Reduction> {
        let graph = self.graph;
        let [rows, columns] = graph.ty(result(&graph.nodes[start])?).shape[..] else { return None };
        let ranks = graph.ty(operand(&graph.nodes[start])?).shape[0].checked_div(rows)?;
        let mut nodes = vec![start];
        let mut before = |is_it: &dyn Fn(NodeId) -> bool| {
            let made = operand(&graph.nodes[*nodes.last()?])?;
            let maker = graph.maker(made).filter(|_| self.only_user(made).is_some())?;
            is_it(maker).then(|| nodes.push(maker))
        };
        before(&|id| self.is_reshaped(id, &[ranks * rows, columns]))?;
        before(&|id| self.is_copy(id))?;
        before(&|id| self.order(id).is_some_and(|order| order == [2, 0, 1, 3]))?;
        before(&|id| self.is_reshaped(id, &[rows, 1, ranks, columns]))?;
        before(&|id| self.row(id).is_some_and(|row| *row.matrices == [0, 1]))?;
        nodes.reverse();
        let wait = self.only_user(result(&graph.nodes[start])?)?;
        self.facts.is_wait(&graph.nodes[wait]).then_some(Reduction { nodes, wait })
    }

    /// The one node that reads a value, which goes nowhere else.
    fn only_user(&self, value: ValueId) -> Option<NodeId> {
        let [user] = self.users[value][..] else { return None };
        (!self.ends.contains(value.index())).then_some(user)
    }

    fn row(&self, id: NodeId) -> Option<&'static Row> {
        aten::row(self.graph.op_name(id))
    }

    /// Whether a node looks at a tensor in this shape.
    fn is_reshaped(&self, id: NodeId, shape: &[i64]) -> bool {
        let alike = |value| self.graph.ty(value).shape[..] == *shape;
        self.row(id).is_some_and(|row| row.strides == Strides::Reshaped)
            && result(&self.graph.nodes[id]).is_some_and(alike)
    }

    /// The order that a node puts the dimensions of a tensor into.
    fn order(&self, id: NodeId) -> Option<Vec<usize>> {
        self.row(id)?.strides.order(&Call::new(self.graph, id))
    }

    /// Whether a node copies a tensor as it is into row-major order.
    fn is_copy(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes[id];
        let (Some(from), Some(to)) = (operand(node), result(node)) else { return false };
        let (from, to) = (self.graph.ty(from), self.graph.ty(to));
        self.row(id).is_some_and(|row| row.copies)
            && to.is_contiguous()
            && from.dtype == to.dtype
            && from.device == to.device
    }

    /// Whether only products read a matrix, as it is or transposed.
    fn is_for_products(&self, whole: ValueId) -> bool {
        let multiplies = |user: &NodeId, value: ValueId| {
            let Some(row) = self.row(*user) else { return false };
            let mut args = self.graph.nodes[*user].args.iter().enumerate();
            !row.matrices.is_empty()
                && args.all(|(at, arg)| row.matrices.contains(&at) || *arg != Arg::Value(value))
        };
        let is_end = |value: ValueId| self.ends.contains(value.index());
        !is_end(whole)
            && self.users[whole].iter().all(|user| match self.transposed(*user) {
                Some(turned) => {
                    !is_end(turned) && self.users[turned].iter().all(|user| multiplies(user, turned))
                }
                None => multiplies(user, whole),
            })
    }

    /// The result of a node that transposes a matrix.
    fn transposed(&self, id: NodeId) -> Option<ValueId> {
        (self.order(id)? == [1, 0]).then(|| result(&self.graph.nodes[id])).flatten()
    }

    /// Gathers turned shards; the transposition of the whole, which lies in order.
    fn turn_gather(&self, gather: &Gather, patch: &mut Patch<'_>) -> ValueId {
        let graph = self.graph;
        let (start, wait) = (gather.nodes[0], gather.nodes[1]);
        self.label(start, patch);
        let shard = turned(patch, start, gather.shard);
        let shard = Layout { patch, source: start }.contiguous(shard);
        let whole = graph.ty(gather.whole);
        let started = self.again(patch, start, shard, [whole.shape[1], whole.shape[0]]);
        let waited = self.again(patch, wait, started, [whole.shape[1], whole.shape[0]]);
        let turned = turned(patch, wait, waited);
        for user in &self.users[gather.whole] {
            if let Some(transposed) = self.transposed(*user) {
                patch.replace(transposed, waited);
                patch.remove(*user);
            }
        }
        patch.replace(gather.whole, turned);
        gather.nodes.iter().for_each(|node| patch.remove(*node));
        waited
    }

    /// Makes the transposition of a product and reduces that to turned shards. `transpositions` are those of matrices that lie in order turned.
    fn turn_reduction(
        &self,
        reduction: &Reduction,
        transpositions: &FxHashMap<ValueId, ValueId>,
        patch: &mut Patch<'_>,
    ) {
        let graph = self.graph;
        let (Some(product), Some(start)) = (reduction.nodes.first(), reduction.nodes.last()) else { return };
        let (Some(shard), Some(whole)) =
            (result(&graph.nodes[reduction.wait]), result(&graph.nodes[*product]))
        else {
            return;
        };
        let (whole, part) = (graph.ty(whole), graph.ty(shard));
        self.label(*start, patch);
        let factors: Vec<ValueId> = graph.nodes[*product].operands().collect();
        let turned_factors = factors.iter().rev().map(|factor| {
            let turns = graph.maker(*factor).filter(|maker| self.transposed(*maker).is_some());
            let plain = turns.and_then(|maker| operand(&graph.nodes[maker]));
            let plain = transpositions.get(factor).copied().or(plain);
            Arg::Value(plain.unwrap_or_else(|| turned(patch, *product, *factor)))
        });
        let turned_factors = turned_factors.collect();
        let ty = matrix(whole, [whole.shape[1], whole.shape[0]]);
        let made = patch.push_value(*product, &self.schema(*product), turned_factors, ty);
        let shape = [part.shape[1], part.shape[0]];
        let started = self.again(patch, *start, made, shape);
        let waited = self.again(patch, reduction.wait, started, shape);
        let turned = turned(patch, reduction.wait, waited);
        let ordered = Layout { patch, source: reduction.wait }.contiguous(turned);
        patch.replace(shard, ordered);
        reduction.nodes.iter().chain([&reduction.wait]).for_each(|node| patch.remove(*node));
    }

    /// What is added is named as the collective is.
    fn label(&self, start: NodeId, patch: &mut Patch<'_>) {
        let label = self.graph.nodes[start].label;
        patch.label(label.map_or("turn_shards", |label| &self.graph.labels[label]));
    }

    /// The same operation on another operand, which makes a matrix of another shape.
    fn again(&self, patch: &mut Patch<'_>, id: NodeId, operand: ValueId, shape: [i64; 2]) -> ValueId {
        let ty = matrix(patch.ty(operand), shape);
        Layout { patch, source: id }.again(operand, ty)
    }

    /// The name of a node's operator with its schema.
    fn schema(&self, id: NodeId) -> String {
        let op = &self.graph.ops[self.graph.nodes[id].op];
        format!("{}{}", op.name, op.schema)
    }
}

/// The type of a matrix in row-major order, of the elements of another.
fn matrix(like: &TensorType, shape: [i64; 2]) -> TensorType {
    TensorType { shape: Dims::from_slice(&shape), strides: ir::contiguous_strides(&shape), ..like.clone() }
}

/// A matrix, transposed.
fn turned(patch: &mut Patch<'_>, source: NodeId, value: ValueId) -> ValueId {
    let mut ty = patch.ty(value).clone();
    ty.shape.reverse();
    ty.strides.reverse();
    patch.push_value(source, TURN, vec![Arg::Value(value)], ty)
}

/// The tensor that a node reads first.
fn operand(node: &Node) -> Option<ValueId> {
    let Some(Arg::Value(value)) = node.args.first() else { return None };
    Some(*value)
}

/// The one tensor that a node returns.
fn result(node: &Node) -> Option<ValueId> {
    let [Return::Value(value)] = node.returns[..] else { return None };
    Some(value)
}
