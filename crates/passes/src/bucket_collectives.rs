//! Bucketing: many small collectives of one kind become one on their tensors joined.
//!
//! It delays those that would start early, so it is done where nothing waits for them: for reductions whose results are used in
//! a later part of the step only (gradients), for those of the optimizer part, and for gathers of state, which can start at
//! any time. A reduction's bucket stands where its last member was, a gather's where its first was.

use base::{Bytes, Id, Result, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{Arg, Graph, Node, NodeId, Patch, Phase, Return, TensorType, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    facts::{Facts, end_values, maker, of_state_alone, users},
    layout::{Layout, memory_order},
};

/// Joins collectives.
pub struct BucketCollectives {
    /// The most bytes that a bucket moves; a larger tensor goes alone.
    pub limit: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    AllReduce,
    Gather,
    Scatter,
}

/// A collective that may be joined with others.
#[derive(Clone, Copy)]
struct Member {
    node: NodeId,
    wait: NodeId,
    kind: Kind,
    operand: ValueId,
    /// What the wait gives.
    result: ValueId,
    size: Bytes,
}

#[derive(Default)]
struct Bucket {
    members: Vec<Member>,
    size: Bytes,
    /// The buckets that a member depends on.
    needs: FixedBitSet,
}

impl Pass for BucketCollectives {
    fn name(&self) -> &'static str {
        "bucket_collectives"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        for bucket in self.buckets(graph).iter().filter(|bucket| bucket.members.len() > 1) {
            patch.label(label(graph, bucket));
            join(graph, &mut patch, &bucket.members);
        }
        Ok(patch)
    }
}

impl BucketCollectives {
    /// Fills buckets in program order. No bucket depends on itself: directly, or by way of others that it would depend on.
    fn buckets(&self, graph: &Graph) -> Vec<Bucket> {
        let context = Context::new(graph);
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut open: FxHashMap<String, usize> = FxHashMap::default();
        // The buckets that each node depends on.
        let mut above: SecondaryMap<NodeId, FixedBitSet> = SecondaryMap::default();
        for id in &graph.order {
            let node = &graph.nodes[*id];
            let mut needs = FixedBitSet::new();
            for maker in node.operands().filter_map(|operand| maker(graph, operand)) {
                union(&mut needs, &above[maker]);
            }
            if let Some(member) = context.member(*id) {
                let key = context.key(&member);
                let closed = closure(&buckets, &needs);
                let fits = |bucket: &usize| {
                    buckets[*bucket].size + member.size <= self.limit && !closed.contains(*bucket)
                };
                let bucket = open.get(&key).copied().filter(fits).unwrap_or(buckets.len());
                if bucket == buckets.len() {
                    buckets.push(Bucket::default());
                    open.insert(key, bucket);
                }
                union(&mut buckets[bucket].needs, &needs);
                buckets[bucket].size += member.size;
                buckets[bucket].members.push(member);
                needs.grow(bucket + 1);
                needs.insert(bucket);
            }
            above[*id] = needs;
        }
        buckets
    }
}

fn union(into: &mut FixedBitSet, from: &FixedBitSet) {
    into.grow(from.len());
    into.union_with(from);
}

/// `needs`, and what those buckets need in turn.
fn closure(buckets: &[Bucket], needs: &FixedBitSet) -> FixedBitSet {
    let mut closed = FixedBitSet::with_capacity(buckets.len());
    let mut todo: Vec<usize> = needs.ones().collect();
    while let Some(bucket) = todo.pop() {
        if !closed.put(bucket) {
            todo.extend(buckets[bucket].needs.ones());
        }
    }
    closed
}

struct Context<'g> {
    graph: &'g Graph,
    facts: Facts<'g>,
    users: SecondaryMap<ValueId, Vec<NodeId>>,
    ends: FixedBitSet,
    alone: FixedBitSet,
}

impl<'g> Context<'g> {
    fn new(graph: &'g Graph) -> Self {
        let facts = Facts::new(graph);
        Self {
            graph,
            users: users(graph),
            ends: end_values(graph),
            alone: of_state_alone(graph, &facts),
            facts,
        }
    }

    /// The collective that node `id` is, if it may be joined with others.
    fn member(&self, id: NodeId) -> Option<Member> {
        let node = &self.graph.nodes[id];
        let kind = match self.graph.op_name(id) {
            "_c10d_functional::all_reduce" => Kind::AllReduce,
            "_c10d_functional::all_gather_into_tensor" => Kind::Gather,
            "_c10d_functional::reduce_scatter_tensor" => Kind::Scatter,
            _ => return None,
        };
        let ([Arg::Value(operand), ..], [Return::Value(started)]) =
            (node.args.as_slice(), node.returns.as_slice())
        else {
            return None;
        };
        let [wait] = self.users[*started][..] else { return None };
        let waiting = &self.graph.nodes[wait];
        let result = waiting.results().next().filter(|_| self.facts.is_wait(waiting))?;
        let larger = if kind == Kind::Gather { result } else { *operand };
        let size = self.graph.ty(larger).bytes();
        let member = Member { node: id, wait, kind, operand: *operand, result, size };
        (!self.ends.contains(started.index()) && self.can_wait(&member) && self.can_be_flat(&member))
            .then_some(member)
    }

    /// Whether nothing is lost when a collective starts with others of its bucket.
    fn can_wait(&self, member: &Member) -> bool {
        let phase = self.graph.nodes[member.node].phase;
        let carried = self.carried(member.result);
        // What leaves the step must not keep a whole bucket's memory alive.
        if carried.iter().any(|value| self.ends.contains(value.index())) {
            return false;
        }
        let for_later = || {
            carried.iter().flat_map(|value| &self.users[*value]).all(|user| {
                let node = &self.graph.nodes[*user];
                node.phase != phase || self.facts.carries(node)
            })
        };
        match member.kind {
            Kind::Gather => self.alone.contains(member.operand.index()),
            Kind::AllReduce | Kind::Scatter => phase == Phase::Optimizer || for_later(),
        }
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
    fn can_be_flat(&self, member: &Member) -> bool {
        let (operand, result) = (self.graph.ty(member.operand), self.graph.ty(member.result));
        let same_order = member.kind == Kind::AllReduce && operand.strides == result.strides;
        result.elements() > 0 && (is_row_major(result) || (same_order && memory_order(result).is_some()))
    }

    /// What the members of a bucket have in common.
    fn key(&self, member: &Member) -> String {
        let node = &self.graph.nodes[member.node];
        let ty = self.graph.ty(member.operand);
        format!("{} {:?} {} {} {:?}", node.op, &node.args[1..], ty.dtype, ty.device, node.phase)
    }
}

fn is_row_major(ty: &TensorType) -> bool {
    ty.strides == ir::contiguous_strides(&ty.shape)
}

/// Says what is joined and why those collectives were there.
fn label(graph: &Graph, bucket: &Bucket) -> String {
    let name = graph.op_name(bucket.members[0].node);
    let short = name.rsplit_once("::").map_or(name, |(_, short)| short);
    let mut reasons: Vec<&str> = Vec::new();
    for label in bucket.members.iter().filter_map(|member| graph.nodes[member.node].label) {
        if !reasons.contains(&graph.labels[label].as_str()) {
            reasons.push(&graph.labels[label]);
        }
    }
    let reasons = if reasons.is_empty() { String::new() } else { format!("; {}", reasons.join("; ")) };
    format!("bucket_collectives: {} {short} of {}{reasons}", bucket.members.len(), bucket.size)
}

/// Replaces `members` by one collective on their tensors joined.
fn join(graph: &Graph, patch: &mut Patch<'_>, members: &[Member]) {
    let kind = members[0].kind;
    let anchor = if kind == Kind::Gather { members[0] } else { members[members.len() - 1] };
    let ranks = ranks(&graph.nodes[anchor.node]);
    let flat: Vec<ValueId> = members.iter().map(|member| flattened(graph, patch, member, ranks)).collect();
    let dim = usize::from(kind == Kind::Scatter);
    let sizes: Vec<i64> = flat.iter().map(|value| patch.ty(*value).shape[dim]).collect();
    let total: i64 = sizes.iter().sum();

    let mut layout = Layout { patch, source: anchor.node };
    let joined = layout.cat(&flat, dim);
    let shape: &[i64] = match kind {
        Kind::AllReduce => &[total],
        Kind::Gather => &[ranks * total],
        Kind::Scatter => &[1, total],
    };
    let ty = TensorType {
        device: layout.patch.ty(joined).device,
        ..TensorType::contiguous(layout.patch.ty(joined).dtype, shape)
    };
    let mut args = graph.nodes[anchor.node].args.clone();
    args[0] = Arg::Value(joined);
    let op = |id: NodeId| graph.ops[graph.nodes[id].op].to_string();
    let started = layout.patch.push_value(anchor.node, &op(anchor.node), args, ty.clone());
    layout.source = anchor.wait;
    let done = layout.patch.push_value(anchor.wait, &op(anchor.wait), vec![Arg::Value(started)], ty);
    let done = if kind == Kind::AllReduce {
        done
    } else {
        layout.view(done, &[shape.iter().product::<i64>() / total, total])
    };
    let parts = layout.split(done, &sizes, usize::from(kind != Kind::AllReduce));
    for (member, part) in members.iter().zip(parts) {
        restore(graph, patch, member, part);
    }
}

/// How many ranks a gather or scatter has; 1 for an all-reduce, whose operator does not say.
fn ranks(node: &Node) -> i64 {
    node.args.iter().find_map(|arg| if let Arg::Int(ranks) = arg { Some(*ranks) } else { None }).unwrap_or(1)
}

/// A member's operand as a vector, or for a scatter as a matrix with a row for each rank.
fn flattened(graph: &Graph, patch: &mut Patch<'_>, member: &Member, ranks: i64) -> ValueId {
    let mut layout = Layout { patch, source: member.node };
    let result = graph.ty(member.result);
    let elements = graph.ty(member.operand).elements() as i64;
    let dims = memory_order(result).filter(|_| !is_row_major(result));
    let ordered = dims.map_or(member.operand, |dims| layout.permute(member.operand, &dims));
    let contiguous = layout.contiguous(ordered);
    match member.kind {
        Kind::Scatter => layout.view(contiguous, &[ranks, elements / ranks]),
        Kind::AllReduce | Kind::Gather => layout.view(contiguous, &[elements]),
    }
}

/// Gives a member's part of the joined result to its users, in its own shape and strides.
fn restore(graph: &Graph, patch: &mut Patch<'_>, member: &Member, part: ValueId) {
    let mut layout = Layout { patch, source: member.wait };
    let result = graph.ty(member.result);
    let dims = memory_order(result).filter(|_| !is_row_major(result));
    let contiguous = layout.contiguous(part);
    let restored = match dims {
        None => layout.view(contiguous, &result.shape),
        Some(dims) => {
            let in_order: Vec<i64> = dims.iter().map(|dim| result.shape[*dim]).collect();
            let mut back = vec![0; dims.len()];
            dims.iter().enumerate().for_each(|(at, dim)| back[*dim] = at);
            let viewed = layout.view(contiguous, &in_order);
            layout.permute(viewed, &back)
        }
    };
    patch.replace(member.result, restored);
    patch.remove(member.wait);
    patch.remove(member.node);
}
