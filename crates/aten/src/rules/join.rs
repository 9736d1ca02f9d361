//! Operations that put tensors together or take them apart.

use ir::Placement;
use smallvec::SmallVec;

use crate::{
    Call, FactorKind, Factors, Realise, Seed, Strategy,
    strategy::{Slot, divides},
};

/// `cat(tensors, dim)`: other dimensions as they are; `dim` in as many blocks as there are tensors, if these are equal.
pub fn cat(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let dim = call.dim(1, call.result(0).rank())?;
    if call.operands.is_empty()
        || (0..call.operands.len()).any(|i| call.operand(i).rank() != call.result(0).rank())
    {
        return None;
    }
    let pieces: SmallVec<[i64; 4]> =
        (0..call.operands.len()).map(|i| call.size(i, dim)).collect::<Option<_>>()?;
    joined(call, seed, ranks, dim, &pieces, matches!(seed.slot, Slot::Result(_)))
}

/// `split(x, size, dim)` and `split_with_sizes(x, sizes, dim)`.
pub fn split(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let dim = call.dim(2, call.operand(0).rank())?;
    let pieces: SmallVec<[i64; 4]> =
        (0..call.results.len()).map(|i| call.result_size(i, dim)).collect::<Option<_>>()?;
    joined(call, seed, ranks, dim, &pieces, matches!(seed.slot, Slot::Operand(_)))
}

/// The strategy of a join or split along `dim` into `pieces`, from a seed on the joined tensor or on a piece.
fn joined(
    call: &Call<'_>,
    seed: Seed,
    ranks: u32,
    dim: usize,
    pieces: &[i64],
    seed_is_whole: bool,
) -> Option<Strategy> {
    let first = *pieces.first()?;
    let count = u32::try_from(pieces.len()).ok()?;
    let (whole_blocks, piece_blocks) = if seed.dim != dim {
        (seed.blocks, seed.blocks)
    } else if pieces.iter().any(|size| *size != first) {
        return None;
    } else if seed_is_whole {
        (seed.blocks, seed.blocks / count)
    } else {
        (seed.blocks.checked_mul(count)?, seed.blocks)
    };
    let size = if seed.dim == dim { first } else { *call.result(0).shape.get(seed.dim)? };
    if whole_blocks == 0 || piece_blocks == 0 || !divides(size, piece_blocks, ranks) {
        return None;
    }
    if seed.dim == dim && piece_blocks.checked_mul(count) != Some(whole_blocks) {
        return None;
    }
    let shard = |blocks| Placement::Shard { dim: seed.dim as u8, blocks };
    let (operands, results) = if call.operands.len() > 1 || call.results.len() == 1 {
        (piece_blocks, whole_blocks)
    } else {
        (whole_blocks, piece_blocks)
    };
    Some(Strategy {
        operands: SmallVec::from_elem(shard(operands), call.operands.len()),
        results: SmallVec::from_elem(shard(results), call.results.len()),
        realise: Realise::Plain,
    })
}

/// `stack(tensors, dim)`: every dimension of the tensors.
pub fn stack(call: &Call<'_>) -> Option<Factors> {
    let new = call.dim(1, call.result(0).rank())?;
    if call.operands.is_empty() {
        return None;
    }
    with_new_dim(call, new)
}

/// `unbind(x, dim)`: every dimension but the one.
pub fn unbind(call: &Call<'_>) -> Option<Factors> {
    let gone = call.dim(1, call.operand(0).rank())?;
    let mut space = Factors::none(call);
    for (dim, size) in call.operand(0).shape.iter().enumerate().filter(|(dim, _)| *dim != gone) {
        let factor = space.add(*size, FactorKind::Parallel);
        space.operand(0, dim, factor)?;
        space.all_results(dim - usize::from(dim > gone), factor)?;
    }
    Some(space)
}

fn with_new_dim(call: &Call<'_>, new: usize) -> Option<Factors> {
    let mut space = Factors::none(call);
    for (dim, size) in call.operand(0).shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        (0..call.operands.len()).try_for_each(|operand| space.operand(operand, dim, factor))?;
        space.result(0, dim + usize::from(dim >= new), factor)?;
    }
    Some(space)
}
