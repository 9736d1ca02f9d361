//! Matrices whose second dimension is sharded, and which are gathered for products or reduced from one: each rank turns its shard, so that
//! shards lie one after the other in the whole, and the products read or make that turned. Without it the whole matrix is copied into order.

use base::{Id, Result};
use fixedbitset::FixedBitSet;
use ir::{Arg, CollectiveKind, Dims, Graph, Node, NodeId, Patch, Return, TensorType, ValueId};

use crate::{
    Pass,
    facts::{Facts, Users, end_values, is_uneven, users},
    layout::Layout,
};

const TURN: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
const PRODUCT: &str = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
/// The products, which give the same however their operands lie in memory, with the positions of the matrices.
const PRODUCTS: [(&str, [usize; 2]); 2] = [(PRODUCT, [0, 1]), (SUM_AND_PRODUCT, [1, 2])];
const SUM_AND_PRODUCT: &str =
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor";
const VIEW: &str = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
const PERMUTE: &str = "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)";
const CLONE: &str = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor";

/// Turns shards instead of whole matrices.
pub struct TurnShards;

impl Pass for TurnShards {
    fn name(&self) -> &'static str {
        "turn_shards"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        let found = Found { graph, facts: Facts::new(graph), users: users(graph), ends: end_values(graph) };
        for id in graph.order.iter().filter(|id| !is_uneven(graph, **id)) {
            match graph.collective(*id).map(|collective| collective.kind) {
                Some(CollectiveKind::AllGather) => {
                    if let Some(gather) = found.gather(*id).filter(|it| found.is_for_products(it.whole)) {
                        found.turn_gather(&gather, &mut patch);
                    }
                }
                Some(CollectiveKind::ReduceScatter) => {
                    if let Some(reduction) = found.reduction(*id) {
                        found.turn_reduction(&reduction, &mut patch);
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
        let mut next = |is_it: &dyn Fn(&Node) -> bool| {
            let user = self.only_user(result(&graph.nodes[*nodes.last()?])?)?;
            is_it(&graph.nodes[user]).then(|| nodes.push(user))
        };
        next(&|node| self.facts.is_wait(node))?;
        next(&|node| self.is_view(node, &[ranks, rows, 1, columns]))?;
        next(&|node| self.is_permuted(node, [1, 2, 0, 3]))?;
        next(&|node| self.is(node, CLONE))?;
        next(&|node| self.is_view(node, &[rows, ranks * columns]))?;
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
        let mut before = |is_it: &dyn Fn(&Node) -> bool| {
            let made = operand(&graph.nodes[*nodes.last()?])?;
            let maker = graph.maker(made).filter(|_| self.only_user(made).is_some())?;
            is_it(&graph.nodes[maker]).then(|| nodes.push(maker))
        };
        before(&|node| self.is_view(node, &[ranks * rows, columns]))?;
        before(&|node| self.is(node, CLONE))?;
        before(&|node| self.is_permuted(node, [2, 0, 1, 3]))?;
        before(&|node| self.is_view(node, &[rows, 1, ranks, columns]))?;
        before(&|node| self.is(node, PRODUCT))?;
        nodes.reverse();
        let wait = self.only_user(result(&graph.nodes[start])?)?;
        self.facts.is_wait(&graph.nodes[wait]).then_some(Reduction { nodes, wait })
    }

    /// The one node that reads a value, which goes nowhere else.
    fn only_user(&self, value: ValueId) -> Option<NodeId> {
        let [user] = self.users[value][..] else { return None };
        (!self.ends.contains(value.index())).then_some(user)
    }

    /// Whether a node is of the operator with this schema.
    fn is(&self, node: &Node, schema: &str) -> bool {
        schema.split('(').next() == Some(self.graph.ops[node.op].name.as_str())
    }

    fn is_view(&self, node: &Node, shape: &[i64]) -> bool {
        let alike = |value| self.graph.ty(value).shape[..] == *shape;
        self.is(node, VIEW) && result(node).is_some_and(alike)
    }

    fn is_permuted(&self, node: &Node, order: [i64; 4]) -> bool {
        self.is(node, PERMUTE) && node.args.get(1) == Some(&Arg::Ints(order.to_vec()))
    }

    /// Whether only products read a matrix, as it is or transposed.
    fn is_for_products(&self, whole: ValueId) -> bool {
        let multiplies = |user: &NodeId, value: ValueId| {
            let node = &self.graph.nodes[*user];
            let Some((_, matrices)) = PRODUCTS.iter().find(|(name, _)| self.is(node, name)) else {
                return false;
            };
            let mut args = node.args.iter().enumerate();
            args.all(|(at, arg)| matrices.contains(&at) || *arg != Arg::Value(value))
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
        let node = &self.graph.nodes[id];
        self.is(node, TURN).then(|| result(node)).flatten()
    }

    fn turn_gather(&self, gather: &Gather, patch: &mut Patch<'_>) {
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
    }

    fn turn_reduction(&self, reduction: &Reduction, patch: &mut Patch<'_>) {
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
            Arg::Value(plain.unwrap_or_else(|| turned(patch, *product, *factor)))
        });
        let turned_factors = turned_factors.collect();
        let ty = matrix(whole, [whole.shape[1], whole.shape[0]]);
        let made = patch.push_value(*product, PRODUCT, turned_factors, ty);
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
        let node = &self.graph.nodes[id];
        let args = std::iter::once(Arg::Value(operand)).chain(node.args[1..].iter().cloned()).collect();
        let op = &self.graph.ops[node.op];
        let ty = matrix(patch.ty(operand), shape);
        patch.push_value(id, &format!("{}{}", op.name, op.schema), args, ty)
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
