//! Pooling, resizing and padding of images and videos: each plane by itself.

use crate::{Call, Factors};

/// The dimensions before the last `spatial` ones, of all operands and results.
fn planes(call: &Call<'_>, spatial: usize) -> Option<Factors> {
    Some(Factors::shared(call, 0..call.operand(0).rank().checked_sub(spatial)?))
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

/// `fractional_max_pool2d(x, kernel, sizes, samples)`, which draws windows for each plane: batch and channels.
pub fn random_windows(call: &Call<'_>) -> Option<Factors> {
    let has_batch = call.operand(0).rank() == call.ints(1)?.len() + 2;
    has_batch.then(|| Factors::shared(call, 0..2))
}

/// `grid_sampler_2d(x, grid, ...)`, whose grid has no channels, and what makes such a grid: the batch.
pub fn sampled(call: &Call<'_>) -> Option<Factors> {
    Some(Factors::shared(call, 0..1))
}

/// `pixel_shuffle(x, factor)` and back, which move channels into images: the dimensions before the channels.
pub fn shuffled(call: &Call<'_>) -> Option<Factors> {
    planes(call, 3)
}

/// `channel_shuffle(x, groups)`, which puts channels in another order: the other dimensions.
pub fn among_channels(call: &Call<'_>) -> Option<Factors> {
    Some(Factors::shared(call, (0..call.operand(0).rank()).filter(|dim| *dim != 1)))
}
