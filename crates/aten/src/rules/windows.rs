//! Windows and diagonals: operations along one or two dimensions that leave one dimension more, or one less.

use crate::{Call, FactorKind, Factors};

/// The dimensions of the first operand that `others` names, each with where the first result has it.
fn kept(call: &Call<'_>, others: impl Iterator<Item = (usize, usize)>) -> Option<Factors> {
    let mut space = Factors::none(call);
    for (operand_dim, result_dim) in others {
        let factor = space.add(call.size(0, operand_dim)?, FactorKind::Parallel);
        space.operand(0, operand_dim, factor)?;
        space.result(0, result_dim, factor)?;
    }
    Some(space)
}

/// `unfold(x, dim, size, step)`: the dimensions but `dim`; the elements of a window are a new dimension, the last one.
pub fn unfold(call: &Call<'_>) -> Option<Factors> {
    let rank = call.operand(0).rank();
    let along = call.dim(1, rank)?;
    kept(call, (0..rank).filter(|dim| *dim != along).map(|dim| (dim, dim)))
}

/// `unfold_backward(grad, sizes, dim, size, step)`.
pub fn unfold_backward(call: &Call<'_>) -> Option<Factors> {
    let rank = call.result(0).rank();
    let along = call.dim(2, rank)?;
    kept(call, (0..rank).filter(|dim| *dim != along).map(|dim| (dim, dim)))
}

/// The dimensions of a tensor of `rank` but two, which arguments name, in the order in which its diagonals have them.
fn across(call: &Call<'_>, args: [usize; 2], rank: usize) -> Option<impl Iterator<Item = usize>> {
    let [first, second] = [call.dim(args[0], rank)?, call.dim(args[1], rank)?];
    Some((0..rank).filter(move |dim| *dim != first && *dim != second))
}

/// `diagonal(x, offset, dim1, dim2)`: the other dimensions; the diagonal is the last one of the result.
pub fn diagonal(call: &Call<'_>) -> Option<Factors> {
    let others = across(call, [2, 3], call.operand(0).rank())?;
    kept(call, others.enumerate().map(|(position, dim)| (dim, position)))
}

/// `diagonal_backward(grad, sizes, offset, dim1, dim2)`.
pub fn diagonal_backward(call: &Call<'_>) -> Option<Factors> {
    let others = across(call, [3, 4], call.result(0).rank())?;
    kept(call, others.enumerate())
}

/// `diag_embed(x, offset, dim1, dim2)`: the dimensions before the diagonal, which is the last one of the operand.
pub fn diag_embed(call: &Call<'_>) -> Option<Factors> {
    let others = across(call, [2, 3], call.result(0).rank())?;
    kept(call, others.enumerate())
}

/// `diagonal_scatter(x, source, offset, dim1, dim2)`: the other dimensions, which `source` has alone before its last one.
pub fn diagonal_scatter(call: &Call<'_>) -> Option<Factors> {
    let others: Vec<usize> = across(call, [3, 4], call.operand(0).rank())?.collect();
    let mut space = kept(call, others.iter().map(|dim| (*dim, *dim)))?;
    for (position, dim) in others.into_iter().enumerate() {
        let factor = space.operands[0][dim]?;
        space.operand(1, position, factor)?;
    }
    Some(space)
}

/// `im2col(x, ..)` and `col2im(x, ..)`: the batch, and the channels, each of which has as many rows of columns as a window has elements.
pub fn of_images(call: &Call<'_>) -> Option<Factors> {
    let ranks = [call.operand(0).rank(), call.result(0).rank()];
    if !matches!(ranks, [4, 3] | [3, 4]) {
        return None;
    }
    let mut space = kept(call, std::iter::once((0, 0)))?;
    let channels = call.size(0, 1)?.min(call.result_size(0, 1)?);
    let channels = space.add(channels, FactorKind::Parallel);
    space.operand(0, 1, channels)?;
    space.result(0, 1, channels)?;
    Some(space)
}
