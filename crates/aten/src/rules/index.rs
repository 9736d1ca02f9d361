//! Look-ups, gathers and scatters.

use ir::{Placement, Reduce};

use crate::{Call, FactorKind, Factors, Realise, Seed, Strategy, strategy::Slot};

/// `embedding(weight, indices, ...)`: the dimensions of the indices, the features, and the rows of the table.
pub fn embedding(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let indices = call.operand(1).rank();
    for dim in 0..indices {
        let factor = space.add(call.size(1, dim)?, FactorKind::Parallel);
        space.operand(1, dim, factor)?;
        space.result(0, dim, factor)?;
    }
    let features = space.add(call.size(0, 1)?, FactorKind::Parallel);
    space.operand(0, 1, features)?;
    space.result(0, indices, features)?;
    let rows = call.size(0, 0)?;
    let rows = space.add_special(rows, FactorKind::Reduce(Reduce::Sum), Realise::EmbeddingRows);
    space.operand(0, 0, rows)?;
    Some(space)
}

/// `embedding_dense_backward(grad, indices, rows, padding, scale_by_frequency)`.
pub fn embedding_backward(call: &Call<'_>) -> Option<Factors> {
    if call.flag(4) == Some(true) {
        return None;
    }
    let mut space = Factors::none(call);
    let indices = call.operand(1).rank();
    for dim in 0..indices {
        let factor = space.add(call.size(1, dim)?, FactorKind::Reduce(Reduce::Sum));
        space.operand(0, dim, factor)?;
        space.operand(1, dim, factor)?;
    }
    let features = space.add(call.result_size(0, 1)?, FactorKind::Parallel);
    space.operand(0, indices, features)?;
    space.result(0, 1, features)?;
    let rows = call.result_size(0, 0)?;
    let rows = space.add_special(rows, FactorKind::Parallel, Realise::EmbeddingRowsBackward);
    space.result(0, 0, rows)?;
    Some(space)
}

/// `_embedding_bag(weight, indices, offsets, ..) -> (sums, bag of each index, sizes of bags, where maxima are)`: the features. Where a bag
/// begins is a position among all indices, so that bags stay together.
pub fn bags(call: &Call<'_>) -> Option<Factors> {
    let is_sparse = call.flag(5) != Some(false);
    let mut space = Factors::none(call);
    let features = space.add(call.size(0, 1)?, FactorKind::Parallel);
    space.operand(0, 1, features)?;
    space.result(0, 1, features)?;
    if call.int(4) == Some(MAXIMUM) {
        space.result(3, 1, features)?;
    }
    (!is_sparse).then_some(space)
}

/// `_embedding_bag_backward(grad, indices, offsets, bag of each index, sizes, where maxima are, ..)`: the features.
pub fn bags_backward(call: &Call<'_>) -> Option<Factors> {
    let is_sparse = call.flag(9) != Some(false);
    let mut space = Factors::none(call);
    let features = space.add(call.size(0, 1)?, FactorKind::Parallel);
    space.operand(0, 1, features)?;
    space.result(0, 1, features)?;
    if call.int(8) == Some(MAXIMUM) {
        space.operand(5, 1, features)?;
    }
    (!is_sparse).then_some(space)
}

/// `_embedding_bag_per_sample_weights_backward(grad, weight, indices, ..)`: sharded by features it is partial.
pub fn weights_of_bags(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let features = space.add(call.size(0, 1)?, FactorKind::Reduce(Reduce::Sum));
    space.operand(0, 1, features)?;
    space.operand(1, 1, features)?;
    Some(space)
}

/// PyTorch's number for a bag of which the largest of each feature is taken.
const MAXIMUM: i64 = 2;

/// `gather(x, dim, index)`: dimensions other than `dim` in which both have the same size.
pub fn gather(call: &Call<'_>) -> Option<Factors> {
    all_but_arg_1(call)
}

/// `scatter(x, dim, index, source)` and `scatter_add`.
pub fn scatter(call: &Call<'_>) -> Option<Factors> {
    all_but_arg_1(call)
}

fn all_but_arg_1(call: &Call<'_>) -> Option<Factors> {
    let along = call.dim(1, call.operand(0).rank())?;
    Some(Factors::shared(call, (0..call.operand(0).rank()).filter(|dim| *dim != along)))
}

/// `index(x, [i])` with one index tensor for the first dimension: the dimensions of the index, and those of `x`.
pub fn index(call: &Call<'_>) -> Option<Factors> {
    let ir::Arg::Values(indices) = &call.node.args[1] else { return None };
    if indices.len() != 1 || call.operands.len() != 2 || call.operand(1).dtype == ir::Dtype::Bool {
        return None;
    }
    let mut space = Factors::none(call);
    let rank = call.operand(1).rank();
    for dim in 0..rank {
        let factor = space.add(call.size(1, dim)?, FactorKind::Parallel);
        space.operand(1, dim, factor)?;
        space.result(0, dim, factor)?;
    }
    for dim in 1..call.operand(0).rank() {
        let factor = space.add(call.size(0, dim)?, FactorKind::Parallel);
        space.operand(0, dim, factor)?;
        space.result(0, rank + dim - 1, factor)?;
    }
    if call.operand(0).dtype.is_floating() {
        let rows = call.size(0, 0)?;
        let rows = space.add_special(rows, FactorKind::Reduce(Reduce::Sum), Realise::IndexRows);
        space.operand(0, 0, rows)?;
    }
    Some(space)
}

/// `index_put(x, [i], values, accumulate)` with one index tensor for the first dimension. With the numbers of rows that are added sharded, `x`
/// must be partial too, so that it counts once.
pub fn index_put(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let space = put_in_rows(call)?;
    let index = call.operand(1).rank();
    let of_numbers = matches!(seed.slot, Slot::Operand(1 | 2)) && seed.dim < index;
    if !of_numbers {
        return space.seeded(call, seed, ranks);
    }
    let (values, sum) = (call.operand(2), Placement::Partial(Reduce::Sum));
    let adds = call.flag(3) == Some(true) && values.dtype.is_floating();
    let shard = Placement::Shard { dim: seed.dim as u8, blocks: seed.blocks, chunk: seed.chunk };
    (adds && values.shape[..index] == call.operand(1).shape[..]).then(|| Strategy {
        operands: [sum, shard, shard].into_iter().collect(),
        results: std::iter::once(sum).collect(),
        realise: Realise::Plain,
    })
}

/// The rows of `x`, and its other dimensions, which the values have too.
fn put_in_rows(call: &Call<'_>) -> Option<Factors> {
    let ir::Arg::Values(indices) = &call.node.args[1] else { return None };
    let (x, index, values) = (call.operand(0), call.operand(1), call.arg_type(2)?);
    let behind = x.rank().checked_sub(1)?;
    let is_simple = indices.len() == 1 && call.operands.len() == 3 && index.dtype != ir::Dtype::Bool;
    if !is_simple || values.rank() != index.rank() + behind || values.shape[index.rank()..] != x.shape[1..] {
        return None;
    }
    let mut space = Factors::none(call);
    let rows = space.add_special(x.shape[0], FactorKind::Parallel, Realise::IndexPutRows);
    space.operand(0, 0, rows)?;
    space.result(0, 0, rows)?;
    for dim in 0..behind {
        let factor = space.add(x.shape[dim + 1], FactorKind::Parallel);
        space.operand(0, dim + 1, factor)?;
        space.operand(2, index.rank() + dim, factor)?;
        space.result(0, dim + 1, factor)?;
    }
    Some(space)
}

/// `searchsorted(sorted, x, ..)`: what is searched for, and the dimensions before the last one where both have these.
pub fn searched(call: &Call<'_>) -> Option<Factors> {
    if call.operands.len() != 2 {
        return None;
    }
    let (sorted, rank) = (call.operand(0).rank(), call.operand(1).rank());
    let mut space = Factors::none(call);
    for dim in 0..rank {
        let factor = space.add(call.size(1, dim)?, FactorKind::Parallel);
        space.operand(1, dim, factor)?;
        space.result(0, dim, factor)?;
        if sorted > 1 && dim + 1 < rank {
            space.operand(0, dim, factor)?;
        }
    }
    Some(space)
}

/// `index_select(x, dim, index)`: the numbers of the index, and the other dimensions of `x`.
pub fn index_select(call: &Call<'_>) -> Option<Factors> {
    let along = call.dim(1, call.operand(0).rank())?;
    let mut space = others(call, along, &[0])?;
    if call.operand(1).rank() == 1 {
        let numbers = space.add(call.size(1, 0)?, FactorKind::Parallel);
        space.operand(1, 0, numbers)?;
        space.result(0, along, numbers)?;
    }
    Some(space)
}

/// `index_add(x, dim, index, source)`: the other dimensions.
pub fn index_add(call: &Call<'_>) -> Option<Factors> {
    others(call, call.dim(1, call.operand(0).rank())?, &[0, 2])
}

/// `index_fill(x, dim, index, value)`: the other dimensions.
pub fn index_fill(call: &Call<'_>) -> Option<Factors> {
    others(call, call.dim(1, call.operand(0).rank())?, &[0])
}

/// `select_scatter(x, source, dim, index)`: the other dimensions, which `source` has alone.
pub fn select_scatter(call: &Call<'_>) -> Option<Factors> {
    let along = call.dim(2, call.operand(0).rank())?;
    let mut space = others(call, along, &[0])?;
    for dim in (0..call.operand(0).rank()).filter(|dim| *dim != along) {
        let factor = space.operands[0][dim]?;
        space.operand(1, dim - usize::from(dim > along), factor)?;
    }
    Some(space)
}

/// The dimensions but `along` of these operands and of the result.
fn others(call: &Call<'_>, along: usize, members: &[usize]) -> Option<Factors> {
    let mut space = Factors::none(call);
    for (dim, size) in call.operand(0).shape.iter().enumerate().filter(|(dim, _)| *dim != along) {
        let factor = space.add(*size, FactorKind::Parallel);
        for member in members {
            space.operand(*member, dim, factor)?;
        }
        space.result(0, dim, factor)?;
    }
    Some(space)
}
