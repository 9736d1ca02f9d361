//! Direct collectives: each rank sends what it has straight to each other rank, in one round, and reduces what it gets itself.
//!
//! A library that goes around a ring passes each byte on once per rank and waits for every round, which is least to send; for
//! small tensors the rounds are what takes the time. From which size on which is faster follows from the cluster's links.

use std::collections::BTreeMap;

use base::{Bytes, Result};
use ir::{Arg, CollectiveKind, Dtype, Graph, NodeId, Patch, Reduction, TensorType, ValueId};
use serde::{Deserialize, Serialize};

use crate::{
    Pass,
    collectives::{Context, Member},
    layout::Layout,
};

/// Up to which size the collectives among `ranks` ranks are direct; sizes are of the global tensor.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Direct {
    /// The number of ranks.
    pub ranks: u32,
    /// Maximum bytes of a direct all-reduce.
    pub all_reduce: Bytes,
    /// Maximum bytes of a direct gather.
    pub all_gather: Bytes,
    /// Maximum bytes of a direct reduce-scatter.
    pub reduce_scatter: Bytes,
}

impl Direct {
    /// The same without what is larger than a bucket: an exchange holds the parts of all ranks at once.
    #[must_use]
    pub fn at_most(self, bucket: Bytes) -> Self {
        Self {
            all_reduce: self.all_reduce.min(bucket),
            all_gather: self.all_gather.min(bucket),
            reduce_scatter: self.reduce_scatter.min(bucket),
            ..self
        }
    }
}

/// Limits by the name of the mesh axis.
pub type DirectAxes = BTreeMap<String, Direct>;

/// Writes small collectives as an all-to-all and a local reduction.
pub struct DirectCollectives {
    /// Up to which size, by axis.
    pub direct: DirectAxes,
}

/// The labels of exchanges begin with it; the collective that each stands for follows.
pub const LABEL: &str = "direct_collectives: ";

/// The collective that a node with this label is the direct form of, if it is one.
pub fn direct_form_of(label: &str) -> Option<&str> {
    label.strip_prefix(LABEL)?.split(' ').next()
}

const SUM: &str = "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor";
const MAX: &str = "aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor";

impl Pass for DirectCollectives {
    fn name(&self) -> &'static str {
        "direct_collectives"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        let context = Context::new(graph);
        for member in graph.order.iter().filter_map(|id| context.member(*id)) {
            let axis = graph.collective(member.node).map_or("", |it| it.axis);
            if let Some(direct) = self.direct.get(axis).filter(|direct| direct.takes(graph, &member)) {
                patch.label(format!("{LABEL}{}", member.reason(graph)));
                direct.exchange(graph, &mut patch, &member);
            }
        }
        Ok(patch)
    }
}

impl Direct {
    /// Whether a collective is small enough, and its reduction can be done here.
    fn takes(&self, graph: &Graph, member: &Member) -> bool {
        let limit = match member.kind {
            CollectiveKind::AllReduce => self.all_reduce,
            CollectiveKind::AllGather => self.all_gather,
            CollectiveKind::ReduceScatter => self.reduce_scatter,
            CollectiveKind::AllToAll | CollectiveKind::Permute | CollectiveKind::Broadcast => return false,
        };
        // A sum of integers would be of another type.
        let can_be_summed =
            matches!(graph.ty(member.operand).dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::Bf16);
        let can_be_reduced = match member.reduction {
            Some(Reduction::Sum) => can_be_summed,
            Some(Reduction::Max) => true,
            None => member.kind == CollectiveKind::AllGather,
        };
        member.size <= limit && can_be_reduced
    }

    fn exchange(&self, graph: &Graph, patch: &mut Patch<'_>, member: &Member) {
        let ranks = i64::from(self.ranks);
        let flat = member.flattened(graph, patch, &[graph.ty(member.operand).elements() as i64]);
        let (start, wait) = (member.node, member.wait);
        let mut layout = Layout { patch, source: start };
        let sent = match member.kind {
            CollectiveKind::ReduceScatter => flat,
            _ => layout.cat(&vec![flat; self.ranks as usize], 0),
        };
        let ty = layout.patch.ty(sent).clone();
        let part = ty.shape[0] / ranks;
        let splits = vec![part; self.ranks as usize];
        let group = graph.nodes[start].args.last().expect("a collective has a group").clone();
        let args = vec![Arg::Value(sent), Arg::Ints(splits.clone()), Arg::Ints(splits), group];
        let started = layout.patch.push_value(start, CollectiveKind::AllToAll.schema(), args, ty.clone());
        let of_wait = graph.ops[graph.nodes[wait].op].to_string();
        let received = layout.patch.push_value(wait, &of_wait, vec![Arg::Value(started)], ty);
        layout.source = wait;
        let done = match member.reduction {
            None => received,
            Some(reduction) => {
                let parts = layout.view(received, &[ranks, part]);
                reduced(patch, wait, parts, reduction)
            }
        };
        member.restore(graph, patch, done);
    }
}

/// The sum, or the largest, of the rows of a matrix.
fn reduced(patch: &mut Patch<'_>, source: NodeId, parts: ValueId, reduction: Reduction) -> ValueId {
    let matrix = patch.ty(parts);
    let ty = TensorType {
        device: matrix.device,
        ..TensorType::contiguous(matrix.dtype, std::slice::from_ref(&matrix.shape[1]))
    };
    let mut args = vec![Arg::Value(parts), Arg::Ints(vec![0]), Arg::Bool(false)];
    if reduction == Reduction::Max {
        return patch.push_value(source, MAX, args, ty);
    }
    args.push(Arg::None);
    patch.push_value(source, SUM, args, ty)
}
