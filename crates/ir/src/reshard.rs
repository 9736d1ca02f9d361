//! Changes of placement: which collectives they need.

use base::Bytes;
use smallvec::SmallVec;

use crate::{Collective, CollectiveKind, MeshAxis, Placement, Reduce, Reduction, TensorType};

/// A change of placement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reshard {
    /// Current placement.
    pub from: Placement,
    /// Target placement.
    pub to: Placement,
}

/// The collectives that a change of placement along an axis takes for a tensor of global type `ty`: empty where every rank has what it
/// needs, `None` where the change is impossible.
pub fn reshard_steps<'a>(
    ty: &TensorType,
    reshard: Reshard,
    axis: &'a MeshAxis,
) -> Option<SmallVec<[Collective<'a>; 1]>> {
    use Placement::{Partial, Replicate, Shard};
    let global = ty.bytes();
    let none = || Some(SmallVec::new());
    let one = |kind: CollectiveKind, bytes| {
        let reduces = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
        let reduction = reduces.then_some(Reduction::Sum);
        Some(smallvec::smallvec![Collective { kind, reduction, axis: &axis.name, bytes }])
    };
    match (reshard.from, reshard.to) {
        (from, to) if from == to => none(),
        (Replicate, Replicate | Shard { .. } | Partial(Reduce::Sum | Reduce::Norm))
        | (Shard { blocks: 1, .. }, Partial(Reduce::Sum | Reduce::Norm)) => none(),
        (Shard { dim: a, .. }, Shard { dim: b, .. }) if a != b => {
            one(CollectiveKind::AllToAll, Bytes(global.0 / u64::from(axis.size)))
        }
        // Other blocks of the same dimension, and partial values, go through `replicate`.
        (Shard { .. }, Replicate | Shard { .. } | Partial(Reduce::Sum | Reduce::Norm)) => {
            one(CollectiveKind::AllGather, global)
        }
        (Partial(Reduce::Sum), Shard { .. }) => one(CollectiveKind::ReduceScatter, global),
        (Partial(_), Replicate | Shard { .. }) => one(CollectiveKind::AllReduce, global),
        (_, Partial(_)) => None,
    }
}
