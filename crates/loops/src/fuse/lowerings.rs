//! What each operation is as values of a kernel: one row each. An operation without a row stays as it is.

use ir::{Arg, Dtype};

use super::node::Body;
use crate::{Binary, Unary, Value};

/// An operation as values of a kernel; fails with the reason, in a few words.
pub(super) type Lower = fn(&mut Body<'_>) -> Result<Value, String>;

/// What is known of an operation that can be part of a kernel.
pub(super) struct Row {
    /// Its name, overload included.
    pub(super) op: &'static str,
    /// What it is.
    pub(super) lower: Lower,
    /// Whether PyTorch takes longer for it than memory does, so that it is worth a kernel of its own.
    pub(super) slow: bool,
}

/// The row of an operation.
pub(super) fn row(op: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.op == op)
}

const fn fast(op: &'static str, lower: Lower) -> Row {
    Row { op, lower, slow: false }
}

const fn slow(op: &'static str, lower: Lower) -> Row {
    Row { op, lower, slow: true }
}

static ROWS: &[Row] = &[
    fast("aten::add.Tensor", |b| sum(b, 1.0)),
    fast("aten::add.Scalar", |b| sum(b, 1.0)),
    fast("aten::sub.Tensor", |b| sum(b, -1.0)),
    fast("aten::sub.Scalar", |b| sum(b, -1.0)),
    fast("aten::mul.Tensor", |b| binary(b, Binary::Mul)),
    fast("aten::mul.Scalar", |b| binary(b, Binary::Mul)),
    fast("aten::div.Tensor", |b| binary(b, Binary::Div)),
    fast("aten::div.Scalar", |b| binary(b, Binary::Div)),
    fast("aten::maximum", |b| binary(b, Binary::Max)),
    fast("aten::minimum", |b| binary(b, Binary::Min)),
    fast("aten::neg", |b| unary(b, Unary::Neg)),
    fast("aten::abs", |b| unary(b, Unary::Abs)),
    fast("aten::sqrt", |b| unary(b, Unary::Sqrt)),
    fast("aten::exp", |b| unary(b, Unary::Exp)),
    fast("aten::log", |b| unary(b, Unary::Log)),
    slow("aten::tanh", |b| unary(b, Unary::Tanh)),
    fast("aten::sigmoid", |b| unary(b, Unary::Sigmoid)),
    fast("aten::erf", |b| unary(b, Unary::Erf)),
    fast("aten::rsqrt", |b| {
        let root = unary(b, Unary::Sqrt)?;
        Ok(inverse(b, root))
    }),
    fast("aten::reciprocal", |b| {
        let x = b.number(0)?;
        Ok(inverse(b, x))
    }),
    fast("aten::relu", |b| {
        let (x, zero) = (b.number(0)?, b.constant(0.0));
        Ok(b.builder.binary(Binary::Max, x, zero))
    }),
    fast("aten::pow.Tensor_Scalar", power),
    fast("aten::silu", |b| {
        let x = b.number(0)?;
        let sigmoid = b.builder.unary(Unary::Sigmoid, x);
        Ok(b.mul(x, sigmoid))
    }),
    fast("aten::silu_backward", silu_backward),
    fast("aten::sigmoid_backward", |b| {
        let (grad, y) = (b.number(0)?, b.number(1)?);
        let rest = b.one_less(y);
        let slope = b.mul(rest, y);
        Ok(b.mul(grad, slope))
    }),
    fast("aten::tanh_backward", |b| {
        let (grad, y) = (b.number(0)?, b.number(1)?);
        let square = b.mul(y, y);
        let slope = b.one_less(square);
        Ok(b.mul(grad, slope))
    }),
    fast("aten::threshold_backward", |b| {
        let (grad, x, threshold) = (b.number(0)?, b.number(1)?, b.number(2)?);
        let below = b.builder.binary(Binary::LessEqual, x, threshold);
        let zero = b.constant(0.0);
        Ok(b.builder.select(below, zero, grad))
    }),
    slow("aten::gelu", gelu),
    slow("aten::gelu_backward", gelu_backward),
    fast("aten::addcmul", |b| {
        let (sum, x, y, scale) = (b.number(0)?, b.number(1)?, b.number(2)?, b.number(3)?);
        let scaled = b.mul(scale, x);
        Ok(b.builder.fma(scaled, y, sum))
    }),
    fast("aten::addcdiv", |b| {
        let (sum, x, y, scale) = (b.number(0)?, b.number(1)?, b.number(2)?, b.number(3)?);
        let scaled = b.mul(scale, x);
        let quotient = b.builder.binary(Binary::Div, scaled, y);
        Ok(b.add(sum, quotient))
    }),
    fast("aten::lerp.Scalar", |b| {
        let (from, to, weight) = (b.number(0)?, b.number(1)?, b.number(2)?);
        let way = b.builder.binary(Binary::Sub, to, from);
        Ok(b.builder.fma(weight, way, from))
    }),
    fast("aten::_to_copy", |b| {
        let x = b.number(0)?;
        Ok(if b.result().dtype == Dtype::Bf16 { b.builder.unary(Unary::RoundBf16, x) } else { x })
    }),
    fast("aten::clone", |b| b.number(0)),
];

fn unary(b: &mut Body<'_>, unary: Unary) -> Result<Value, String> {
    let x = b.number(0)?;
    Ok(b.builder.unary(unary, x))
}

fn binary(b: &mut Body<'_>, binary: Binary) -> Result<Value, String> {
    let (x, y) = (b.number(0)?, b.number(1)?);
    Ok(b.builder.binary(binary, x, y))
}

fn inverse(b: &mut Body<'_>, x: Value) -> Value {
    let one = b.constant(1.0);
    b.builder.binary(Binary::Div, one, x)
}

/// `self + sign * alpha * other`
fn sum(b: &mut Body<'_>, sign: f64) -> Result<Value, String> {
    let (x, y) = (b.number(0)?, b.number(1)?);
    let alpha = b.scalar(2)? * sign;
    Ok(match alpha {
        1.0 => b.add(x, y),
        -1.0 => b.builder.binary(Binary::Sub, x, y),
        _ => {
            let alpha = b.constant(alpha as f32);
            b.builder.fma(alpha, y, x)
        }
    })
}

fn power(b: &mut Body<'_>) -> Result<Value, String> {
    let (x, exponent) = (b.number(0)?, b.scalar(1)?);
    let magnitude = match exponent.abs() {
        0.5 => b.builder.unary(Unary::Sqrt, x),
        1.0 => x,
        2.0 => b.mul(x, x),
        3.0 => {
            let square = b.mul(x, x);
            b.mul(square, x)
        }
        _ => return Err(format!("the exponent {exponent}")),
    };
    Ok(if exponent < 0.0 { inverse(b, magnitude) } else { magnitude })
}

/// `grad * s * (1 + x * (1 - s))`
fn silu_backward(b: &mut Body<'_>) -> Result<Value, String> {
    let (grad, x) = (b.number(0)?, b.number(1)?);
    let sigmoid = b.builder.unary(Unary::Sigmoid, x);
    let (rest, one) = (b.one_less(sigmoid), b.constant(1.0));
    let slope = b.builder.fma(x, rest, one);
    let product = b.mul(grad, sigmoid);
    Ok(b.mul(product, slope))
}

/// `sqrt(2 / pi)`
const TANH_SCALE: f32 = 0.797_884_6;
const TANH_CUBE: f32 = 0.044_715;

/// Whether a call of `gelu` is of the kind with a hyperbolic tangent.
fn by_tanh(b: &Body<'_>, argument: usize) -> bool {
    matches!(b.arg(argument), Some(Arg::Str(kind)) if kind == "tanh")
}

/// `sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x^3))`, which is what `gelu` multiplies `x` with, and `x^2`.
fn tanh_gate(b: &mut Body<'_>, x: Value) -> (Value, Value) {
    let square = b.mul(x, x);
    let (cube, one, scale) = (b.constant(TANH_CUBE), b.constant(1.0), b.constant(2.0 * TANH_SCALE));
    let inner = b.builder.fma(square, cube, one);
    let scaled = b.mul(x, scale);
    let inner = b.mul(scaled, inner);
    (b.builder.unary(Unary::Sigmoid, inner), square)
}

/// `(1 + erf(x / sqrt(2))) / 2`
fn normal(b: &mut Body<'_>, x: Value) -> Value {
    let (root, half) = (b.constant(std::f32::consts::FRAC_1_SQRT_2), b.constant(0.5));
    let scaled = b.mul(x, root);
    let erf = b.builder.unary(Unary::Erf, scaled);
    b.builder.fma(erf, half, half)
}

fn gelu(b: &mut Body<'_>) -> Result<Value, String> {
    let x = b.number(0)?;
    let gate = if by_tanh(b, 1) { tanh_gate(b, x).0 } else { normal(b, x) };
    Ok(b.mul(x, gate))
}

fn gelu_backward(b: &mut Body<'_>) -> Result<Value, String> {
    let (grad, x) = (b.number(0)?, b.number(1)?);
    let slope = if by_tanh(b, 2) { tanh_slope(b, x) } else { normal_slope(b, x) };
    Ok(b.mul(grad, slope))
}

/// `s + x * s * (1 - s) * 2 * sqrt(2 / pi) * (1 + 3 * 0.044715 * x^2)`
fn tanh_slope(b: &mut Body<'_>, x: Value) -> Value {
    let (gate, square) = tanh_gate(b, x);
    let (cube, scale) = (b.constant(6.0 * TANH_SCALE * TANH_CUBE), b.constant(2.0 * TANH_SCALE));
    let inner = b.builder.fma(square, cube, scale);
    let rest = b.one_less(gate);
    let product = b.mul(gate, rest);
    let product = b.mul(product, x);
    b.builder.fma(product, inner, gate)
}

/// `normal(x) + x * exp(-x^2 / 2) / sqrt(2 * pi)`
fn normal_slope(b: &mut Body<'_>, x: Value) -> Value {
    let normal = normal(b, x);
    let (half, density) = (b.constant(-0.5), b.constant(0.398_942_3));
    let square = b.mul(x, x);
    let exponent = b.mul(square, half);
    let power = b.builder.unary(Unary::Exp, exponent);
    let scaled = b.mul(power, density);
    b.builder.fma(scaled, x, normal)
}
