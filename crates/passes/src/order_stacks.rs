//! A stack that is copied into another order is stacked in that order: elements are moved once instead of twice.
//!
//! Backward of `x.view(..).permute(..).unbind()`, as projections to queries, keys and values have it, gives such stacks.

use aten::{Call, Moves};
use base::{Id, Result};
use fixedbitset::FixedBitSet;
use ir::{Arg, Graph, NodeId, Patch, ValueId};

use crate::{
    Pass,
    facts::{Users, end_values, users},
    layout::Layout,
};

/// Stacks tensors with their dimensions in the order in which the stack is copied.
pub struct OrderStacks;

impl Pass for OrderStacks {
    fn name(&self) -> &'static str {
        "order_stacks"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        let found = Found { graph, users: users(graph), ends: end_values(graph) };
        for id in &graph.order {
            let Some(stack) = found.stack(*id) else { continue };
            let ordered = stack.in_order(&mut patch);
            patch.replace(stack.copied, ordered);
            stack.nodes.iter().for_each(|node| patch.remove(*node));
        }
        Ok(patch)
    }
}

/// A stack, a view of it with dimensions in another order, and a copy of that in row-major order.
struct Stack {
    /// The three, each of which the next alone reads.
    nodes: [NodeId; 3],
    tensors: Vec<ValueId>,
    /// Dimension `i` of the copy is dimension `order[i]` of the stack.
    order: Vec<usize>,
    /// The dimension of the stack that the tensors lie along.
    dim: usize,
    copied: ValueId,
}

struct Found<'g> {
    graph: &'g Graph,
    users: Users,
    ends: FixedBitSet,
}

impl Found<'_> {
    /// The stack that a node makes, where it is copied into another order.
    fn stack(&self, id: NodeId) -> Option<Stack> {
        let graph = self.graph;
        aten::row(graph.op_name(id)).filter(|row| row.moves == Some(Moves::Stack))?;
        let (stacked, view) = self.read_once(id)?;
        let order = aten::row(graph.op_name(view))?.strides.order(&Call::new(graph, view))?;
        let (viewed, copy) = self.read_once(view)?;
        let copied = graph.nodes[copy].results().next()?;
        let (from, to) = (graph.ty(viewed), graph.ty(copied));
        let is_copy = aten::row(graph.op_name(copy)).is_some_and(|row| row.copies);
        let is_alike = to.is_contiguous() && from.dtype == to.dtype && from.device == to.device;
        let [Arg::Values(tensors), Arg::Int(dim), ..] = graph.nodes[id].args.as_slice() else { return None };
        let rank = graph.ty(stacked).rank();
        let dim = usize::try_from(if *dim < 0 { dim + rank as i64 } else { *dim }).ok()?;
        (is_copy && is_alike).then_some(Stack {
            nodes: [id, view, copy],
            tensors: tensors.iter().copied().collect::<Option<_>>()?,
            order,
            dim,
            copied,
        })
    }

    /// A node's result and what reads it, where that is one node that does nothing with it but once.
    fn read_once(&self, id: NodeId) -> Option<(ValueId, NodeId)> {
        let result = self.graph.nodes[id].results().next()?;
        let [user] = self.users[result][..] else { return None };
        (!self.ends.contains(result.index())).then_some((result, user))
    }
}

impl Stack {
    /// Adds the stack of reordered tensors.
    fn in_order(&self, patch: &mut Patch<'_>) -> ValueId {
        let graph = patch.base();
        let (stack, source) = (self.nodes[0], self.nodes[2]);
        let within: Vec<usize> = self
            .order
            .iter()
            .filter(|dim| **dim != self.dim)
            .map(|dim| dim - usize::from(*dim > self.dim))
            .collect();
        let mut layout = Layout { patch, source };
        let tensors = self.tensors.iter().map(|tensor| Some(layout.permute(*tensor, &within))).collect();
        let dim = self.order.iter().position(|dim| *dim == self.dim).expect("an order has every dimension");
        let args = vec![Arg::Values(tensors), Arg::Int(dim as i64)];
        let op = graph.ops[graph.nodes[stack].op].to_string();
        patch.push_value(source, &op, args, graph.ty(self.copied).clone())
    }
}
