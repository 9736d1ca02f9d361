//! Batch norm as means, products and sums, so that its statistics are those of the global batch under any sharding.
//!
//! Narrow numbers are computed with as PyTorch's kernels do: in 32 bits, and rounded at the end.

use ir::{Arg, Dtype, NodeId, Return, ValueId};

use super::Rewriter;
use crate::emit::Emitter;

/// The dimension of a tensor that its channels are.
const CHANNELS: usize = 1;

impl Rewriter<'_> {
    /// `(x - mean) * rsqrt(var + eps) * weight + bias`, with the statistics of the global batch.
    pub(super) fn batch_norm(&mut self, id: NodeId) {
        let (momentum, eps) = (self.number(id, 6), self.number(id, 7));
        let operands = [0, 1, 2, 3, 4].map(|arg| self.operand(id, arg));
        let [Some(x), weight, bias, running_mean, running_var] = operands else {
            return self.copy(id);
        };
        // The form that changes running statistics in place stands in no graph.
        let has_updates = self.graph.nodes[id].returns.len() == 5;
        if has_updates != running_mean.is_some()
            || !self.are_channels(x, &[weight, bias, running_mean, running_var])
        {
            return self.copy(id);
        }
        let mut out = self.emitter(id);
        let x = out.in_wide_numbers(x);
        let shape = out.ty(x).shape.clone();
        let dims = reduced_dims(shape.len());
        let count: i64 = dims.iter().map(|dim| shape[*dim]).product();
        let channels = [shape[CHANNELS]];
        let mean = out.reduce("mean", x, &dims, true);
        let centred = out.sum("sub", x, mean);
        let squares = out.binary("mul.Tensor", centred, centred);
        let variance = out.reduce("mean", squares, &dims, true);
        let shifted = out.shifted(variance, Arg::Float(eps));
        let inverse = out.unary("rsqrt", shifted);
        let normal = out.binary("mul.Tensor", centred, inverse);
        let result = out.affine(normal, weight, bias);
        let mut made = vec![result, out.view(mean, &channels), out.view(inverse, &channels)];
        if let (Some(running_mean), Some(running_var)) = (running_mean, running_var) {
            let variance = out.view(variance, &channels);
            let unbiased = out.scaled(variance, count as f64 / (count - 1).max(1) as f64);
            made.push(out.moved(running_mean, made[1], momentum));
            made.push(out.moved(running_var, unbiased, momentum));
        }
        self.bind_all(id, &made);
    }

    /// The same with running statistics, which stay as they are. It keeps nothing for its backward.
    pub(super) fn fixed_batch_norm(&mut self, id: NodeId) {
        let eps = self.number(id, 7);
        let operands = [0, 1, 2, 3, 4].map(|arg| self.operand(id, arg));
        let [Some(x), weight, bias, Some(mean), Some(variance)] = operands else {
            return self.copy(id);
        };
        if !self.are_channels(x, &[weight, bias, Some(mean), Some(variance)]) {
            return self.copy(id);
        }
        let kept: Vec<_> = self.graph.nodes[id].results().skip(1).take(2).collect();
        let kept = kept.into_iter().map(|value| self.graph.ty(value).clone()).collect::<Vec<_>>();
        let mut out = self.emitter(id);
        let x = out.in_wide_numbers(x);
        let rank = out.ty(x).rank();
        let inverse = out.inverse_deviation(variance, eps, rank);
        let centre = out.per_channel(mean, rank);
        let centred = out.sum("sub", x, centre);
        let normal = out.binary("mul.Tensor", centred, inverse);
        let mut made = vec![out.affine(normal, weight, bias)];
        made.extend(kept.iter().map(|ty| out.filled(ty, Some(Arg::Int(0)))));
        made.extend([mean, variance]);
        self.bind_all(id, &made);
    }

    /// With `y = (x - mean) * inverse`: bias `sum(g)`, weight `sum(g * y)`, input
    /// `weight * inverse * (g - sum(g) / n - y * sum(g * y) / n)`.
    pub(super) fn batch_norm_backward(&mut self, id: NodeId) {
        let operands = [0, 1, 2, 5, 6].map(|arg| self.operand(id, arg));
        let [Some(gradient), Some(x), weight, Some(mean), Some(inverse)] = operands else {
            return self.copy(id);
        };
        if !self.are_channels(x, &[weight, Some(mean), Some(inverse)]) {
            return self.copy(id);
        }
        let mut out = self.emitter(id);
        let (gradient, x) = (out.in_wide_numbers(gradient), out.in_wide_numbers(x));
        let shape = out.ty(x).shape.clone();
        let dims = reduced_dims(shape.len());
        let share = 1.0 / dims.iter().map(|dim| shape[*dim]).product::<i64>() as f64;
        let (mean, inverse) = (out.per_channel(mean, shape.len()), out.per_channel(inverse, shape.len()));
        let centred = out.sum("sub", x, mean);
        let y = out.binary("mul.Tensor", centred, inverse);
        let [bias_gradient, weight_gradient] = out.gradients_of_affine(gradient, y, &dims);
        let bias_share = out.scaled(bias_gradient, share);
        let weight_share = out.scaled(weight_gradient, share);
        let along = out.binary("mul.Tensor", y, weight_share);
        let result = out.sum("sub", gradient, bias_share);
        let result = out.sum("sub", result, along);
        let result = out.binary("mul.Tensor", result, inverse);
        let result = out.affine(result, weight, None);
        let channels = [shape[CHANNELS]];
        let made = [result, out.view(weight_gradient, &channels), out.view(bias_gradient, &channels)];
        self.bind_all(id, &made);
    }

    /// The same where the statistics are running ones, which do not depend on `x`: input `weight * inverse * g`.
    pub(super) fn fixed_batch_norm_backward(&mut self, id: NodeId) {
        let eps = self.number(id, 8);
        let operands = [0, 1, 2, 3, 4].map(|arg| self.operand(id, arg));
        let [Some(gradient), Some(x), weight, Some(mean), Some(variance)] = operands else {
            return self.copy(id);
        };
        if !self.are_channels(x, &[weight, Some(mean), Some(variance)]) {
            return self.copy(id);
        }
        let mut out = self.emitter(id);
        let (gradient, x) = (out.in_wide_numbers(gradient), out.in_wide_numbers(x));
        let shape = out.ty(x).shape.clone();
        let inverse = out.inverse_deviation(variance, eps, shape.len());
        let mean = out.per_channel(mean, shape.len());
        let centred = out.sum("sub", x, mean);
        let y = out.binary("mul.Tensor", centred, inverse);
        let [bias_gradient, weight_gradient] =
            out.gradients_of_affine(gradient, y, &reduced_dims(shape.len()));
        let result = out.binary("mul.Tensor", gradient, inverse);
        let result = out.affine(result, weight, None);
        let channels = [shape[CHANNELS]];
        let made = [result, out.view(weight_gradient, &channels), out.view(bias_gradient, &channels)];
        self.bind_all(id, &made);
    }

    /// Whether `x` has channels, and these values, where they are there, are one number for each.
    fn are_channels(&self, x: ValueId, values: &[Option<ValueId>]) -> bool {
        let shape = &self.out.ty(x).shape;
        let mut there = values.iter().flatten();
        shape.len() >= 2 && there.all(|value| self.out.ty(*value).shape[..] == shape[CHANNELS..=CHANNELS])
    }

    /// Uses `made` in place of the returns of a node, in the element types that these have.
    fn bind_all(&mut self, id: NodeId, made: &[ValueId]) {
        for (position, value) in made.iter().enumerate() {
            if let Some(Return::Value(old)) = self.graph.nodes[id].returns.get(position) {
                let dtype = self.graph.ty(*old).dtype;
                let value = self.emitter(id).as_type(*value, dtype);
                self.bind(id, position, value);
            }
        }
    }
}

/// All dimensions but that of the channels.
fn reduced_dims(rank: usize) -> Vec<usize> {
    (0..rank).filter(|dim| *dim != CHANNELS).collect()
}

impl Emitter<'_> {
    /// The value in 32 bits, if it has fewer.
    fn in_wide_numbers(&mut self, value: ValueId) -> ValueId {
        match self.ty(value).dtype {
            Dtype::Bf16 | Dtype::F16 => self.cast(value, Dtype::F32),
            _ => value,
        }
    }

    fn as_type(&mut self, value: ValueId, dtype: Dtype) -> ValueId {
        if self.ty(value).dtype == dtype { value } else { self.cast(value, dtype) }
    }

    /// A value per channel as `[1, channels, 1, ...]`.
    fn per_channel(&mut self, value: ValueId, rank: usize) -> ValueId {
        let value = self.in_wide_numbers(value);
        let mut shape = vec![1; rank];
        shape[CHANNELS] = self.ty(value).shape[0];
        self.view(value, &shape)
    }

    /// `rsqrt(variance + eps)` of each channel.
    fn inverse_deviation(&mut self, variance: ValueId, eps: f64, rank: usize) -> ValueId {
        let variance = self.per_channel(variance, rank);
        let shifted = self.shifted(variance, Arg::Float(eps));
        self.unary("rsqrt", shifted)
    }

    /// `value * weight + bias`, as far as they are there.
    fn affine(&mut self, mut value: ValueId, weight: Option<ValueId>, bias: Option<ValueId>) -> ValueId {
        let rank = self.ty(value).rank();
        if let Some(weight) = weight {
            let weight = self.per_channel(weight, rank);
            value = self.binary("mul.Tensor", value, weight);
        }
        if let Some(bias) = bias {
            let bias = self.per_channel(bias, rank);
            value = self.sum("add", value, bias);
        }
        value
    }

    /// The gradients of `bias` and `weight` in `y * weight + bias`: `sum(g)` and `sum(g * y)` over `dims`.
    fn gradients_of_affine(&mut self, gradient: ValueId, y: ValueId, dims: &[usize]) -> [ValueId; 2] {
        let product = self.binary("mul.Tensor", gradient, y);
        [self.reduce("sum", gradient, dims, true), self.reduce("sum", product, dims, true)]
    }

    /// `old * (1 - momentum) + new * momentum`.
    fn moved(&mut self, old: ValueId, new: ValueId, momentum: f64) -> ValueId {
        let old = self.in_wide_numbers(old);
        let kept = self.scaled(old, 1.0 - momentum);
        let added = self.scaled(new, momentum);
        self.sum("add", kept, added)
    }
}
