//! Local types.

use std::cmp::Ordering;

use ir::{Dims, Placement, TensorType, local_shape_at, memory_order};

/// The type of the local tensor that the rank at `coordinate` of `ranks` makes: dense, with its dimensions in the same order in memory as the
/// global tensor's.
pub fn local_type(ty: &TensorType, placement: Placement, ranks: u32, coordinate: u32) -> TensorType {
    let shape = local_shape_at(&ty.shape, placement, ranks, coordinate);
    let strides = if placement == Placement::Replicate && is_dense(ty) {
        ty.strides.clone()
    } else {
        dense_strides(&shape, &ty.strides)
    };
    TensorType { dtype: ty.dtype, shape, strides, device: ty.device }
}

/// The type of what an operation on each element of one tensor makes.
pub fn filled_type(ty: &TensorType) -> TensorType {
    TensorType { strides: filled_strides(&[ty], &ty.shape), ..ty.clone() }
}

/// The strides of what an operation on each element of `operands`, broadcast to `shape`, makes: dense, in the order in memory of the first
/// operand that says so; a dimension that only repeats keeps its place among the others. PyTorch's `TensorIterator` orders dimensions so.
pub fn filled_strides(operands: &[&TensorType], shape: &[i64]) -> Dims {
    let first = operands[0];
    let alike = |ty: &&TensorType| ty.shape.as_slice() == shape && ty.strides == first.strides;
    if operands.iter().all(alike) && is_dense(first) && !first.repeats() {
        return first.strides.clone();
    }
    let steps: Vec<Dims> = operands.iter().map(|ty| broadcast_strides(ty, shape)).collect();
    // An insertion sort from the innermost dimension outwards, because comparing with a repeated dimension says nothing.
    let mut inwards: Vec<usize> = (0..shape.len()).rev().collect();
    for start in 1..inwards.len() {
        let mut at = start;
        for below in (0..start).rev() {
            match compared(&steps, shape, inwards[below], inwards[at]) {
                Ordering::Less => break,
                Ordering::Equal => {}
                Ordering::Greater => {
                    inwards.swap(below, at);
                    at = below;
                }
            }
        }
    }
    let mut strides: Dims = smallvec::smallvec![1; shape.len()];
    let mut step = 1;
    for dim in inwards {
        strides[dim] = step;
        step *= shape[dim].max(1);
    }
    strides
}

/// The strides of a tensor along the dimensions of `shape`, which it is broadcast to: 0 where it repeats.
fn broadcast_strides(ty: &TensorType, shape: &[i64]) -> Dims {
    let new = shape.len() - ty.rank();
    let step = |dim: usize| match dim.checked_sub(new) {
        Some(own) if ty.shape[own] == shape[dim] => ty.strides[own],
        _ => 0,
    };
    (0..shape.len()).map(step).collect()
}

/// Whether dimension `inner` belongs within dimension `outer` (less) or around it, by the first operand that says either.
fn compared(steps: &[Dims], shape: &[i64], inner: usize, outer: usize) -> Ordering {
    for strides in steps.iter().filter(|strides| strides[inner] != 0 && strides[outer] != 0) {
        match strides[inner].cmp(&strides[outer]) {
            Ordering::Equal if shape[inner] > shape[outer] => return Ordering::Greater,
            Ordering::Equal => {}
            decided => return decided,
        }
    }
    Ordering::Equal
}

fn is_dense(ty: &TensorType) -> bool {
    let span: i64 = ty.shape.iter().zip(&ty.strides).map(|(size, stride)| (size - 1) * stride).sum();
    ty.elements() == 0 || span + 1 == ty.elements() as i64
}

/// Whether two layouts of a tensor of `shape` have its dimensions in the same order in memory; those of size 1 lie anywhere.
pub fn same_order(shape: &[i64], a: &[i64], b: &[i64]) -> bool {
    let order = |strides| memory_order(strides).into_iter().filter(|dim| shape[*dim] != 1);
    a == b || order(a).eq(order(b))
}

/// Strides without gaps for `shape`, dimensions ordered in memory as `like` orders them.
pub fn dense_strides(shape: &[i64], like: &[i64]) -> Dims {
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
    fn what_is_made_of_two_tensors_lies_in_memory_as_the_first_that_says_how() {
        // shape and strides of `a`, of `b`, and the strides of `a + b` in PyTorch
        let cases: [[&[i64]; 5]; 8] = [
            [&[2, 3, 4, 5], &[60, 1, 15, 3], &[1, 3, 1, 1], &[3, 1, 1, 1], &[60, 1, 15, 3]],
            [&[4, 3], &[1, 4], &[4, 1], &[1, 1], &[1, 4]],
            [&[4, 3], &[1, 4], &[4, 3], &[3, 1], &[1, 4]],
            [&[4, 3], &[0, 1], &[4, 3], &[1, 4], &[1, 4]],
            [&[3], &[1], &[2, 3], &[1, 2], &[1, 2]],
            [&[2, 1, 3], &[3, 3, 1], &[1, 4, 1], &[4, 1, 4], &[12, 3, 1]],
            [&[2, 2], &[1, 1], &[2, 2], &[1, 2], &[1, 2]],
            [&[4, 1, 2], &[1, 4, 4], &[4, 3, 2], &[6, 1, 3], &[3, 1, 12]],
        ];
        let ty = |shape: &[i64], strides: &[i64]| TensorType {
            strides: strides.into(),
            ..TensorType::contiguous(Dtype::F32, Dims::from_slice(shape))
        };
        for case @ [a, a_strides, b, b_strides, expected] in cases {
            let (a, b) = (ty(a, a_strides), ty(b, b_strides));
            let shape = crate::emit::broadcast(&a.shape, &b.shape);
            assert_eq!(filled_strides(&[&a, &b], &shape).as_slice(), expected, "{case:?}");
        }
    }

    #[test]
    fn a_local_tensor_keeps_the_memory_order_of_the_global_one() {
        let mut ty = TensorType::contiguous(Dtype::F32, Dims::from_slice(&[2, 8, 6]));
        ty.strides = Dims::from_slice(&[48, 1, 8]);
        let part = local_type(&ty, Placement::shard(1), 4, 0);
        assert_eq!((part.shape.as_slice(), part.strides.as_slice()), (&[2, 2, 6][..], &[12, 1, 2][..]));
    }
}
