//! Changes of placement: which collectives they need.

use base::Bytes;
use smallvec::SmallVec;

use crate::{Collective, CollectiveKind, MeshAxis, Placement, Reduce, Reduction, TensorType, local_bytes};

/// Ends the label of a change of placement from or to shards of different sizes: its nodes may do nothing, or what others do too, on some
/// ranks only.
pub const UNEVEN: &str = ", uneven";

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
    use Placement::{Groups, Partial, Replicate, Shard};
    let global = ty.bytes();
    // Uneven shards are padded to the largest.
    let padded = |placement| Bytes(local_bytes(ty, placement, axis.size) * u64::from(axis.size));
    let none = || Some(SmallVec::new());
    let one = |kind: CollectiveKind, bytes| {
        let reduces = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::ReduceScatter);
        let reduction = reduces.then_some(Reduction::Sum);
        Some(smallvec::smallvec![Collective { kind, reduction, axis: &axis.name, bytes }])
    };
    match (reshard.from, reshard.to) {
        (from, to) if from == to => none(),
        // What a rank does not have is 0 of a sum, and what it is to have is found among all.
        (Groups { .. }, to) => reshard_steps(ty, Reshard { from: Partial(Reduce::Sum), to }, axis),
        (from, Groups { .. }) => reshard_steps(ty, Reshard { from, to: Replicate }, axis),
        (Replicate, Replicate | Shard { .. } | Partial(Reduce::Sum | Reduce::Norm))
        | (Shard { blocks: 1, .. }, Partial(Reduce::Sum | Reduce::Norm)) => none(),
        (from @ Shard { dim: a, .. }, to @ Shard { dim: b, .. }) if a != b => {
            let (sent, parts) = (local_bytes(ty, from, axis.size), global.0.max(1));
            let widened = u128::from(sent) * u128::from(padded(to).0) / u128::from(parts);
            one(CollectiveKind::AllToAll, Bytes(widened as u64))
        }
        // Other blocks of the same dimension, and partial values, go through `replicate`.
        (from @ Shard { .. }, Replicate | Shard { .. } | Partial(Reduce::Sum | Reduce::Norm)) => {
            one(CollectiveKind::AllGather, padded(from))
        }
        (Partial(Reduce::Sum), to @ Shard { .. }) => one(CollectiveKind::ReduceScatter, padded(to)),
        (Partial(_), Replicate | Shard { .. }) => one(CollectiveKind::AllReduce, global),
        (_, Partial(_)) => None,
    }
}
