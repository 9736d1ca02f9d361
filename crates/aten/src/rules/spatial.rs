//! Pooling, resizing and padding of images and videos: each plane by itself.

use crate::{Call, FactorKind, Factors};

/// The dimensions before the last `spatial` ones, of all operands and results.
fn planes(call: &Call<'_>, spatial: usize) -> Option<Factors> {
    let count = call.operand(0).rank().checked_sub(spatial)?;
    Some(shared(call, count))
}

/// The first `count` dimensions, where all operands and results have them in the same size.
fn shared(call: &Call<'_>, count: usize) -> Factors {
    let mut space = Factors::none(call);
    for dim in 0..count {
        let size = call.operand(0).shape[dim];
        let operands = (0..call.operands.len()).map(|i| call.operand(i));
        let mut types = operands.chain((0..call.results.len()).map(|i| call.result(i)));
        if types.all(|ty| ty.shape.get(dim) == Some(&size)) {
            let factor = space.add(size, FactorKind::Parallel);
            space.operands.iter_mut().chain(&mut space.results).for_each(|map| map[dim] = Some(factor));
        }
    }
    space
}

/// Operations on signals, and their backward: `upsample_nearest1d(x, ...)`.
pub fn signals(call: &Call<'_>) -> Option<Factors> {
    planes(call, 1)
}

/// Operations on images, and their backward: `max_pool2d_with_indices(x, ...)`.
pub fn images(call: &Call<'_>) -> Option<Factors> {
    planes(call, 2)
}

/// Operations on videos or volumes, and their backward: `avg_pool3d(x, ...)`.
pub fn volumes(call: &Call<'_>) -> Option<Factors> {
    planes(call, 3)
}

/// `grid_sampler_2d(x, grid, ...)`, whose grid has no channels: the batch.
pub fn sampled(call: &Call<'_>) -> Option<Factors> {
    Some(shared(call, 1))
}
