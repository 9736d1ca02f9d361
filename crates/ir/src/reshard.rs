//! Changes of placement: which collectives they need.

use base::Bytes;
use smallvec::SmallVec;

use crate::{Collective, CollectiveKind, MeshAxis, Placement, Reduce, Reduction, TensorType};

/// A change of placement.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reshard {
    /// The placement that is there.
    pub from: Placement,
    /// The placement that is wanted.
    pub to: Placement,
}

/// The collectives that a change of placement of a tensor of type `ty` along an axis takes; none where every rank has what it needs;
/// `None` where it cannot be done.
pub fn reshard_steps<'a>(
    ty: &TensorType,
    reshard: Reshard,
    axis: &'a MeshAxis,
) -> Option<SmallVec<[Collective<'a>; 1]>> {
    use Placement::{Partial, Replicate, Shard};
    let whole = ty.bytes();
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
            one(CollectiveKind::AllToAll, Bytes(whole.0 / u64::from(axis.size)))
        }
        // Other blocks of the same dimension, and parts of a sum, go through the whole.
        (Shard { .. }, Replicate | Shard { .. } | Partial(Reduce::Sum | Reduce::Norm)) => {
            one(CollectiveKind::AllGather, whole)
        }
        (Partial(Reduce::Sum), Shard { .. }) => one(CollectiveKind::ReduceScatter, whole),
        (Partial(_), Replicate | Shard { .. }) => one(CollectiveKind::AllReduce, whole),
        (_, Partial(_)) => None,
    }
}
