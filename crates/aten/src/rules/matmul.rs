//! Matrix products and convolutions.

use base::{Bytes, Flops};
use ir::{Placement, Reduce, TensorType};

use crate::{Call, FactorKind, Factors, Realise, Seed, Strategy, strategy::Slot};

/// The factors of `bias + a @ b` that the result has: batch dimensions, rows and columns.
fn product(call: &Call<'_>, batch: usize) -> Option<Factors> {
    let mut space = Factors::none(call);
    let (bias, result) = (call.operand(0), call.result(0));
    for dim in 0..batch {
        let factor = space.add(call.size(1, dim)?, FactorKind::Parallel);
        space.operand(1, dim, factor)?;
        space.operand(2, dim, factor)?;
        space.result(0, dim, factor)?;
    }
    let rows = space.add(call.size(1, batch)?, FactorKind::Parallel);
    let columns = space.add(call.size(2, batch + 1)?, FactorKind::Parallel);
    space.operand(1, batch, rows)?;
    space.result(0, batch, rows)?;
    space.operand(2, batch + 1, columns)?;
    space.result(0, batch + 1, columns)?;
    let missing = result.rank().checked_sub(bias.rank())?;
    for dim in 0..bias.rank() {
        if bias.shape[dim] == result.shape[dim + missing] {
            space.operands[0][dim] = space.results[0][dim + missing];
        }
    }
    Some(space)
}

/// `addmm(bias, a, b)` and `baddbmm(bias, a, b)`. With the inner dimension sharded the bias must be partial too, so that it is added once.
pub fn with_bias(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let batch = call.operand(1).rank().checked_sub(2)?;
    let inner = match seed.slot {
        Slot::Operand(1) => seed.dim == batch + 1,
        Slot::Operand(2) => seed.dim == batch,
        _ => false,
    };
    if !inner {
        return product(call, batch)?.seeded(call, seed, ranks);
    }
    let shard = |dim: usize| Placement::Shard { dim: dim as u8, blocks: seed.blocks, chunk: seed.chunk };
    Some(Strategy {
        operands: [Placement::Partial(Reduce::Sum), shard(batch + 1), shard(batch)].into_iter().collect(),
        results: std::iter::once(Placement::Partial(Reduce::Sum)).collect(),
        realise: Realise::Plain,
    })
}

/// `addmv(bias, a, v)`: rows; with the inner dimension sharded the bias must be partial too.
pub fn vector_with_bias(call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    let inner = matches!((seed.slot, seed.dim), (Slot::Operand(1), 1) | (Slot::Operand(2), 0));
    if !inner {
        return crate::einsum::factors("m, m _, _ -> m", call)?.seeded(call, seed, ranks);
    }
    let (shard, sum) = (
        |dim: u8| Placement::Shard { dim, blocks: seed.blocks, chunk: seed.chunk },
        Placement::Partial(Reduce::Sum),
    );
    Some(Strategy {
        operands: [sum, shard(1), shard(0)].into_iter().collect(),
        results: std::iter::once(sum).collect(),
        realise: Realise::Plain,
    })
}

/// `addr(bias, v, w)`: rows and columns, along which the bias may repeat.
pub fn outer(call: &Call<'_>) -> Option<Factors> {
    let patterns = ["_, m, n -> m n", "n, m, n -> m n", "m n, m, n -> m n"];
    match call.operand(0).rank() {
        0 => crate::einsum::factors(", m, n -> m n", call),
        rank => crate::einsum::factors(patterns.get(rank).copied()?, call),
    }
}

/// `_trilinear(a, b, c, expand_a, expand_b, expand_c, summed, unroll)`: the product of three tensors, each of which lacks the dimensions
/// that its list names, with some dimensions summed.
pub fn trilinear(call: &Call<'_>) -> Option<Factors> {
    let missing = |operand: usize| call.ints(3 + operand).unwrap_or(&[]);
    let rank = call.operand(0).rank() + missing(0).len();
    let summed = call.ints(6)?;
    let mut space = Factors::none(call);
    let mut next = [0; 3];
    let mut result_dim = 0;
    for dim in 0..rank {
        let there = |operand: &usize| !missing(*operand).contains(&(dim as i64));
        let owners: Vec<usize> = (0..3).filter(there).collect();
        let mut sizes = owners.iter().filter_map(|operand| call.size(*operand, next[*operand]));
        let size = sizes.next()?;
        let is_shared = sizes.all(|other| other == size);
        let is_summed = summed.contains(&(dim as i64));
        if is_shared {
            let kind = if is_summed { FactorKind::Reduce(Reduce::Sum) } else { FactorKind::Parallel };
            let factor = space.add(size, kind);
            owners.iter().try_for_each(|operand| space.operand(*operand, next[*operand], factor))?;
            if !is_summed {
                space.result(0, result_dim, factor)?;
            }
        }
        for operand in &owners {
            next[*operand] += 1;
        }
        result_dim += usize::from(!is_summed);
    }
    Some(space)
}

/// Its work: two products and a sum for each element of all dimensions.
pub fn trilinear_flops(call: &Call<'_>) -> Flops {
    let summed: u64 = call.ints(6).map_or(1, |dims| {
        let size = |dim: &i64| {
            let owner = (0..3).find(|operand| !call.ints(3 + operand).unwrap_or(&[]).contains(dim))?;
            let before = call.ints(3 + owner).unwrap_or(&[]).iter().filter(|gone| *gone < dim).count();
            call.size(owner, usize::try_from(*dim).ok()?.checked_sub(before)?)
        };
        dims.iter().filter_map(size).product::<i64>().max(0) as u64
    });
    Flops(3 * call.result(0).elements() * summed)
}

/// Elements to which kernels of narrow numbers keep the sizes of their operands aligned.
const ALIGNED: i64 = 16;

/// A factor along `size` whose shards are aligned, those of each block too.
fn aligned(space: &mut Factors, size: i64, kind: FactorKind) -> Option<usize> {
    (size % ALIGNED == 0).then(|| space.add(size / ALIGNED, kind))
}

/// `_scaled_mm(a, b, scale_a, scale_b, bias, ..)` with one scale for a whole operand or for each of its rows or columns: rows, columns, and
/// without a bias, which would be added by each rank, inner elements.
pub fn scaled(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let (rows, columns) = (call.size(0, 0)?, call.size(1, 1)?);
    let along = |operand: usize, whole: [i64; 2]| match call.operand(operand) {
        scale if scale.elements() == 1 => Some(false),
        scale => (scale.shape[..] == whole).then_some(true),
    };
    let (for_rows, for_columns) = (along(2, [rows, 1])?, along(3, [1, columns])?);
    let factor = space.add(rows, FactorKind::Parallel);
    space.operand(0, 0, factor)?;
    space.result(0, 0, factor)?;
    if for_rows {
        space.operand(2, 0, factor)?;
    }
    if let Some(factor) = aligned(&mut space, columns, FactorKind::Parallel) {
        space.operand(1, 1, factor)?;
        space.result(0, 1, factor)?;
        if for_columns {
            space.operand(3, 1, factor)?;
        }
        if let Some(bias) = call.operand_of_arg(4) {
            space.operand(bias, 0, factor)?;
        }
    }
    if call.operand_of_arg(4).is_none()
        && let Some(inner) = aligned(&mut space, call.size(0, 1)?, FactorKind::Reduce(Reduce::Sum))
    {
        space.operand(0, 1, inner)?;
        space.operand(1, 0, inner)?;
    }
    Some(space)
}

/// `_grouped_mm(a, b, offsets, bias, ..)`: groups where both have a dimension of them, rows, columns, inner elements, and what
/// offsets divide, of which each rank then has parts; [`own_groups`] gives each rank whole groups.
pub fn grouped(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let ranks = [call.operand(0).rank(), call.operand(1).rank()];
    if call.operand_of_arg(3).is_some() || ranks.iter().any(|rank| !matches!(rank, 2 | 3)) {
        return None;
    }
    let last = call.result(0).rank() - 1;
    if ranks == [3, 3] {
        let groups = space.add(call.size(0, 0)?, FactorKind::Parallel);
        space.operand(0, 0, groups)?;
        space.operand(1, 0, groups)?;
        space.result(0, 0, groups)?;
    }
    if ranks != [2, 3] {
        let rows = aligned(&mut space, call.size(0, ranks[0] - 2)?, FactorKind::Parallel);
        if let Some(rows) = rows {
            space.operand(0, ranks[0] - 2, rows)?;
            space.result(0, last - 1, rows)?;
        }
    }
    if ranks != [3, 2] {
        let columns = aligned(&mut space, call.size(1, ranks[1] - 1)?, FactorKind::Parallel);
        if let Some(columns) = columns {
            space.operand(1, ranks[1] - 1, columns)?;
            space.result(0, last, columns)?;
        }
    }
    if ranks != [2, 2] {
        let sum = FactorKind::Reduce(Reduce::Sum);
        if let Some(inner) = aligned(&mut space, call.size(0, ranks[0] - 1)?, sum) {
            space.operand(0, ranks[0] - 1, inner)?;
            space.operand(1, ranks[1] - 2, inner)?;
        }
    }
    if ranks[0] == 2 {
        divided(call, &mut space)?;
    }
    Some(space)
}

/// What offsets divide: rows of `a`, or the inner dimension of two matrices, whose shards stay aligned where they lie along it.
fn divided(call: &Call<'_>, space: &mut Factors) -> Option<()> {
    let (a, b) = (call.operand(0), call.operand(1));
    if b.rank() == 3 {
        let rows = space.add_special(a.shape[0], FactorKind::Parallel, Realise::PartsOfGroups);
        space.operand(0, 0, rows)?;
        return space.result(0, 0, rows);
    }
    let unit = if a.strides[1] == 1 || b.strides[0] == 1 { ALIGNED } else { 1 };
    if a.shape[1] % unit == 0 {
        let sum = FactorKind::Reduce(Reduce::Sum);
        let inner = space.add_special(a.shape[1] / unit, sum, Realise::PartsOfGroups);
        space.operand(0, 1, inner)?;
        space.operand(1, 0, inner)?;
    }
    Some(())
}

/// `_grouped_mm(a, b, offsets)` where each rank has some groups: of rows of `a` and of their matrices in `b`, or, where offsets divide the inner
/// dimension, of the matrices that result.
pub fn own_groups(call: &Call<'_>) -> Option<Strategy> {
    let ranks = [call.operand(0).rank(), call.operand(1).rank()];
    if call.operands.len() != 3 || call.operand_of_arg(2) != Some(2) {
        return None;
    }
    let (groups, matrices) = (|dim| Placement::Groups { dim }, Placement::shard(0));
    // Rows of however many there are keep others in line with what kernels want where they lie one behind the other.
    let is_outermost =
        |operand: usize, dim: usize| ir::memory_order(&call.operand(operand).strides).first() == Some(&dim);
    let lies_well = is_outermost(0, usize::from(ranks[1] == 2)) && (ranks[1] == 3 || is_outermost(1, 0));
    if !lies_well {
        return None;
    }
    let (operands, result) = match ranks {
        [2, 3] => ([groups(0), matrices, Placement::Replicate], groups(0)),
        [2, 2] => ([groups(1), groups(0), Placement::Replicate], matrices),
        _ => return None,
    };
    Some(Strategy {
        operands: operands.into_iter().collect(),
        results: std::iter::once(result).collect(),
        realise: Realise::OwnGroups,
    })
}

/// Two operations for each row, column and inner element; where offsets divide the inner dimension, each element is in one group.
pub fn grouped_flops(call: &Call<'_>) -> Flops {
    let per_group = call.operand(0).rank() == 2 && call.operand(1).rank() == 2;
    let groups = call.result(0).shape.first().copied().unwrap_or(1).max(1) as u64;
    let Flops(all) = inner_product(call, 0);
    Flops(if per_group { all / groups } else { all })
}

/// `convolution(input, weight, bias, ..., groups)`: batch; output channels where there is one group; spatial dimensions cannot be sharded.
pub fn convolution(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let batch = space.add(call.size(0, 0)?, FactorKind::Parallel);
    space.operand(0, 0, batch)?;
    space.result(0, 0, batch)?;
    if call.int(8) == Some(1) && call.flag(6) == Some(false) {
        let channels = space.add(call.size(1, 0)?, FactorKind::Parallel);
        space.operand(1, 0, channels)?;
        space.result(0, 1, channels)?;
        if let Some(bias) = call.operand_of_arg(2) {
            space.operand(bias, 0, channels)?;
        }
    }
    Some(space)
}

/// `convolution_backward(grad, input, weight, ...) -> (input, weight, bias)`: sharded by batch, the gradients of weight and bias are partial.
pub fn convolution_backward(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let batch = space.add(call.size(0, 0)?, FactorKind::Reduce(Reduce::Sum));
    space.operand(0, 0, batch)?;
    space.operand(1, 0, batch)?;
    if let Some(result) = call.result_of_return(0) {
        space.result(result, 0, batch)?;
    }
    Some(space)
}

/// `dot(a, b)`: its elements, over which it sums.
pub fn dot(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let inner = space.add(call.size(0, 0)?, FactorKind::Reduce(Reduce::Sum));
    space.operand(0, 0, inner)?;
    space.operand(1, 0, inner)?;
    Some(space)
}

/// `linalg_solve_triangular(a, b, upper, left, ..)`: the batch, and the columns of `b`, or its rows where `a` stands on the right.
pub fn triangular(call: &Call<'_>) -> Option<Factors> {
    let batch = call.operand(0).rank().checked_sub(2)?;
    let mut space = Factors::shared(call, 0..batch);
    let free = if call.flag(3).unwrap_or(true) { batch + 1 } else { batch };
    let free_factor = space.add(call.size(1, free)?, FactorKind::Parallel);
    space.operand(1, free, free_factor)?;
    space.result(0, free, free_factor)?;
    Some(space)
}

/// `_linalg_solve_ex(a, b, left, ..)`: the batch, and the columns of `b`, or its rows where `a` stands on the right.
pub fn solved(call: &Call<'_>) -> Option<Factors> {
    let pattern = match (call.operand(0).rank() == call.operand(1).rank(), call.flag(2).unwrap_or(true)) {
        (true, true) => "x* _ _, x* _ k -> x* _ k, x* _ _, x* _, x*",
        (true, false) => "x* _ _, x* k _ -> x* k _, x* _ _, x* _, x*",
        (false, _) => "x* _ _, x* _ -> x* _, x* _ _, x* _, x*",
    };
    let mut space = has_one_batch(call, 1).then(|| crate::einsum::factors(pattern, call))??;
    // The factors of the matrix do not depend on what the system is solved for.
    space.factors.iter_mut().for_each(|factor| factor.kind = FactorKind::Parallel);
    Some(space)
}

/// `linalg_lu_solve(factors, pivots, b, left, ..)`: the same.
pub fn solved_by_factors(call: &Call<'_>) -> Option<Factors> {
    let from_left = call.flag(3).unwrap_or(true);
    let pattern = if from_left { "x* _ _, x* _, x* _ k -> x* _ k" } else { "x* _ _, x* _, x* k _ -> x* k _" };
    has_one_batch(call, 2).then(|| crate::einsum::factors(pattern, call))?
}

/// Whether what a system is solved for has the batch of its matrix, so that nothing is broadcast: as matrices, or as vectors.
fn has_one_batch(call: &Call<'_>, right: usize) -> bool {
    let (matrix, right) = (&call.operand(0).shape, &call.operand(right).shape);
    let Some(batch) = matrix.len().checked_sub(2) else { return false };
    let is_matrix = right.len() == matrix.len() && right[..batch] == matrix[..batch];
    let is_vector = right[..] == matrix[..=batch];
    is_matrix || is_vector
}

/// Its work: a product with half of a matrix.
pub fn triangular_flops(call: &Call<'_>) -> Flops {
    let Flops(product) = inner_product(call, 0);
    Flops(product / 2)
}

/// `_cdist_forward(x, y, ..)`: the batch, which both have alike, and the rows of each.
pub fn distances(call: &Call<'_>) -> Option<Factors> {
    has_pairs(call, 0).then(|| crate::einsum::factors("x* n _, x* m _ -> x* n m", call))?
}

/// `_cdist_backward(grad, x, y, p, distances)`: sharded by rows of `y`, the gradient of `x` is partial.
pub fn distances_backward(call: &Call<'_>) -> Option<Factors> {
    has_pairs(call, 1).then(|| crate::einsum::factors("x* n m, x* n _, x* m _, x* n m -> x* n _", call))?
}

/// Whether an operand and the next have the same batch, so that nothing is broadcast.
fn has_pairs(call: &Call<'_>, first: usize) -> bool {
    let batch = |operand: usize| {
        let shape = &call.operand(operand).shape;
        shape.split_last_chunk::<2>().map(|(batch, _)| batch)
    };
    batch(first).is_some() && batch(first) == batch(first + 1)
}

/// Two operations for each element of the result and of the inner dimension, which is the last one of argument `arg`.
fn inner_product(call: &Call<'_>, arg: usize) -> Flops {
    let inner = call.arg_type(arg).and_then(|ty| ty.shape.last().copied()).unwrap_or(1);
    Flops(2 * call.result(0).elements() * inner.max(0) as u64)
}

/// The work of `mm` and `bmm`.
pub fn mm_flops(call: &Call<'_>) -> Flops {
    inner_product(call, 0)
}

/// The work of `addmm` and `baddbmm`.
pub fn addmm_flops(call: &Call<'_>) -> Flops {
    inner_product(call, 1)
}

/// The work of a convolution: two operations for each element of the result and of the window that it looks at.
pub fn convolution_flops(call: &Call<'_>) -> Flops {
    let weight = call.operand(1);
    Flops(
        2 * call.result(0).elements() * weight.elements()
            / weight.shape.first().copied().unwrap_or(1).max(1) as u64,
    )
}

/// The work of its backward: two products of the same size.
pub fn convolution_backward_flops(call: &Call<'_>) -> Flops {
    let weight = call.operand(2);
    Flops(
        4 * call.operand(0).elements() * weight.elements()
            / weight.shape.first().copied().unwrap_or(1).max(1) as u64,
    )
}

/// Channels are padded to a multiple of this where a convolution on CPU keeps them side by side.
const CHANNEL_BLOCK: i64 = 8;
/// The same for the gradient of the input.
const WIDE_CHANNEL_BLOCK: i64 = 16;

/// What oneDNN copies into layouts of its own for a convolution on CPU (measured with PyTorch 2.13): operands, unless they have few channels
/// or lie channels last, and the result before it is put back in order.
pub fn convolution_workspace(call: &Call<'_>) -> Bytes {
    let (input, weight, result) = (call.operand(0), call.operand(1), call.result(0));
    if !is_reordered(input, weight) {
        return Bytes(0);
    }
    let few = input.shape.get(1).is_some_and(|channels| *channels < CHANNEL_BLOCK);
    let operands = weight.bytes().0 + if few { 0 } else { padded(input, CHANNEL_BLOCK) };
    Bytes(operands.max(result.bytes().0))
}

/// The same for its backward, whose parts run one after the other: the gradient of the input, then that of weight and bias.
pub fn convolution_backward_workspace(call: &Call<'_>) -> Bytes {
    let (gradient, input, weight) = (call.operand(0), call.operand(1), call.operand(2));
    if !is_reordered(input, weight) {
        return Bytes(0);
    }
    let [gradient, weight] = [gradient, weight].map(|ty| ty.bytes().0);
    let few = input.shape.get(1).is_some_and(|channels| 2 * channels < CHANNEL_BLOCK);
    let blocked = if few { 0 } else { padded(input, CHANNEL_BLOCK) };
    let results: u64 = call.results.iter().map(|value| call.graph.ty(*value).bytes().0).sum();
    let for_weight = gradient + blocked + weight;
    let most = if call.result_of_return(0).is_some() {
        let wide = padded(input, WIDE_CHANNEL_BLOCK);
        let for_input = wide + input.bytes().0.max(gradient + weight);
        for_input.max(input.bytes().0 + for_weight)
    } else {
        for_weight
    };
    Bytes(most.saturating_sub(results))
}

/// Whether a convolution runs by oneDNN on tensors that it puts into another order: not for windows of one element, nor channels last.
fn is_reordered(input: &TensorType, weight: &TensorType) -> bool {
    let window = weight.shape.iter().skip(2).product::<i64>() > 1;
    input.device.kind.is_cpu() && window && input.is_contiguous()
}

/// The bytes of a tensor whose channels are padded.
fn padded(ty: &TensorType, block: i64) -> u64 {
    let channels = ty.shape.get(1).copied().unwrap_or(1).max(1);
    ty.bytes().0 / channels as u64 * ((channels + block - 1) / block * block) as u64
}
