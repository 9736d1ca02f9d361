//! Collectives along one mesh axis, as operations to be sharded along another: the parts that an outer axis makes of a tensor are blocks
//! to an inner one.

use ir::{Arg, CollectiveKind, Placement, TensorType};
use smallvec::SmallVec;

use crate::{Call, Realise, Seed, Strategy, strategy::Slot};

/// `all_gather_into_tensor(x, n, group)`: dimension 0 of the result is made of `n` blocks, each an operand.
pub fn all_gather(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    joined(call, seed, ranks, (1, u32::try_from(call.int(1)?).ok()?))
}

/// `reduce_scatter_tensor(x, op, n, group)`: dimension 0 of the operand is made of `n` blocks, each a result.
pub fn reduce_scatter(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    joined(call, seed, ranks, (u32::try_from(call.int(2)?).ok()?, 1))
}

/// `all_to_all_single(x, sizes, sizes, group)`: dimension 0 is made of as many parts, all equal, on both sides; or it is one part that goes to
/// one rank, and stays whole.
pub fn all_to_all(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    if call.graph.collective(call.id)?.kind == CollectiveKind::Permute {
        return if seed.dim == 0 { None } else { joined(call, seed, ranks, (1, 1)) };
    }
    let (received, sent) = (call.ints(1)?, call.ints(2)?);
    let first = received.first()?;
    let equal = received.iter().chain(sent).all(|part| part == first);
    let parts = u32::try_from(received.len()).ok()?;
    if equal { joined(call, seed, ranks, (parts, parts)) } else { None }
}

/// Every dimension as it is, but dimension 0, which is made of the given numbers of blocks in the operand and in the result.
fn joined(call: &Call<'_>, seed: Seed, ranks: u32, (operand, result): (u32, u32)) -> Option<Strategy> {
    let (here, there, shape) = match seed.slot {
        Slot::Operand(_) => (operand, result, &call.operand(0).shape),
        Slot::Result(_) => (result, operand, &call.result(0).shape),
    };
    let chunk = seed.chunks(shape, ranks)?.chunk;
    let other = if seed.dim == 0 {
        if here == 0 || !seed.blocks.is_multiple_of(here) {
            return None;
        }
        (seed.blocks / here).checked_mul(there)?
    } else {
        seed.blocks
    };
    let (operand, result) = match seed.slot {
        Slot::Operand(_) => (seed.blocks, other),
        Slot::Result(_) => (other, seed.blocks),
    };
    let shard = |blocks, ty: &TensorType| {
        Placement::in_chunks(seed.dim, blocks, chunk, *ty.shape.get(seed.dim)?, ranks)
    };
    Some(Strategy {
        operands: SmallVec::from_elem(shard(operand, call.operand(0))?, 1),
        results: SmallVec::from_elem(shard(result, call.result(0))?, 1),
        realise: Realise::Plain,
    })
}

/// Whether a collective adds what the ranks have.
pub fn adds(call: &Call<'_>) -> bool {
    matches!(call.node.args.get(1), Some(Arg::Str(reduction)) if reduction == ir::Reduction::Sum.text())
}
