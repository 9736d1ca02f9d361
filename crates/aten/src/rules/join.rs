//! Operations that put tensors together or take them apart.

use ir::{Chunks, Placement};
use smallvec::SmallVec;

use crate::{Call, FactorKind, Factors, Realise, Seed, Strategy, strategy::Slot};

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
    let found = joined(call, seed, ranks, dim, &pieces, matches!(seed.slot, Slot::Operand(_)))?;
    // A number of elements takes nothing apart into one piece, not into several.
    let empty = |(_, chunks): (usize, Chunks)| seed.dim == dim && chunks.leaves_empty();
    let is_empty = found.results[0].chunks(&call.result(0).shape, ranks).is_some_and(empty);
    let in_sizes = matches!(call.node.args.get(1), Some(ir::Arg::Ints(_)));
    (!is_empty || in_sizes).then_some(found)
}

/// The operator of [`one_piece`].
pub const SLICE: &str = "aten::slice.Tensor";

/// The dimension that `slice(x, dim, start, end)` slices, and which of several equal pieces along it it takes; none where it takes none.
pub fn piece_of(call: &Call<'_>) -> Option<(usize, i64)> {
    if call.name() != SLICE || call.int(4).is_some_and(|step| step != 1) {
        return None;
    }
    let dim = call.dim(1, call.operand(0).rank())?;
    let (whole, piece) = (call.size(0, dim)?, call.result_size(0, dim)?);
    let within = |start: i64| (if start < 0 { start + whole } else { start }).clamp(0, whole);
    let start = call.int(2).map_or(0, within);
    let is_piece = 0 < piece && piece < whole && whole % piece == 0 && start % piece == 0;
    is_piece.then(|| (dim, start / piece))
}

/// `slice(x, dim, start, end)` that takes one of several equal pieces along `dim`: where each piece of the whole is sharded, so is the one.
pub fn one_piece(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let (dim, _) = piece_of(call)?;
    if seed.dim != dim || seed.chunk != 0 {
        return None;
    }
    let (whole, piece) = (call.size(0, dim)?, call.result_size(0, dim)?);
    let pieces = u32::try_from(whole / piece).ok()?;
    let blocks = match seed.slot {
        Slot::Operand(_) if seed.blocks.is_multiple_of(pieces) => seed.blocks / pieces,
        Slot::Operand(_) => return None,
        Slot::Result(_) => seed.blocks,
    };
    if piece % i64::from(blocks.checked_mul(ranks)?) != 0 {
        return None;
    }
    let in_blocks = |blocks: u32| Some(Placement::Shard { dim: u8::try_from(dim).ok()?, blocks, chunk: 0 });
    Some(Strategy {
        operands: SmallVec::from_elem(in_blocks(blocks.checked_mul(pieces)?)?, 1),
        results: SmallVec::from_elem(in_blocks(blocks)?, 1),
        realise: Realise::Plain,
    })
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
    if whole_blocks == 0 || piece_blocks == 0 {
        return None;
    }
    if seed.dim == dim && piece_blocks.checked_mul(count) != Some(whole_blocks) {
        return None;
    }
    let chunk = Chunks::new(size, piece_blocks, seed.chunk, ranks)?.chunk;
    let whole = if seed.dim == dim { size.checked_mul(i64::from(count))? } else { size };
    let piece = Placement::in_chunks(seed.dim, piece_blocks, chunk, size, ranks)?;
    let whole = Placement::in_chunks(seed.dim, whole_blocks, chunk, whole, ranks)?;
    let (operands, results) =
        if call.operands.len() > 1 || call.results.len() == 1 { (piece, whole) } else { (whole, piece) };
    Some(Strategy {
        operands: SmallVec::from_elem(operands, call.operands.len()),
        results: SmallVec::from_elem(results, call.results.len()),
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
