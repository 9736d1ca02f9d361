//! Optimizer kernels, one parameter at a time.

use crate::{Call, FactorKind, Factors};

/// Fused updates on lists of one parameter each: every dimension of the parameter is a factor of every tensor of its shape; step counters
/// and learning rates stay replicated.
pub fn fused(call: &Call<'_>) -> Option<Factors> {
    let shape = call.operand(0).shape.clone();
    let mut space = Factors::none(call);
    if shape.is_empty() || (0..call.results.len()).any(|i| call.result(i).shape != shape) {
        return Some(space);
    }
    for (dim, size) in shape.iter().enumerate() {
        let factor = space.add(*size, FactorKind::Parallel);
        for (map, ty) in space.operands.iter_mut().zip((0..).map(|i| call.operand(i))) {
            if ty.shape == shape {
                map[dim] = Some(factor);
            }
        }
        space.results.iter_mut().for_each(|map| map[dim] = Some(factor));
    }
    Some(space)
}
