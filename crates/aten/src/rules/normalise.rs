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
        (0..call.operands.len()).try_for_each(|operand| space.operand(operand, dim, factor))?;
        space.all_results(dim, factor)?;
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
        space.operand(0, dim, factor)?;
        space.result(0, dim, factor)?;
    }
    Some(space)
}

/// Norms over the trailing dimensions (`native_layer_norm(x, shape, weight, bias, eps)`): the leading dimensions.
pub fn layer_norm(call: &Call<'_>) -> Option<Factors> {
    let normalised = call.ints(1)?.len();
    leading(call, call.operand(0).rank().checked_sub(normalised)?)
}

/// `native_layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, mask)`: gradients of weight and bias are partial.
pub fn layer_norm_backward(call: &Call<'_>) -> Option<Factors> {
    let leading_dims = call.operand(0).rank().checked_sub(call.ints(2)?.len())?;
    let statistics = |arg| call.operand_of_arg(arg);
    let mut members = vec![0, 1];
    members.extend(statistics(3));
    members.extend(statistics(4));
    gradients(call, leading_dims, &members)
}

/// `_fused_rms_norm_backward(grad, x, shape, rstd, weight, mask)`.
pub fn rms_norm_backward(call: &Call<'_>) -> Option<Factors> {
    let mut members = vec![0, 1];
    members.extend(call.operand_of_arg(3));
    gradients(call, call.operand(0).rank().checked_sub(call.ints(2)?.len())?, &members)
}

/// `native_group_norm(x, weight, bias, N, C, HxW, group, eps)`: the batch.
pub fn group_norm(call: &Call<'_>) -> Option<Factors> {
    leading(call, 1)
}

/// `native_group_norm_backward(grad, x, mean, rstd, weight, N, C, HxW, group, mask)`: gradients of weight and bias are partial.
pub fn group_norm_backward(call: &Call<'_>) -> Option<Factors> {
    gradients(call, 1, &[0, 1, 2, 3])
}

/// `_weight_norm_interface(v, g, dim)`: the dimension whose norms it takes.
pub fn weight_norm(call: &Call<'_>) -> Option<Factors> {
    Some(Factors::shared(call, call.dim(2, call.operand(0).rank())))
}

/// `_weight_norm_interface_backward(grad, v, g, norms, dim)`: the same.
pub fn weight_norm_backward(call: &Call<'_>) -> Option<Factors> {
    Some(Factors::shared(call, call.dim(4, call.operand(0).rank())))
}

/// The first `count` dimensions of the first operand and of every result are factors.
fn leading(call: &Call<'_>, count: usize) -> Option<Factors> {
    let mut space = Factors::none(call);
    for dim in 0..count {
        let factor = space.add(call.size(0, dim)?, FactorKind::Parallel);
        space.operand(0, dim, factor)?;
        space.all_results(dim, factor)?;
    }
    Some(space)
}

/// The same for a backward: the first result has the factors, the gradients of parameters are partial sums over them.
fn gradients(call: &Call<'_>, count: usize, members: &[usize]) -> Option<Factors> {
    let mut space = Factors::none(call);
    let input = call.result_of_return(0);
    for dim in 0..count {
        let factor = space.add(call.size(0, dim)?, FactorKind::Reduce(Reduce::Sum));
        for operand in members {
            space.operand(*operand, dim, factor)?;
        }
        if let Some(input) = input {
            space.result(input, dim, factor)?;
        }
    }
    Some(space)
}

/// `nll_loss_forward(x, target, weight, reduction, ignore)` with the reduction "sum" (a mean is taken apart before): tokens leave partial
/// sums; with the classes sharded each rank picks from its own.
pub fn nll_loss(call: &Call<'_>) -> Option<Factors> {
    if call.int(3) != Some(SUM) || call.operand_of_arg(2).is_some() || call.operand(0).rank() != 2 {
        return None;
    }
    let mut space = Factors::none(call);
    let tokens = space.add(call.size(0, 0)?, FactorKind::Reduce(Reduce::Sum));
    space.operand(0, 0, tokens)?;
    space.operand(1, 0, tokens)?;
    let size = call.size(0, 1)?;
    let classes = space.add_special(size, FactorKind::Reduce(Reduce::Sum), Realise::NllPick);
    space.operand(0, 1, classes)?;
    Some(space)
}

/// `nll_loss_backward(grad, x, target, weight, reduction, ignore, total_weight)` with the reduction "sum".
pub fn nll_loss_backward(call: &Call<'_>) -> Option<Factors> {
    if call.int(4) != Some(SUM) || call.operand_of_arg(3).is_some() || call.operand(1).rank() != 2 {
        return None;
    }
    let mut space = Factors::none(call);
    let tokens = space.add(call.size(1, 0)?, FactorKind::Parallel);
    space.operand(1, 0, tokens)?;
    space.operand(2, 0, tokens)?;
    space.result(0, 0, tokens)?;
    let classes = space.add_special(call.size(1, 1)?, FactorKind::Parallel, Realise::NllPickBackward);
    space.operand(1, 1, classes)?;
    space.result(0, 1, classes)?;
    Some(space)
}

/// Where a loss of images has each pixel's logits and its target: batch, rows and columns.
const PIXELS: [(usize, usize); 3] = [(0, 0), (2, 1), (3, 2)];

/// `nll_loss2d_forward(x, target, weight, reduction, ignore)` with the reduction "sum": the batch, rows and columns of images.
pub fn nll_loss_of_images(call: &Call<'_>) -> Option<Factors> {
    if call.int(3) != Some(SUM) || call.operand_of_arg(2).is_some() {
        return None;
    }
    let mut space = Factors::none(call);
    for (logit, target) in PIXELS {
        let pixels = space.add(call.size(0, logit)?, FactorKind::Reduce(Reduce::Sum));
        space.operand(0, logit, pixels)?;
        space.operand(1, target, pixels)?;
    }
    Some(space)
}

/// `nll_loss2d_backward(grad, x, target, weight, reduction, ignore, total_weight)` with the reduction "sum".
pub fn nll_loss_of_images_backward(call: &Call<'_>) -> Option<Factors> {
    if call.int(4) != Some(SUM) || call.operand_of_arg(3).is_some() {
        return None;
    }
    let mut space = Factors::none(call);
    for (logit, target) in PIXELS {
        let pixels = space.add(call.size(1, logit)?, FactorKind::Parallel);
        space.operand(1, logit, pixels)?;
        space.operand(2, target, pixels)?;
        space.result(0, logit, pixels)?;
    }
    Some(space)
}

/// PyTorch's number for a loss that is a sum.
const SUM: i64 = 2;
