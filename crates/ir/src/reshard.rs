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

/// A change of placement into groups or out of them that is done at once; others go through `replicate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupChange {
    /// Of all elements a rank takes its own.
    Own,
    /// A rank puts its own among zeros, and the value is the sum.
    AmongZeros,
    /// Every rank gets the elements of all.
    Gather,
    /// From equal shards of the same dimension. Both are in the order of that dimension, so that only what groups are unequally large by is sent
    /// to another rank; it counts as if all were.
    FromShards,
    /// Back to them.
    ToShards,
    /// From equal shards of another dimension.
    FromColumns,
    /// Back to them.
    ToColumns,
}

/// How a tensor of global type `ty` is put into groups or out of them over `ranks`, if that is done at once.
pub fn group_change(ty: &TensorType, reshard: Reshard, ranks: u32) -> Option<GroupChange> {
    use Placement::{Groups, Partial, Replicate, Shard};
    let is_even = |placement: Placement| !placement.is_uneven(&ty.shape, ranks);
    match (reshard.from, reshard.to) {
        (Replicate, Groups { .. }) => Some(GroupChange::Own),
        (Groups { .. }, Partial(Reduce::Sum)) => Some(GroupChange::AmongZeros),
        (Groups { .. }, Replicate) => Some(GroupChange::Gather),
        (Shard { dim: a, blocks: 1, chunk: 0 }, Groups { dim: b }) if a == b => Some(GroupChange::FromShards),
        (Groups { dim: a }, Shard { dim: b, blocks: 1, chunk: 0 }) if a == b => Some(GroupChange::ToShards),
        (from @ Shard { dim: a, blocks: 1, chunk: 0 }, Groups { dim: b }) if a != b && is_even(from) => {
            Some(GroupChange::FromColumns)
        }
        (Groups { dim: a }, to @ Shard { dim: b, blocks: 1, chunk: 0 }) if a != b && is_even(to) => {
            Some(GroupChange::ToColumns)
        }
        _ => None,
    }
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
        (Groups { .. }, _) | (_, Groups { .. }) => match group_change(ty, reshard, axis.size) {
            Some(GroupChange::Own | GroupChange::AmongZeros) => none(),
            Some(GroupChange::Gather) => one(CollectiveKind::AllToAll, global),
            Some(GroupChange::FromShards | GroupChange::FromColumns) => {
                one(CollectiveKind::AllToAll, Bytes(local_bytes(ty, reshard.from, axis.size)))
            }
            Some(GroupChange::ToShards | GroupChange::ToColumns) => {
                one(CollectiveKind::AllToAll, Bytes(local_bytes(ty, reshard.to, axis.size)))
            }
            None => {
                let mut steps = reshard_steps(ty, Reshard { to: Replicate, ..reshard }, axis)?;
                steps.extend(reshard_steps(ty, Reshard { from: Replicate, ..reshard }, axis)?);
                Some(steps)
            }
        },
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dims, Dtype};

    #[test]
    fn groups_are_exchanged_for_shards_and_what_is_whole_or_a_sum_needs_no_collective() {
        let ty = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[16, 8]));
        let axis = MeshAxis::ranks("a", 4);
        let groups = Placement::Groups { dim: 0 };
        let steps = |from, to| -> Vec<(CollectiveKind, u64)> {
            let steps = reshard_steps(&ty, Reshard { from, to }, &axis).expect("a change that is possible");
            steps.iter().map(|step| (step.kind, step.bytes.0)).collect()
        };
        let (whole, sum) = (Placement::Replicate, Placement::Partial(Reduce::Sum));
        assert_eq!(steps(whole, groups), []);
        assert_eq!(steps(groups, sum), []);
        // A rank's share of the rows, a rank's columns of all rows, and all rows to all.
        assert_eq!(steps(Placement::shard(0), groups), [(CollectiveKind::AllToAll, 128)]);
        assert_eq!(steps(groups, Placement::shard(1)), [(CollectiveKind::AllToAll, 128)]);
        assert_eq!(steps(groups, whole), [(CollectiveKind::AllToAll, 512)]);
        assert_eq!(steps(sum, groups), [(CollectiveKind::AllReduce, 512)]);
        // Where shards are unequal, as of 6 columns, it takes the whole.
        let odd = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[16, 6]));
        let steps = reshard_steps(&odd, Reshard { from: Placement::shard(1), to: groups }, &axis);
        assert_eq!(steps.expect("a change that is possible")[0].kind, CollectiveKind::AllGather);
    }
}
