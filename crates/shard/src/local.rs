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

/// The type of what an operation on each element of one tensor makes: dense, in the tensor's order in memory; a dimension that only repeats
/// keeps its place among the others. PyTorch's `TensorIterator` orders dimensions so.
pub fn filled_type(ty: &TensorType) -> TensorType {
    let repeats = |dim: usize| ty.strides[dim] == 0;
    if is_dense(ty) && !(0..ty.rank()).any(|dim| repeats(dim) && ty.shape[dim] > 1) {
        return ty.clone();
    }
    // An insertion sort from the innermost dimension outwards, because comparing with a repeated dimension says nothing.
    let mut inwards: Vec<usize> = (0..ty.rank()).rev().collect();
    for start in 1..inwards.len() {
        let mut at = start;
        for below in (0..start).rev() {
            let (inner, outer) = (inwards[below], inwards[at]);
            let size = |dim: usize| (ty.strides[dim], ty.shape[dim]);
            if repeats(inner) || repeats(outer) || size(inner) == size(outer) {
                continue;
            }
            if size(inner) < size(outer) {
                break;
            }
            inwards.swap(below, at);
            at = below;
        }
    }
    let mut strides = ty.strides.clone();
    let mut step = 1;
    for dim in inwards {
        strides[dim] = step;
        step *= ty.shape[dim].max(1);
    }
    TensorType { strides, ..ty.clone() }
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
    fn what_is_made_of_each_element_is_dense_in_the_order_of_its_operand() {
        // shape, strides, and the strides of `x + 1` in PyTorch
        let cases: [[&[i64]; 3]; 7] = [
            [&[2, 3], &[1, 2], &[1, 2]],
            [&[2, 16], &[0, 1], &[16, 1]],
            [&[16, 2], &[1, 0], &[2, 1]],
            [&[3, 2], &[0, 5], &[2, 1]],
            [&[4, 3, 2], &[1, 0, 12], &[1, 4, 12]],
            [&[4, 3, 2], &[0, 1, 3], &[6, 1, 3]],
            [&[4, 3], &[10, 1], &[3, 1]],
        ];
        for [shape, strides, expected] in cases {
            let ty = TensorType {
                strides: strides.into(),
                ..TensorType::contiguous(Dtype::F32, Dims::from_slice(shape))
            };
            assert_eq!(filled_type(&ty).strides.as_slice(), expected, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn a_part_keeps_the_memory_order_of_the_whole() {
        let mut ty = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[2, 8, 6]));
        ty.strides = Dims::from_slice(&[48, 1, 8]);
        let part = local_type(&ty, Placement::shard(1), 4);
        assert_eq!((part.shape.as_slice(), part.strides.as_slice()), (&[2, 2, 6][..], &[12, 1, 2][..]));
    }
}
