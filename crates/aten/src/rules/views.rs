//! Operations that only look at elements in another order or shape.

use ir::{Chunks, Placement, TensorType};
use smallvec::SmallVec;

use crate::{Call, FactorKind, Factors, Realise, Seed, Strategy, strategy::Slot};

/// `view` and its like: a sharding is known by how many equal pieces of row-major memory it takes turns through, blocks times the sizes
/// of the dimensions before; the other side's sharding is the one with the same number of pieces, and with as much memory of each piece on
/// each rank.
pub fn reshape(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let (from, to) = match seed.slot {
        Slot::Operand(_) => (call.operand(0), call.result(0)),
        Slot::Result(_) => (call.result(0), call.operand(0)),
    };
    let chunks = seed.chunks(&from.shape, ranks)?;
    let here = Placement::in_chunks(seed.dim, seed.blocks, chunks.chunk, from.shape[seed.dim], ranks)?;
    let there = same_pieces(from, seed.dim, chunks, to, ranks)?;
    let (operand, result) = match seed.slot {
        Slot::Operand(_) => (here, there),
        Slot::Result(_) => (there, here),
    };
    Some(Strategy {
        operands: SmallVec::from_elem(operand, 1),
        results: SmallVec::from_elem(result, 1),
        realise: Realise::Plain,
    })
}

/// The sharding of `to` that takes turns through as many pieces, in chunks of as much memory, as that of `from` by `dim`.
fn same_pieces(
    from: &TensorType,
    dim: usize,
    chunks: Chunks,
    to: &TensorType,
    ranks: u32,
) -> Option<Placement> {
    let pieces = chunks.blocks * from.shape[..dim].iter().product::<i64>();
    let memory = chunks.chunk * from.shape[dim + 1..].iter().product::<i64>();
    let mut before = 1;
    for (dim, size) in to.shape.iter().enumerate() {
        if *size > 1
            && before > 0
            && pieces % before == 0
            && pieces > 0
            && *size % (pieces / before).max(1) == 0
        {
            let blocks = u32::try_from(pieces / before).ok()?;
            let after: i64 = to.shape[dim + 1..].iter().product();
            let fits = after > 0 && memory % after == 0;
            let there = fits.then(|| Placement::in_chunks(dim, blocks, memory / after, *size, ranks));
            if let Some(Some(placement)) = there {
                return Some(placement);
            }
        }
        before *= size;
        if before > pieces {
            return None;
        }
    }
    None
}

/// One result dimension for each operand dimension, in the order that `order` gives: `order[result dimension] = operand dimension`.
fn reordered(call: &Call<'_>, order: impl Iterator<Item = Option<usize>>) -> Option<Factors> {
    let mut space = Factors::none(call);
    for (dim, size) in call.operand(0).shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        space.operand(0, dim, factor)?;
    }
    let rank = call.operand(0).rank();
    for (result_dim, operand_dim) in order.enumerate() {
        *space.results.first_mut()?.get_mut(result_dim)? = operand_dim.filter(|dim| *dim < rank);
    }
    // A dimension that the result does not have cannot be sharded.
    for (dim, slot) in space.operands[0].iter_mut().enumerate() {
        if !space.results[0].contains(&Some(dim)) {
            *slot = None;
        }
    }
    Some(space)
}

/// `t`.
pub fn t(call: &Call<'_>) -> Option<Factors> {
    let rank = call.operand(0).rank();
    reordered(call, (0..rank).rev().map(Some))
}

/// `transpose(x, a, b)`.
pub fn transpose(call: &Call<'_>) -> Option<Factors> {
    let rank = call.operand(0).rank();
    if rank == 0 {
        return None;
    }
    let (a, b) = (call.dim(1, rank)?, call.dim(2, rank)?);
    let swapped = move |dim| {
        if dim == a {
            b
        } else if dim == b {
            a
        } else {
            dim
        }
    };
    reordered(call, (0..rank).map(move |dim| Some(swapped(dim))))
}

/// `permute(x, dims)`.
pub fn permute(call: &Call<'_>) -> Option<Factors> {
    let dims = call.dims(1, call.operand(0).rank());
    reordered(call, dims.into_iter().map(Some))
}

/// `unsqueeze(x, dim)`.
pub fn unsqueeze(call: &Call<'_>) -> Option<Factors> {
    let new = call.dim(1, call.result(0).rank())?;
    let old = move |dim: usize| if dim < new { Some(dim) } else { dim.checked_sub(1).filter(|_| dim != new) };
    reordered(call, (0..call.result(0).rank()).map(old))
}

/// `squeeze(x, dim)` and `squeeze(x, dims)`: dimensions that are named but not of size 1 stay, and cannot be sharded: a shard of
/// size 1 would be squeezed.
pub fn squeeze(call: &Call<'_>) -> Option<Factors> {
    let operand = call.operand(0);
    let named = call.named_dims(1, operand.rank());
    let stays = |dim: &usize| !(named.contains(dim) && operand.shape[*dim] == 1);
    let order = (0..operand.rank()).filter(stays).map(|dim| (!named.contains(&dim)).then_some(dim));
    reordered(call, order.collect::<Vec<_>>().into_iter())
}

/// `expand(x, sizes)`: a dimension that is repeated cannot be sharded on either side; others are factors.
pub fn expand(call: &Call<'_>) -> Option<Factors> {
    let (operand, result) = (call.operand(0), call.result(0));
    let new = result.rank().checked_sub(operand.rank())?;
    let mut space = Factors::none(call);
    for (dim, size) in result.shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        space.result(0, dim, factor)?;
        if dim >= new && operand.shape[dim - new] == *size {
            space.operand(0, dim - new, factor)?;
        }
    }
    Some(space)
}

/// `select(x, dim, index)`.
pub fn select(call: &Call<'_>) -> Option<Factors> {
    let gone = call.dim(1, call.operand(0).rank())?;
    reordered(call, (0..call.operand(0).rank()).filter(move |dim| *dim != gone).map(Some))
}

/// Operations that work along some dimensions only, and keep all: the others are factors.
fn all_but(call: &Call<'_>, along: &[usize]) -> Factors {
    Factors::shared(call, (0..call.operand(0).rank()).filter(|dim| !along.contains(dim)))
}

/// `slice(x, dim, ...)`, `flip`, `cumsum(x, dim)`, `sort(x, dim)`: everything but the dimension in argument 1.
pub fn along_arg_1(call: &Call<'_>) -> Option<Factors> {
    Some(all_but(call, &call.dims(1, call.operand(0).rank())))
}

/// `topk(x, k, dim)`, `slice_backward(grad, sizes, dim, ...)`, `slice_scatter(x, source, dim)`: everything but the dimension in argument 2.
pub fn along_arg_2(call: &Call<'_>) -> Option<Factors> {
    Some(all_but(call, &[call.dim(2, call.operand(0).rank())?]))
}

/// `roll(x, shifts, dims)`: dimensions that are not rolled; none where it rolls all elements in a row. `rot90(x, k, dims)`: the others.
pub fn roll(call: &Call<'_>) -> Option<Factors> {
    Some(all_but(call, &call.dims(2, call.operand(0).rank())))
}

/// `select_backward(grad, sizes, dim, index)`.
pub fn select_backward(call: &Call<'_>) -> Option<Factors> {
    let new = call.dim(2, call.result(0).rank())?;
    let old = move |dim: usize| if dim < new { Some(dim) } else { dim.checked_sub(1).filter(|_| dim != new) };
    reordered(call, (0..call.result(0).rank()).map(old))
}

/// `constant_pad_nd(x, pad, value)`: dimensions that are not padded.
pub fn pad(call: &Call<'_>) -> Option<Factors> {
    let rank = call.operand(0).rank();
    let pads = call.ints(1)?;
    let padded = |dim: &usize| pads.get(2 * (rank - 1 - dim)..2 * (rank - dim)).is_some_and(|p| p != [0, 0]);
    Some(all_but(call, &(0..rank).filter(padded).collect::<Vec<_>>()))
}

/// `repeat(x, repeats)`: dimensions that are not repeated.
pub fn repeat(call: &Call<'_>) -> Option<Factors> {
    let repeats = call.ints(1)?;
    let new = repeats.len().checked_sub(call.operand(0).rank())?;
    let mut space = Factors::none(call);
    for (dim, size) in call.operand(0).shape.iter().enumerate().filter(|(dim, _)| repeats[dim + new] == 1) {
        let factor = space.add(*size, FactorKind::Parallel);
        space.operand(0, dim, factor)?;
        space.result(0, dim + new, factor)?;
    }
    Some(space)
}

/// `tril(x, diagonal)`, which depends on where an element is in its matrix: the dimensions before the last two.
pub fn of_matrices(call: &Call<'_>) -> Option<Factors> {
    Some(Factors::shared(call, 0..call.operand(0).rank().checked_sub(2)?))
}
