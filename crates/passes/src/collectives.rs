//! The collectives of a graph that may be joined with others.

use aten::RunTimeSizes;
use base::{Bytes, Id, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{
    Arg, Collective, CollectiveKind, Graph, Node, NodeId, PartId, Patch, Reduction, Return, TensorType,
    ValueId,
};

use crate::{
    facts::{Facts, Users, end_values, of_state_alone, transfers_before, users},
    layout::{Layout, memory_order},
    recompute::runs_again,
};

/// A collective that may be joined with others.
#[derive(Clone, Copy)]
pub struct Member {
    /// The node that starts it.
    pub node: NodeId,
    /// The node that waits for it.
    pub wait: NodeId,
    /// What it does.
    pub kind: CollectiveKind,
    /// How it reduces.
    pub reduction: Option<Reduction>,
    /// Its operand.
    pub operand: ValueId,
    /// The result of the wait.
    pub result: ValueId,
    /// Bytes of the operand or of the result, whichever are more.
    pub size: Bytes,
    /// The position in the program of that node.
    pub waited: usize,
    /// The position in the program of the first use of the result; views, copies and casts are no uses.
    pub first_use: usize,
    /// How soon its result is needed.
    pub urgency: Urgency,
    /// Whether the result leaves the step, so that it must not keep the memory of its bucket alive.
    pub leaves: bool,
}

/// How soon a result is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// A gather of state.
    Hoistable,
    /// Used in a later part of the step only.
    Later,
    /// Used in its own part of the step.
    Soon,
}

impl Member {
    /// Its operand in another shape, its elements in the order in which those of its result lie in memory.
    pub fn flattened(&self, graph: &Graph, patch: &mut Patch<'_>, shape: &[i64]) -> ValueId {
        let mut layout = Layout { patch, source: self.node };
        let ordered = self.order(graph).map_or(self.operand, |dims| layout.permute(self.operand, &dims));
        let contiguous = layout.contiguous(ordered);
        layout.view(contiguous, shape)
    }

    /// Gives its users the elements of `flat`, a contiguous tensor, in the shape and strides of its result, and takes it out.
    pub fn restore(&self, graph: &Graph, patch: &mut Patch<'_>, flat: ValueId) {
        let mut layout = Layout { patch, source: self.wait };
        let result = graph.ty(self.result);
        let restored = match self.order(graph) {
            None => layout.view(flat, &result.shape),
            Some(dims) => {
                let in_order: Vec<i64> = dims.iter().map(|dim| result.shape[*dim]).collect();
                let viewed = layout.view(flat, &in_order);
                layout.permute(viewed, &ir::inverse(&dims))
            }
        };
        patch.replace(self.result, restored);
        patch.remove(self.wait);
        patch.remove(self.node);
    }

    /// The dimensions of its result from the slowest to the fastest in memory, where that is not their own order.
    fn order(&self, graph: &Graph) -> Option<Vec<usize>> {
        let result = graph.ty(self.result);
        memory_order(result).filter(|_| !is_row_major(result))
    }

    /// What it does, and why it is there.
    pub fn reason(&self, graph: &Graph) -> String {
        let because = graph.nodes[self.node].label.map(|label| format!("; {}", graph.labels[label]));
        format!("{} of {}{}", self.kind, self.size, because.unwrap_or_default())
    }
}

/// What is asked of a graph's collectives.
pub struct Context<'g> {
    graph: &'g Graph,
    facts: Facts,
    users: Users,
    ends: FixedBitSet,
    alone: FixedBitSet,
    positions: SecondaryMap<NodeId, usize>,
    transfers_before: SecondaryMap<NodeId, u32>,
    sizes: RunTimeSizes,
}

impl<'g> Context<'g> {
    /// Reads a verified graph.
    pub fn new(graph: &'g Graph) -> Self {
        let facts = Facts::new(graph);
        let positions = graph.positions();
        let (users, ends, alone) = (users(graph), end_values(graph), of_state_alone(graph, &facts));
        let transfers_before = transfers_before(graph, &facts);
        let sizes = RunTimeSizes::of(graph);
        Self { graph, facts, users, ends, alone, positions, transfers_before, sizes }
    }

    /// The collective that node `id` is, if it may be joined with others.
    pub fn member(&self, id: NodeId) -> Option<Member> {
        let node = &self.graph.nodes[id];
        let Collective { kind, reduction, .. } = self.graph.collective(id)?;
        if matches!(kind, CollectiveKind::AllToAll | CollectiveKind::Permute | CollectiveKind::Broadcast) {
            return None;
        }
        // Together they would hold what each runs again for not to be held.
        if runs_again(self.graph, id) {
            return None;
        }
        let ([Arg::Value(operand), ..], [Return::Value(started)]) =
            (node.args.as_slice(), node.returns.as_slice())
        else {
            return None;
        };
        let [wait] = self.users[*started][..] else { return None };
        let waiting = &self.graph.nodes[wait];
        let result = waiting.results().next().filter(|_| self.facts.is_wait(waiting))?;
        let larger = if kind == CollectiveKind::AllGather { result } else { *operand };
        let size = self.graph.ty(larger).bytes();
        // Of what has as many rows as a router says, nobody knows where it ends in a tensor of several.
        let is_known = !self.sizes.has(*operand) && !self.sizes.has(result);
        if self.ends.contains(started.index()) || !is_known || !self.can_be_flat(kind, *operand, result) {
            return None;
        }
        let carried = self.carried(result);
        let (first_use, urgency) = self.urgency(node.part, &carried);
        let hoistable = kind == CollectiveKind::AllGather && self.alone.contains(operand.index());
        let urgency = if hoistable { Urgency::Hoistable } else { urgency };
        let leaves = carried.iter().any(|value| self.ends.contains(value.index()));
        Some(Member {
            node: id,
            wait,
            waited: self.positions[wait],
            kind,
            reduction,
            operand: *operand,
            result,
            size,
            first_use,
            urgency,
            leaves,
        })
    }

    /// The first use of values that a node of `part` made, and how urgent that is.
    fn urgency(&self, part: PartId, carried: &[ValueId]) -> (usize, Urgency) {
        let users = carried.iter().flat_map(|value| &self.users[*value]);
        let uses = || users.clone().filter(|user| !self.facts.carries(&self.graph.nodes[**user]));
        let first = uses().map(|user| self.positions[*user]).min().unwrap_or(usize::MAX);
        let later = uses().all(|user| self.graph.nodes[*user].part != part);
        (first, if later { Urgency::Later } else { Urgency::Soon })
    }

    /// A value, and what carries it on as a view, a copy or a cast.
    fn carried(&self, value: ValueId) -> Vec<ValueId> {
        let mut carried = vec![value];
        let mut next = 0;
        while next < carried.len() {
            let users = self.users[carried[next]].iter().map(|user| &self.graph.nodes[*user]);
            carried.extend(users.filter(|node| self.facts.carries(node)).flat_map(Node::results));
            next += 1;
        }
        carried
    }

    /// Whether its result can be a view of a joined one with the strides that users expect.
    fn can_be_flat(&self, kind: CollectiveKind, operand: ValueId, result: ValueId) -> bool {
        let (operand, result) = (self.graph.ty(operand), self.graph.ty(result));
        let same_order = kind == CollectiveKind::AllReduce && operand.strides == result.strides;
        result.elements() > 0 && (is_row_major(result) || (same_order && memory_order(result).is_some()))
    }

    /// What the members of a bucket have in common.
    pub fn key(&self, member: &Member) -> String {
        let node = &self.graph.nodes[member.node];
        let ty = self.graph.ty(member.operand);
        let (args, urgency) = (&node.args[1..], member.urgency);
        // What is no gather of state is there before anything of its bucket is used, and so before that is sent.
        let sent = if urgency == Urgency::Hoistable { self.transfers_before[member.node] } else { 0 };
        format!("{} {args:?} {} {} {:?} {urgency:?} {sent}", node.op, ty.dtype, ty.device, node.part)
    }
}

/// Whether strides are those of a new tensor.
fn is_row_major(ty: &TensorType) -> bool {
    ty.strides == ir::contiguous_strides(&ty.shape)
}
