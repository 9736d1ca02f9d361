//! What is gathered along the second dimension of a matrix, for products alone: each rank turns its shard before, so that shards lie one
//! after the other in what is gathered, and the products read that turned. Without it the whole matrix is copied into order.

use base::Result;
use ir::{Arg, CollectiveKind, Dims, Graph, Node, NodeId, Patch, Return, TensorType, ValueId};

use crate::{
    Pass,
    facts::{Facts, Users, end_values, users},
    layout::Layout,
};

const TURN: &str = "aten::t(Tensor(a) self) -> Tensor(a)";
/// The products, which give the same however their operands lie in memory, with the positions of the matrices.
const PRODUCTS: [(&str, [usize; 2]); 2] = [("aten::mm", [0, 1]), ("aten::addmm", [1, 2])];

/// Turns shards instead of whole matrices.
pub struct TurnGathers;

impl Pass for TurnGathers {
    fn name(&self) -> &'static str {
        "turn_gathers"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        let found = Found { graph, facts: Facts::new(graph), users: users(graph) };
        let ends = end_values(graph);
        for id in &graph.order {
            let Some(gather) = found.gather(*id) else { continue };
            if !ends.contains(base::Id::index(gather.whole)) && found.is_for_products(gather.whole) {
                found.turn(&gather, &mut patch);
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

struct Found<'g> {
    graph: &'g Graph,
    facts: Facts,
    users: Users,
}

impl Found<'_> {
    /// The gather along the second dimension that a node starts: a wait, a view `[ranks, rows, 1, columns]`, that in the order 1, 2, 0, 3,
    /// a copy, and a view as a matrix.
    fn gather(&self, start: NodeId) -> Option<Gather> {
        let graph = self.graph;
        if graph.collective(start)?.kind != CollectiveKind::AllGather {
            return None;
        }
        let Some(Arg::Value(shard)) = graph.nodes[start].args.first() else { return None };
        let [rows, columns] = graph.ty(*shard).shape[..] else { return None };
        let mut nodes = vec![start];
        let mut next = |is_it: &dyn Fn(&Node) -> bool| {
            let node = self.only_user(result(&graph.nodes[*nodes.last()?])?)?;
            is_it(&graph.nodes[node]).then(|| nodes.push(node))
        };
        let is = |node: &Node, name: &str| graph.ops[node.op].name == name;
        let of_shape = |node: &Node, shape: &[i64]| {
            is(node, "aten::view") && result(node).is_some_and(|value| graph.ty(value).shape[..] == *shape)
        };
        next(&|node| self.facts.is_wait(node))?;
        let ranks = graph.ty(result(&graph.nodes[start])?).shape[0] / rows.max(1);
        next(&|node| of_shape(node, &[ranks, rows, 1, columns]))?;
        next(&|node| is(node, "aten::permute") && node.args.get(1) == Some(&Arg::Ints(vec![1, 2, 0, 3])))?;
        next(&|node| is(node, "aten::clone"))?;
        next(&|node| of_shape(node, &[rows, ranks * columns]))?;
        let whole = result(&graph.nodes[*nodes.last()?])?;
        Some(Gather { nodes, shard: *shard, whole })
    }

    fn only_user(&self, value: ValueId) -> Option<NodeId> {
        let [user] = self.users[value][..] else { return None };
        Some(user)
    }

    /// Whether only products read a matrix, as it is or transposed.
    fn is_for_products(&self, whole: ValueId) -> bool {
        let multiplies = |user: &NodeId, value: ValueId| {
            let node = &self.graph.nodes[*user];
            let product = PRODUCTS.iter().find(|(name, _)| self.graph.ops[node.op].name == *name);
            let is_matrix = |at: usize| product.is_some_and(|(_, positions)| positions.contains(&at));
            node.args.iter().enumerate().all(|(at, arg)| is_matrix(at) || *arg != Arg::Value(value))
                && product.is_some()
        };
        self.users[whole].iter().all(|user| match self.transposed(*user) {
            Some(turned) => self.users[turned].iter().all(|user| multiplies(user, turned)),
            None => multiplies(user, whole),
        })
    }

    /// The result of a node that transposes a matrix.
    fn transposed(&self, id: NodeId) -> Option<ValueId> {
        let node = &self.graph.nodes[id];
        (self.graph.ops[node.op].name == "aten::t").then(|| result(node)).flatten()
    }

    fn turn(&self, gather: &Gather, patch: &mut Patch<'_>) {
        let graph = self.graph;
        let (start, wait) = (gather.nodes[0], gather.nodes[1]);
        patch.label(graph.nodes[start].label.map_or("turn_gathers", |label| &graph.labels[label]));
        let shard = turned(patch, start, gather.shard);
        let shard = Layout { patch, source: start }.contiguous(shard);
        let [columns, rows] = patch.ty(shard).shape[..] else { return };
        let ranks = graph.ty(gather.whole).shape[1] / columns;
        let shape = [ranks * columns, rows];
        let ty = TensorType {
            shape: Dims::from_slice(&shape),
            strides: ir::contiguous_strides(&shape),
            ..patch.ty(shard).clone()
        };
        let again = |patch: &mut Patch<'_>, id: NodeId, operand: ValueId| {
            let node = &graph.nodes[id];
            let args = std::iter::once(Arg::Value(operand)).chain(node.args[1..].iter().cloned()).collect();
            let op = &graph.ops[node.op];
            patch.push_value(id, &format!("{}{}", op.name, op.schema), args, ty.clone())
        };
        let started = again(patch, start, shard);
        let waited = again(patch, wait, started);
        let whole = turned(patch, wait, waited);
        for user in &self.users[gather.whole] {
            if let Some(transposed) = self.transposed(*user) {
                patch.replace(transposed, waited);
                patch.remove(*user);
            }
        }
        patch.replace(gather.whole, whole);
        gather.nodes.iter().for_each(|node| patch.remove(*node));
    }
}

/// A matrix, transposed.
fn turned(patch: &mut Patch<'_>, source: NodeId, value: ValueId) -> ValueId {
    let mut ty = patch.ty(value).clone();
    ty.shape.reverse();
    ty.strides.reverse();
    patch.push_value(source, TURN, vec![Arg::Value(value)], ty)
}

/// The one tensor that a node returns.
fn result(node: &Node) -> Option<ValueId> {
    let [Return::Value(value)] = node.returns[..] else { return None };
    Some(value)
}
