//! The operation table: one row per operation.

use std::sync::OnceLock;

use rustc_hash::FxHashMap;

use crate::{
    Linear::{InEach, Jointly, No, Norms, Stacked, Together},
    Row,
    Rule::{self, Einsum, Factors, Fixed, Seeded},
    Work::{self, Flops, Traffic, View},
    row::Linear,
    rules::{attention, index, join, matmul, normalise, optimizer, pointwise, reduce, views},
};

/// A row, written as a call.
const fn op(name: &'static str, rule: Rule, linear: Linear, work: Work) -> Row {
    Row { name, rule, linear, sizes: None, work }
}

/// A row of an operation whose argument `sizes` repeats the shape of its result.
const fn sized(name: &'static str, rule: Rule, linear: Linear, work: Work, sizes: usize) -> Row {
    Row { name, rule, linear, sizes: Some(sizes), work }
}

/// An operation on each element.
const fn each(name: &'static str, linear: Linear) -> Row {
    op(name, Factors(pointwise::broadcast), linear, Traffic)
}

/// The row of an operation, by its qualified name with the overload.
pub fn row(name: &str) -> Option<&'static Row> {
    static BY_NAME: OnceLock<FxHashMap<&'static str, &'static Row>> = OnceLock::new();
    BY_NAME.get_or_init(|| ROWS.iter().map(|row| (row.name, row)).collect()).get(name).copied()
}

/// All rows.
pub const ROWS: &[Row] = &[
    // Matrix products
    op("aten::mm", Einsum("m k, k n -> m n"), InEach(&[0, 1]), Flops(matmul::mm_flops)),
    op("aten::bmm", Einsum("b m k, b k n -> b m n"), InEach(&[0, 1]), Flops(matmul::mm_flops)),
    op("aten::addmm", Seeded(matmul::with_bias), No, Flops(matmul::addmm_flops)),
    op("aten::baddbmm", Seeded(matmul::with_bias), No, Flops(matmul::addmm_flops)),
    op("aten::convolution", Factors(matmul::convolution), No, Flops(matmul::convolution_flops)),
    op(
        "aten::convolution_backward",
        Factors(matmul::convolution_backward),
        No,
        Flops(matmul::convolution_backward_flops),
    ),
    // Arithmetic
    each("aten::add.Tensor", Together(&[0, 1])),
    each("aten::sub.Tensor", Together(&[0, 1])),
    each("aten::add.Scalar", No),
    each("aten::sub.Scalar", No),
    each("aten::rsub.Scalar", No),
    each("aten::mul.Tensor", InEach(&[0, 1])),
    each("aten::mul.Scalar", Jointly),
    each("aten::div.Tensor", InEach(&[0])),
    each("aten::div.Scalar", Jointly),
    each("aten::neg", Jointly),
    each("aten::reciprocal", No),
    each("aten::pow.Tensor_Scalar", No),
    each("aten::pow.Tensor_Tensor", No),
    each("aten::pow.Scalar", No),
    each("aten::sqrt", No),
    each("aten::rsqrt", No),
    each("aten::square", No),
    each("aten::exp", No),
    each("aten::log", No),
    each("aten::log1p", No),
    each("aten::expm1", No),
    each("aten::sin", No),
    each("aten::cos", No),
    each("aten::erf", No),
    each("aten::abs", No),
    each("aten::sign", No),
    each("aten::sgn", No),
    each("aten::floor", No),
    each("aten::ceil", No),
    each("aten::round", No),
    each("aten::clamp", No),
    each("aten::clamp_min", No),
    each("aten::clamp_max", No),
    each("aten::maximum", No),
    each("aten::minimum", No),
    each("aten::floor_divide", No),
    each("aten::remainder.Scalar", No),
    each("aten::remainder.Tensor", No),
    each("aten::addcmul", No),
    each("aten::addcdiv", No),
    each("aten::lerp.Scalar", Jointly),
    each("aten::lerp.Tensor", No),
    // Activations and their backward, linear in the gradient
    each("aten::relu", No),
    each("aten::gelu", No),
    each("aten::silu", No),
    each("aten::tanh", No),
    each("aten::sigmoid", No),
    each("aten::leaky_relu", No),
    each("aten::elu", No),
    each("aten::softplus", No),
    each("aten::hardtanh", No),
    each("aten::threshold_backward", InEach(&[0])),
    each("aten::gelu_backward", InEach(&[0])),
    each("aten::silu_backward", InEach(&[0])),
    each("aten::tanh_backward", InEach(&[0])),
    each("aten::sigmoid_backward", InEach(&[0])),
    each("aten::leaky_relu_backward", InEach(&[0])),
    each("aten::native_dropout_backward", InEach(&[0])),
    // Comparison, choice, bits
    each("aten::eq.Tensor", No),
    each("aten::eq.Scalar", No),
    each("aten::ne.Tensor", No),
    each("aten::ne.Scalar", No),
    each("aten::lt.Tensor", No),
    each("aten::lt.Scalar", No),
    each("aten::le.Tensor", No),
    each("aten::le.Scalar", No),
    each("aten::gt.Tensor", No),
    each("aten::gt.Scalar", No),
    each("aten::ge.Tensor", No),
    each("aten::ge.Scalar", No),
    each("aten::isnan", No),
    each("aten::isinf", No),
    each("aten::logical_not", No),
    each("aten::logical_and", No),
    each("aten::logical_or", No),
    each("aten::bitwise_and.Tensor", No),
    each("aten::bitwise_or.Tensor", No),
    each("aten::bitwise_not", No),
    each("aten::where.self", Together(&[1, 2])),
    each("aten::masked_fill.Scalar", No),
    // Copies and casts. A cast to another type rounds, so a partial value must be put together before.
    each("aten::clone", Stacked),
    each("aten::_to_copy", InEach(&[0])),
    each("aten::alias", Stacked),
    each("aten::lift_fresh_copy", Stacked),
    each("aten::copy", No),
    // Tensors made of a shape
    each("aten::zeros_like", No),
    each("aten::ones_like", No),
    each("aten::full_like", No),
    each("aten::empty_like", No),
    each("aten::zero", No),
    each("aten::fill.Scalar", No),
    sized("aten::zeros", Factors(pointwise::filled), No, Traffic, 0),
    sized("aten::ones", Factors(pointwise::filled), No, Traffic, 0),
    sized("aten::full", Factors(pointwise::filled), No, Traffic, 0),
    sized("aten::empty.memory_format", Factors(pointwise::filled), No, Traffic, 0),
    sized("aten::new_zeros", Factors(pointwise::filled), No, Traffic, 1),
    sized("aten::new_ones", Factors(pointwise::filled), No, Traffic, 1),
    sized("aten::new_full", Factors(pointwise::filled), No, Traffic, 1),
    sized("aten::new_empty", Factors(pointwise::filled), No, Traffic, 1),
    op("aten::scalar_tensor", Fixed, No, Traffic),
    op("aten::arange", Fixed, No, Traffic),
    op("aten::arange.start", Fixed, No, Traffic),
    op("aten::arange.start_step", Fixed, No, Traffic),
    op("aten::linspace", Fixed, No, Traffic),
    // Views
    sized("aten::view", Seeded(views::reshape), Stacked, View, 1),
    sized("aten::_unsafe_view", Seeded(views::reshape), Stacked, View, 1),
    sized("aten::reshape", Seeded(views::reshape), Stacked, Traffic, 1),
    op("aten::t", Factors(views::t), Stacked, View),
    op("aten::transpose.int", Factors(views::transpose), Stacked, View),
    op("aten::permute", Factors(views::permute), Stacked, View),
    op("aten::unsqueeze", Factors(views::unsqueeze), Stacked, View),
    op("aten::squeeze", Factors(views::squeeze), Stacked, View),
    op("aten::squeeze.dim", Factors(views::squeeze), Stacked, View),
    op("aten::squeeze.dims", Factors(views::squeeze), Stacked, View),
    sized("aten::expand", Factors(views::expand), Jointly, View, 1),
    op("aten::select.int", Factors(views::select), Jointly, View),
    op("aten::slice.Tensor", Factors(views::along_arg_1), Jointly, View),
    op("aten::unbind.int", Factors(join::unbind), Jointly, View),
    op("aten::split.Tensor", Seeded(join::split), Jointly, View),
    op("aten::split_with_sizes", Seeded(join::split), Jointly, View),
    // Joining, padding, and the backward of slicing
    op("aten::cat", Seeded(join::cat), Stacked, Traffic),
    op("aten::stack", Factors(join::stack), Stacked, Traffic),
    sized("aten::slice_backward", Factors(views::along_arg_2), Jointly, Traffic, 1),
    sized("aten::select_backward", Factors(views::select_backward), Jointly, Traffic, 1),
    op("aten::slice_scatter", Factors(views::along_arg_2), Jointly, Traffic),
    op("aten::constant_pad_nd", Factors(views::pad), No, Traffic),
    op("aten::flip", Factors(views::along_arg_1), Jointly, Traffic),
    op("aten::repeat", Fixed, Jointly, Traffic),
    op("aten::tril", Fixed, Jointly, Traffic),
    op("aten::triu", Fixed, Jointly, Traffic),
    // Reductions
    op("aten::sum", Factors(reduce::sum_all), Jointly, Traffic),
    op("aten::sum.dim_IntList", Factors(reduce::sum), Jointly, Traffic),
    op("aten::mean", Factors(reduce::mean_all), Jointly, Traffic),
    op("aten::mean.dim", Factors(reduce::mean), Jointly, Traffic),
    op("aten::linalg_vector_norm", Factors(reduce::vector_norm), Norms, Traffic),
    op("aten::amax", Factors(reduce::others_only), No, Traffic),
    op("aten::amin", Factors(reduce::others_only), No, Traffic),
    op("aten::argmax", Factors(reduce::argmax), No, Traffic),
    op("aten::any.dim", Factors(reduce::others_only), No, Traffic),
    op("aten::cumsum", Factors(views::along_arg_1), Jointly, Traffic),
    op("aten::sort", Factors(views::along_arg_1), No, Traffic),
    op("aten::topk", Factors(views::along_arg_2), No, Traffic),
    op("aten::mse_loss", Factors(reduce::loss), No, Traffic),
    op("aten::mse_loss_backward", Factors(reduce::loss_backward), InEach(&[0]), Traffic),
    // Softmax, norms, likelihood
    op("aten::_softmax", Factors(normalise::softmax), No, Traffic),
    op("aten::_log_softmax", Factors(normalise::log_softmax), No, Traffic),
    op("aten::_safe_softmax", Factors(normalise::safe_softmax), No, Traffic),
    op("aten::_softmax_backward_data", Factors(normalise::softmax_backward), InEach(&[0]), Traffic),
    op("aten::_log_softmax_backward_data", Factors(normalise::log_softmax_backward), InEach(&[0]), Traffic),
    op("aten::native_layer_norm", Factors(normalise::layer_norm), No, Traffic),
    op("aten::native_layer_norm_backward", Factors(normalise::layer_norm_backward), InEach(&[0]), Traffic),
    op("aten::_fused_rms_norm", Factors(normalise::layer_norm), No, Traffic),
    op("aten::_fused_rms_norm_backward", Factors(normalise::rms_norm_backward), InEach(&[0]), Traffic),
    op("aten::native_group_norm", Fixed, No, Traffic),
    op("aten::native_group_norm_backward", Fixed, No, Traffic),
    op("aten::nll_loss_forward", Factors(normalise::nll_loss), No, Traffic),
    op("aten::nll_loss_backward", Factors(normalise::nll_loss_backward), No, Traffic),
    // Look-ups
    op("aten::embedding", Factors(index::embedding), No, Traffic),
    op("aten::embedding_dense_backward", Factors(index::embedding_backward), InEach(&[0]), Traffic),
    op("aten::gather", Factors(index::gather), No, Traffic),
    op("aten::scatter.src", Factors(index::scatter), No, Traffic),
    op("aten::scatter.value", Factors(index::scatter), No, Traffic),
    op("aten::scatter_add", Factors(index::scatter), No, Traffic),
    op("aten::index.Tensor", Factors(index::index), InEach(&[0]), Traffic),
    // Attention
    op(
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        Factors(attention::forward),
        No,
        Flops(attention::forward_flops),
    ),
    op(
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        Factors(attention::backward),
        InEach(&[0]),
        Flops(attention::backward_flops),
    ),
    // Optimizer kernels
    op("aten::_fused_adamw.tensor_lr", Factors(optimizer::fused), No, Traffic),
    op("aten::_fused_adam.tensor_lr", Factors(optimizer::fused), No, Traffic),
    op("aten::_fused_sgd.tensor_lr", Factors(optimizer::fused), No, Traffic),
    op("aten::_fused_adagrad.tensor_lr", Factors(optimizer::fused), No, Traffic),
];
