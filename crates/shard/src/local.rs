//! Local shapes and types.

use ir::{Dims, Placement, TensorType, memory_order};

/// The shape of one rank's part of a tensor of `shape` along an axis of `ranks`.
pub fn local_shape(shape: &[i64], placement: Placement, ranks: u32) -> Dims {
    let mut local: Dims = shape.into();
    if let Placement::Shard { dim, .. } = placement {
        local[usize::from(dim)] /= i64::from(ranks);
    }
    local
}

/// The type of one rank's part of a tensor that is made there: dense, its dimensions in the same order in memory as the whole tensor's.
pub fn local_type(ty: &TensorType, placement: Placement, ranks: u32) -> TensorType {
    let shape = local_shape(&ty.shape, placement, ranks);
    let strides = if placement == Placement::Replicate && is_dense(ty) {
        ty.strides.clone()
    } else {
        dense_strides(&shape, &ty.strides)
    };
    TensorType { dtype: ty.dtype, shape, strides, device: ty.device }
}

fn is_dense(ty: &TensorType) -> bool {
    let span: i64 = ty.shape.iter().zip(&ty.strides).map(|(size, stride)| (size - 1) * stride).sum();
    ty.elements() == 0 || span + 1 == ty.elements() as i64
}

/// Whether two layouts of a tensor of `shape` have its dimensions in the same order in memory; those of size 1 lie anywhere.
pub fn same_order(shape: &[i64], a: &[i64], b: &[i64]) -> bool {
    let order = |strides| memory_order(strides).into_iter().filter(|dim| shape[*dim] != 1);
    order(a).eq(order(b))
}

/// Strides without gaps for `shape`, dimensions ordered in memory as `like` orders them.
fn dense_strides(shape: &[i64], like: &[i64]) -> Dims {
    let order = memory_order(like);
    let mut strides: Dims = smallvec::smallvec![1; shape.len()];
    let mut step = 1;
    for dim in order.into_iter().rev() {
        strides[dim] = step;
        step *= shape[dim].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Dtype;

    #[test]
    fn a_part_keeps_the_memory_order_of_the_whole() {
        let mut ty = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[2, 8, 6]));
        ty.strides = Dims::from_slice(&[48, 1, 8]);
        let part = local_type(&ty, Placement::shard(1), 4);
        assert_eq!((part.shape.as_slice(), part.strides.as_slice()), (&[2, 2, 6][..], &[12, 1, 2][..]));
    }
}
