//! Reductions over dimensions.

use ir::Reduce;

use crate::{Call, FactorKind, Factors, Realise};

/// A reduction over the dimensions in argument `dims`, keeping them with size 1 if argument `keep` is true.
fn over(
    call: &Call<'_>,
    dims: usize,
    keep: usize,
    reduced: impl Fn(&mut Factors, i64) -> Option<usize>,
) -> Option<Factors> {
    let operand = call.operand(0);
    let gone = call.dims(dims, operand.rank());
    let keep = call.flag(keep).unwrap_or(false);
    let mut space = Factors::none(call);
    let mut position = 0;
    for (dim, size) in operand.shape.iter().enumerate() {
        if gone.contains(&dim) {
            space.operands[0][dim] = reduced(&mut space, *size);
            position += usize::from(keep);
        } else {
            let factor = space.add(*size, FactorKind::Parallel);
            space.operand(0, dim, factor)?;
            space.all_results(position, factor)?;
            position += 1;
        }
    }
    Some(space)
}

/// `sum(x, dims, keepdim)`: a reduced dimension that is sharded leaves a partial sum.
pub fn sum(call: &Call<'_>) -> Option<Factors> {
    over(call, 1, 2, |space, size| Some(space.add(size, FactorKind::Reduce(Reduce::Sum))))
}

/// `sum(x)`.
pub fn sum_all(call: &Call<'_>) -> Option<Factors> {
    over(call, usize::MAX, usize::MAX, |space, size| Some(space.add(size, FactorKind::Reduce(Reduce::Sum))))
}

/// `mean(x, dims, keepdim)`: the mean of a part is a share of the mean.
pub fn mean(call: &Call<'_>) -> Option<Factors> {
    over(call, 1, 2, share)
}

/// `mean(x)`.
pub fn mean_all(call: &Call<'_>) -> Option<Factors> {
    over(call, usize::MAX, usize::MAX, share)
}

fn share(space: &mut Factors, size: i64) -> Option<usize> {
    Some(space.add_special(size, FactorKind::Reduce(Reduce::Sum), Realise::Averaged))
}

/// Reductions whose parts cannot be put together afterwards (`amax`, `var`, `any`): only the other dimensions.
pub fn others_only(call: &Call<'_>) -> Option<Factors> {
    over(call, 1, 2, |_, _| None)
}

/// `var(x, dims, correction, keepdim)`: the other dimensions.
pub fn spread(call: &Call<'_>) -> Option<Factors> {
    over(call, 1, 3, |_, _| None)
}

/// `argmax(x, dim, keepdim)`: without a dimension everything is reduced, and no dimension can be sharded.
pub fn argmax(call: &Call<'_>) -> Option<Factors> {
    over(call, 1, 2, |_, _| None)
}

/// `kthvalue(x, k, dim, keepdim)`: the other dimensions.
pub fn ordered(call: &Call<'_>) -> Option<Factors> {
    over(call, 2, 3, |_, _| None)
}

/// `histc(x, bins, min, max)`: counts of a part are a part of the counts, unless the range is that of the values.
pub fn histogram(call: &Call<'_>) -> Option<Factors> {
    let (min, max) = (call.number(2)?, call.number(3)?);
    if min >= max {
        return None;
    }
    let mut space = Factors::none(call);
    for (dim, size) in call.operand(0).shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Reduce(Reduce::Sum));
        space.operand(0, dim, factor)?;
    }
    Some(space)
}

/// `linalg_vector_norm(x, 2, dims, keepdim)`: the norm of a part is a part of the norm. Other orders: the other dimensions only.
pub fn vector_norm(call: &Call<'_>) -> Option<Factors> {
    let two = call.number(1).is_some_and(|order| (order - 2.0).abs() < f64::EPSILON);
    over(call, 2, 3, |space, size| two.then(|| space.add(size, FactorKind::Reduce(Reduce::Norm))))
}

/// Losses that are a sum or a mean over all elements (`mse_loss(x, y, reduction)`): every dimension is a factor.
pub fn loss(call: &Call<'_>) -> Option<Factors> {
    loss_of(call, 2, call.operands.len())
}

/// `binary_cross_entropy(x, y, weight, reduction)`, whose mean is over all elements, whatever their weights.
pub fn entropy(call: &Call<'_>) -> Option<Factors> {
    weighted_loss(call, 3)
}

/// `binary_cross_entropy_with_logits(x, y, weight, weight of positives, reduction)`.
pub fn entropy_of_logits(call: &Call<'_>) -> Option<Factors> {
    weighted_loss(call, 4)
}

/// A loss of elements whose further operands are weights, broadcast as in operations on each element.
fn weighted_loss(call: &Call<'_>, reduction: usize) -> Option<Factors> {
    let shape = &call.operand(0).shape;
    let mut space = loss_of(call, reduction, 2)?;
    for weight in 2..call.operands.len() {
        let own = &call.operand(weight).shape;
        let missing = shape.len().checked_sub(own.len())?;
        for dim in (0..own.len()).filter(|dim| own[*dim] == shape[dim + missing]) {
            space.operands[weight][dim] = space.operands[0][dim + missing];
        }
    }
    Some(space)
}

/// `binary_cross_entropy_backward(grad, x, y, weight, reduction)` without weights.
pub fn entropy_backward(call: &Call<'_>) -> Option<Factors> {
    if call.operand_of_arg(3).is_some() { None } else { backward_of(call, 4) }
}

/// Their backward (`mse_loss_backward(grad, x, y, reduction)`).
pub fn loss_backward(call: &Call<'_>) -> Option<Factors> {
    backward_of(call, 3)
}

fn backward_of(call: &Call<'_>, reduction: usize) -> Option<Factors> {
    let mut space = Factors::none(call);
    let realise = if call.int(reduction)? == MEAN { Realise::Averaged } else { Realise::Plain };
    for (dim, size) in call.result(0).shape.iter().enumerate() {
        let factor = space.add_special(*size, FactorKind::Parallel, realise);
        for map in space.operands.iter_mut().chain(&mut space.results).filter(|map| map.len() > dim) {
            map[dim] = Some(factor);
        }
    }
    Some(space)
}

/// `multi_margin_loss(x, target, p, margin, weight, reduction)`: the samples, each of which has a number for every class.
pub fn margins(call: &Call<'_>) -> Option<Factors> {
    loss_of_samples(call, 5)
}

/// `multilabel_margin_loss_forward(x, target, reduction)`: the samples.
pub fn margins_of_labels(call: &Call<'_>) -> Option<Factors> {
    let mut space = loss_of_samples(call, 2)?;
    let samples = space.operands[0][0]?;
    space.result(1, 0, samples)?;
    Some(space)
}

/// A loss of rows, the first two operands, by argument `reduction`: whatever operands there are beside them are about classes.
fn loss_of_samples(call: &Call<'_>, reduction: usize) -> Option<Factors> {
    if call.operand(0).rank() != 2 {
        return None;
    }
    let mut space = Factors::none(call);
    let size = call.size(0, 0)?;
    let reduction = call.int(reduction)?;
    let samples = loss_factor(&mut space, size, reduction);
    space.operand(0, 0, samples)?;
    space.operand(1, 0, samples)?;
    if reduction == UNREDUCED {
        space.result(0, 0, samples)?;
    }
    Some(space)
}

/// `multi_margin_loss_backward(grad, x, target, p, margin, weight, reduction)`.
pub fn margins_backward(call: &Call<'_>) -> Option<Factors> {
    backward_of_samples(call, 6, &[1, 2])
}

/// `multilabel_margin_loss_backward(grad, x, target, reduction, is_target)`.
pub fn margins_of_labels_backward(call: &Call<'_>) -> Option<Factors> {
    backward_of_samples(call, 3, &[1, 2, 3])
}

fn backward_of_samples(call: &Call<'_>, reduction: usize, members: &[usize]) -> Option<Factors> {
    if call.operand(1).rank() != 2 {
        return None;
    }
    let mut space = Factors::none(call);
    let reduction = call.int(reduction)?;
    let realise = if reduction == MEAN { Realise::Averaged } else { Realise::Plain };
    let samples = space.add_special(call.size(1, 0)?, FactorKind::Parallel, realise);
    members.iter().try_for_each(|operand| space.operand(*operand, 0, samples))?;
    if reduction == UNREDUCED {
        space.operand(0, 0, samples)?;
    }
    space.result(0, 0, samples)?;
    Some(space)
}

/// PyTorch's number for a loss that is a mean.
const MEAN: i64 = 1;
/// PyTorch's number for a loss that is not reduced.
const UNREDUCED: i64 = 0;

/// A loss of the elements of the first operands, so `many`, which have the same shape.
fn loss_of(call: &Call<'_>, reduction: usize, many: usize) -> Option<Factors> {
    let rank = call.operand(0).rank();
    let mut space = Factors::none(call);
    let reduction = call.int(reduction)?;
    for dim in 0..rank {
        let size = call.size(0, dim)?;
        let factor = loss_factor(&mut space, size, reduction);
        (0..many).try_for_each(|operand| space.operand(operand, dim, factor))?;
        if reduction == UNREDUCED {
            space.result(0, dim, factor)?;
        }
    }
    Some(space)
}

/// A factor along which a loss with that reduction runs.
fn loss_factor(space: &mut Factors, size: i64, reduction: i64) -> usize {
    match reduction {
        UNREDUCED => space.add(size, FactorKind::Parallel),
        MEAN => space.add_special(size, FactorKind::Reduce(Reduce::Sum), Realise::Averaged),
        _ => space.add(size, FactorKind::Reduce(Reduce::Sum)),
    }
}
