//! Softmax, norms and the negative log-likelihood.

use ir::Reduce;

use crate::{Call, FactorKind, Factors, Realise};

/// All tensors have the same shape; every dimension is a factor, dimension argument `dim` is realised as `along`.
fn same_shape(call: &Call<'_>, dim: usize, along: Realise) -> Option<Factors> {
    let mut space = Factors::none(call);
    let shape = &call.result(0).shape;
    let along_dim = call.dim(dim, shape.len())?;
    for (dim, size) in shape.iter().enumerate() {
        let factor = if dim == along_dim {
            space.add_special(*size, FactorKind::Parallel, along)
        } else {
            space.add(*size, FactorKind::Parallel)
        };
        space.operands.iter_mut().chain(&mut space.results).for_each(|map| map[dim] = Some(factor));
    }
    Some(space)
}

/// `_softmax(x, dim, half_to_float)`.
pub fn softmax(call: &Call<'_>) -> Option<Factors> {
    same_shape(call, 1, Realise::Softmax)
}

/// `_log_softmax(x, dim, half_to_float)`.
pub fn log_softmax(call: &Call<'_>) -> Option<Factors> {
    same_shape(call, 1, Realise::LogSoftmax)
}

/// `_softmax_backward_data(grad, result, dim, dtype)`.
pub fn softmax_backward(call: &Call<'_>) -> Option<Factors> {
    same_shape(call, 2, Realise::SoftmaxBackward)
}

/// `_log_softmax_backward_data(grad, result, dim, dtype)`.
pub fn log_softmax_backward(call: &Call<'_>) -> Option<Factors> {
    same_shape(call, 2, Realise::LogSoftmaxBackward)
}

/// `_safe_softmax(x, dim)`: all dimensions but the one.
pub fn safe_softmax(call: &Call<'_>) -> Option<Factors> {
    let mut space = Factors::none(call);
    let along = call.dim(1, call.operand(0).rank())?;
    for (dim, size) in call.operand(0).shape.iter().enumerate().filter(|(dim, _)| *dim != along) {
        let factor = space.add(*size, FactorKind::Parallel);
        space.operands[0][dim] = Some(factor);
        space.results[0][dim] = Some(factor);
    }
    Some(space)
}

/// Norms over the trailing dimensions (`native_layer_norm(x, shape, weight, bias, eps)`): the leading dimensions.
pub fn layer_norm(call: &Call<'_>) -> Option<Factors> {
    let normalised = call.ints(1)?.len();
    Some(leading(call, call.operand(0).rank() - normalised))
}

/// `native_layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, mask)`: gradients of weight and bias are partial.
pub fn layer_norm_backward(call: &Call<'_>) -> Option<Factors> {
    let leading_dims = call.operand(0).rank() - call.ints(2)?.len();
    let statistics = |arg| call.operand_of_arg(arg);
    let mut members = vec![0, 1];
    members.extend(statistics(3));
    members.extend(statistics(4));
    Some(gradients(call, leading_dims, &members))
}

/// `_fused_rms_norm_backward(grad, x, shape, rstd, weight, mask)`.
pub fn rms_norm_backward(call: &Call<'_>) -> Option<Factors> {
    let mut members = vec![0, 1];
    members.extend(call.operand_of_arg(3));
    Some(gradients(call, call.operand(0).rank() - call.ints(2)?.len(), &members))
}

/// `native_group_norm(x, weight, bias, N, C, HxW, group, eps)`: the batch.
pub fn group_norm(call: &Call<'_>) -> Option<Factors> {
    Some(leading(call, 1))
}

/// `native_group_norm_backward(grad, x, mean, rstd, weight, N, C, HxW, group, mask)`: gradients of weight and bias are partial.
pub fn group_norm_backward(call: &Call<'_>) -> Option<Factors> {
    Some(gradients(call, 1, &[0, 1, 2, 3]))
}

/// The first `count` dimensions of the first operand and of every result are factors.
fn leading(call: &Call<'_>, count: usize) -> Factors {
    let mut space = Factors::none(call);
    for dim in 0..count {
        let factor = space.add(call.operand(0).shape[dim], FactorKind::Parallel);
        space.operands[0][dim] = Some(factor);
        space.results.iter_mut().for_each(|map| map[dim] = Some(factor));
    }
    space
}

/// The same for a backward: the first result has the factors, the gradients of parameters are partial sums over them.
fn gradients(call: &Call<'_>, count: usize, members: &[usize]) -> Factors {
    let mut space = Factors::none(call);
    let input = call.result_of_return(0);
    for dim in 0..count {
        let factor = space.add(call.operand(0).shape[dim], FactorKind::Reduce(Reduce::Sum));
        for operand in members {
            space.operands[*operand][dim] = Some(factor);
        }
        if let Some(input) = input {
            space.results[input][dim] = Some(factor);
        }
    }
    space
}

/// `nll_loss_forward(x, target, weight, reduction, ignore)` with the reduction "sum" (a mean is taken apart before): tokens leave partial
/// sums; with the classes sharded each rank picks from its own.
pub fn nll_loss(call: &Call<'_>) -> Option<Factors> {
    if call.int(3) != Some(SUM) || call.operand_of_arg(2).is_some() || call.operand(0).rank() != 2 {
        return None;
    }
    let mut space = Factors::none(call);
    let tokens = space.add(call.operand(0).shape[0], FactorKind::Reduce(Reduce::Sum));
    space.operands[0][0] = Some(tokens);
    space.operands[1][0] = Some(tokens);
    let size = call.operand(0).shape[1];
    let classes = space.add_special(size, FactorKind::Reduce(Reduce::Sum), Realise::NllPick);
    space.operands[0][1] = Some(classes);
    Some(space)
}

/// `nll_loss_backward(grad, x, target, weight, reduction, ignore, total_weight)` with the reduction "sum".
pub fn nll_loss_backward(call: &Call<'_>) -> Option<Factors> {
    if call.int(4) != Some(SUM) || call.operand_of_arg(3).is_some() || call.operand(1).rank() != 2 {
        return None;
    }
    let mut space = Factors::none(call);
    let tokens = space.add(call.operand(1).shape[0], FactorKind::Parallel);
    space.operands[1][0] = Some(tokens);
    space.operands[2][0] = Some(tokens);
    space.results[0][0] = Some(tokens);
    let classes = space.add_special(call.operand(1).shape[1], FactorKind::Parallel, Realise::NllPickBackward);
    space.operands[1][1] = Some(classes);
    space.results[0][1] = Some(classes);
    Some(space)
}

/// PyTorch's number for a loss that is a sum.
const SUM: i64 = 2;
