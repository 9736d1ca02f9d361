//! Bucketing: many small collectives of one kind become one on their concatenated tensors.
//!
//! No operation may have to wait longer: a collective joins a bucket only if it comes before the first use of the bucket's results.
//! Collectives whose results only a later part of the step uses (gradients) are kept apart from those that are needed soon. Gathers of
//! state can start at any time, so their bucket takes the position of its first member; other buckets take that of their last. A bucket is waited
//! for where the first of its members was: where the last one was, something that needs the first may stand ahead.

use base::{Bytes, Result, SecondaryMap};
use fixedbitset::FixedBitSet;
use ir::{Arg, CollectiveKind, Graph, Node, NodeId, Patch, TensorType, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    Pass,
    collectives::{Context, Member, Urgency},
    layout::Layout,
};

/// What the name of a bucket begins with.
pub const LABEL: &str = "bucket_collectives: ";

/// Joins collectives.
pub struct BucketCollectives {
    /// Maximum bytes per bucket; a larger tensor is not bucketed.
    pub limit: Bytes,
}

struct Bucket {
    members: Vec<Member>,
    size: Bytes,
    first_use: usize,
    /// The buckets that a member depends on, directly or by way of others.
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
        let members = self.members(graph);
        let mut buckets: Vec<Bucket> = Vec::new();
        let mut open: FxHashMap<usize, usize> = FxHashMap::default();
        // The buckets that each node depends on.
        let mut above: SecondaryMap<NodeId, FixedBitSet> = SecondaryMap::default();
        for (position, id) in graph.order.iter().enumerate() {
            let node = &graph.nodes[*id];
            let mut needs = FixedBitSet::new();
            for maker in node.operands().filter_map(|operand| graph.maker(operand)) {
                union(&mut needs, &above[maker]);
            }
            match members.get(id) {
                Some(Candidate { member, kind, may_join: true }) => {
                    let fits = |bucket: &usize| {
                        let Bucket { size, first_use, .. } = buckets[*bucket];
                        self.fits(member, position, (size, first_use)) && !depends(&buckets, &needs, *bucket)
                    };
                    let bucket = open.get(kind).copied().filter(fits).unwrap_or(buckets.len());
                    if bucket == buckets.len() {
                        buckets.push(Bucket::new());
                        open.insert(*kind, bucket);
                    }
                    add(&mut buckets, bucket, *member, &needs);
                    needs.grow(bucket + 1);
                    needs.insert(bucket);
                }
                Some(Candidate { kind, .. }) => {
                    open.remove(kind);
                }
                None => {}
            }
            above[*id] = needs;
        }
        buckets
    }

    /// Whether a member may join a bucket of such a size, and used first there, as far as what it depends on allows.
    fn fits(&self, member: &Member, position: usize, (size, first_use): (Bytes, usize)) -> bool {
        let is_free = member.urgency == Urgency::Hoistable || position < first_use;
        is_free && size + member.size <= self.limit
    }

    /// What may be joined, and whether it could be with the one of its kind right before or behind it. Most collectives of activations could not,
    /// which leaves few buckets to know the dependencies of.
    fn members(&self, graph: &Graph) -> FxHashMap<NodeId, Candidate> {
        let context = Context::new(graph);
        let mut members: FxHashMap<NodeId, Candidate> = FxHashMap::default();
        let mut kinds: FxHashMap<String, usize> = FxHashMap::default();
        let mut last: FxHashMap<usize, NodeId> = FxHashMap::default();
        for (position, id) in graph.order.iter().enumerate() {
            let Some(member) = context.member(*id) else { continue };
            let next = kinds.len();
            let kind = *kinds.entry(context.key(&member)).or_insert(next);
            let before = last.insert(kind, *id).and_then(|before| members.get_mut(&before));
            let before = before
                .filter(|before| self.fits(&member, position, (before.member.size, before.member.first_use)));
            let may_join = before.is_some();
            if let Some(before) = before {
                before.may_join = true;
            }
            members.insert(*id, Candidate { member, kind, may_join });
        }
        members
    }
}

/// A collective that may be joined with others.
struct Candidate {
    member: Member,
    /// The number of its kind: only what is equal in this is joined.
    kind: usize,
    /// Whether it could be joined with one of the two of its kind that are next to it.
    may_join: bool,
}

impl Bucket {
    const fn new() -> Self {
        Self { members: Vec::new(), size: Bytes(0), first_use: usize::MAX, needs: FixedBitSet::new() }
    }
}

/// Puts a member into a bucket, which from then on depends on what the member depends on.
fn add(buckets: &mut [Bucket], bucket: usize, member: Member, needs: &FixedBitSet) {
    let mut closed = std::mem::take(&mut buckets[bucket].needs);
    union(&mut closed, needs);
    for needed in needs.ones() {
        union(&mut closed, &buckets[needed].needs);
    }
    for other in buckets.iter_mut().filter(|other| other.needs.contains(bucket)) {
        union(&mut other.needs, &closed);
    }
    let it = &mut buckets[bucket];
    it.needs = closed;
    it.members.push(member);
    it.size += member.size;
    it.first_use = it.first_use.min(member.first_use);
}

fn union(into: &mut FixedBitSet, from: &FixedBitSet) {
    into.grow(from.len());
    into.union_with(from);
}

/// Whether what depends on `needs` depends on `bucket`.
fn depends(buckets: &[Bucket], needs: &FixedBitSet, bucket: usize) -> bool {
    needs.contains(bucket) || needs.ones().any(|needed| buckets[needed].needs.contains(bucket))
}

/// The label of a bucket: what it joins, and why those collectives exist.
fn label(graph: &Graph, bucket: &Bucket) -> String {
    let kind = bucket.members[0].kind;
    let mut reasons: Vec<&str> = Vec::new();
    for label in bucket.members.iter().filter_map(|member| graph.nodes[member.node].label) {
        if !reasons.contains(&graph.labels[label].as_str()) {
            reasons.push(&graph.labels[label]);
        }
    }
    let reasons = if reasons.is_empty() { String::new() } else { format!("; {}", reasons.join("; ")) };
    format!("{LABEL}{} {kind} of {}{reasons}", bucket.members.len(), bucket.size)
}

/// Replaces `members` by one collective on their tensors joined.
fn join(graph: &Graph, patch: &mut Patch<'_>, members: &[Member]) {
    let kind = members[0].kind;
    let hoistable = members[0].urgency == Urgency::Hoistable;
    let anchor = if hoistable { members[0] } else { members[members.len() - 1] };
    let wait = members.iter().min_by_key(|member| member.waited).unwrap_or(&anchor).wait;
    let ranks = ranks(&graph.nodes[anchor.node]);
    let flat: Vec<ValueId> = members
        .iter()
        .map(|member| {
            let elements = graph.ty(member.operand).elements() as i64;
            let matrix = [ranks, elements / ranks];
            let shape = if kind == CollectiveKind::ReduceScatter { &matrix[..] } else { &[elements] };
            member.flattened(graph, patch, shape)
        })
        .collect();
    let dim = usize::from(kind == CollectiveKind::ReduceScatter);
    let sizes: Vec<i64> = flat.iter().map(|value| patch.ty(*value).shape[dim]).collect();
    let total: i64 = sizes.iter().sum();

    let mut layout = Layout { patch, source: anchor.node };
    let joined = layout.cat(&flat, dim);
    let shape: &[i64] = match kind {
        CollectiveKind::AllGather => &[ranks * total],
        CollectiveKind::ReduceScatter => &[1, total],
        _ => &[total],
    };
    let ty = TensorType {
        device: layout.patch.ty(joined).device,
        ..TensorType::contiguous(layout.patch.ty(joined).dtype, shape)
    };
    let mut args = graph.nodes[anchor.node].args.clone();
    args[0] = Arg::Value(joined);
    let op = |id: NodeId| graph.ops[graph.nodes[id].op].to_string();
    let started = layout.patch.push_value(anchor.node, &op(anchor.node), args, ty.clone());
    layout.source = wait;
    let done = layout.patch.push_value(wait, &op(wait), vec![Arg::Value(started)], ty);
    let done = if kind == CollectiveKind::AllReduce {
        done
    } else {
        layout.view(done, &[shape.iter().product::<i64>() / total, total])
    };
    let parts = layout.split(done, &sizes, usize::from(kind != CollectiveKind::AllReduce));
    for (member, part) in members.iter().zip(parts) {
        let mut layout = Layout { patch, source: member.wait };
        let own = if member.leaves { layout.copied(part) } else { layout.contiguous(part) };
        member.restore(graph, patch, own);
    }
}

/// The number of ranks of a gather or scatter; 1 for an all-reduce, whose arguments do not have it.
fn ranks(node: &Node) -> i64 {
    node.args.iter().find_map(|arg| if let Arg::Int(ranks) = arg { Some(*ranks) } else { None }).unwrap_or(1)
}
