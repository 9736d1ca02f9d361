//! Strides of views, and of what lies in memory as its operand does.

use aten::{Call, Strides};
use ir::{Dims, TensorType};

/// The strides of the result of a view operation (or one that keeps strides) on an operand of type `operand`, if it is one that is known;
/// `shape` is the result's.
pub fn view_strides(call: &Call<'_>, operand: &TensorType, shape: &[i64]) -> Option<Dims> {
    let rank = operand.rank();
    let mut strides = operand.strides.clone();
    if rank == 0 && shape.is_empty() {
        return Some(strides);
    }
    let kind = aten::row(call.name())?.strides;
    match kind {
        Strides::Dense | Strides::RowMajor | Strides::Suggested(_) => return None,
        Strides::Kept => {}
        Strides::Reversed | Strides::Swapped | Strides::Permuted => {
            strides = kind.order(call)?.into_iter().map(|dim| operand.strides[dim]).collect();
        }
        Strides::Reshaped => return reshaped(operand, shape),
        Strides::Inserted => {
            let dim = call.dim(1, rank + 1)?;
            let step = if dim < rank { operand.shape[dim] * operand.strides[dim] } else { 1 };
            strides.insert(dim, step);
        }
        Strides::Squeezed => {
            let gone = call.named_dims(1, rank);
            let kept = (0..rank).filter(|dim| !(gone.contains(dim) && operand.shape[*dim] == 1));
            strides = kept.map(|dim| operand.strides[dim]).collect();
        }
        Strides::Expanded => {
            let new = shape.len().checked_sub(rank)?;
            let repeated = |dim: usize| dim < new || operand.shape[dim - new] != shape[dim];
            strides = (0..shape.len())
                .map(|dim| if repeated(dim) { 0 } else { operand.strides[dim - new] })
                .collect();
        }
        Strides::Paired => {
            strides.pop();
            strides.iter_mut().for_each(|stride| *stride /= 2);
        }
        Strides::Parted => {
            strides.iter_mut().for_each(|stride| *stride *= 2);
            strides.push(1);
        }
        Strides::Selected => {
            strides.remove(call.dim(1, rank)?);
        }
        Strides::Sliced => strides[call.dim(1, rank)?] *= call.int(4).unwrap_or(1),
        Strides::Windows => {
            let dim = call.dim(1, rank)?;
            strides.push(strides[dim]);
            strides[dim] *= call.int(3)?;
        }
        Strides::Diagonal => {
            let (one, other) = (call.dim(2, rank)?, call.dim(3, rank)?);
            let along = strides[one] + strides[other];
            strides.remove(one.max(other));
            strides.remove(one.min(other));
            strides.push(along);
        }
    }
    Some(strides)
}

/// Whether PyTorch takes a tensor for one with channels innermost. Strides of dimensions of one element count, as they do there
/// (`is_channels_last_strides_2d`), so that a part of a tensor may be none where the whole is one.
pub fn has_channels_innermost(ty: &TensorType) -> bool {
    if !matches!(ty.rank(), 4 | 5) || ty.strides[1] == 0 {
        return false;
    }
    let mut least = 0;
    for dim in std::iter::once(1).chain((2..ty.rank()).rev()).chain([0]) {
        let (size, stride) = (ty.shape[dim], ty.strides[dim]);
        if size == 0 || stride < least || (dim == 0 && least == ty.strides[1]) {
            return false;
        }
        least = stride * size.max(1);
    }
    true
}

/// The strides of a view of `operand` in another shape, if it needs no copy: each run of dimensions that are adjacent in memory is split
/// anew.
pub fn reshaped(operand: &TensorType, shape: &[i64]) -> Option<Dims> {
    if operand.elements() == 0 || shape.is_empty() {
        return Some(ir::contiguous_strides(shape));
    }
    let mut strides: Dims = smallvec::smallvec![0; shape.len()];
    let mut view_dim = shape.len();
    let mut base = *operand.strides.last().unwrap_or(&1);
    let (mut elements, mut view_elements) = (1, 1);
    for dim in (0..operand.rank()).rev() {
        elements *= operand.shape[dim];
        let run_ends =
            dim == 0 || (operand.shape[dim - 1] != 1 && operand.strides[dim - 1] != elements * base);
        if !run_ends {
            continue;
        }
        while view_dim > 0 && (view_elements < elements || shape[view_dim - 1] == 1) {
            view_dim -= 1;
            strides[view_dim] = view_elements * base;
            view_elements *= shape[view_dim];
        }
        if view_elements != elements {
            return None;
        }
        if dim > 0 {
            base = operand.strides[dim - 1];
            (elements, view_elements) = (1, 1);
        }
    }
    if operand.rank() == 0 {
        return Some(smallvec::smallvec![1; shape.len()]);
    }
    (view_dim == 0).then_some(strides)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::Dtype;

    fn strided(shape: &[i64], strides: &[i64]) -> TensorType {
        TensorType { strides: strides.into(), ..TensorType::contiguous(Dtype::F32, Dims::from_slice(shape)) }
    }

    #[test]
    fn channels_are_innermost_where_pytorch_says_so() {
        // shape and strides, and whether `max_pool2d` or `max_pool3d` gives what has channels innermost
        let cases: [(&[i64], &[i64], bool); 8] = [
            (&[2, 3, 4, 5], &[60, 1, 15, 3], true),
            (&[2, 3, 4, 5], &[60, 20, 5, 1], false),
            (&[1, 8, 8, 8], &[512, 1, 64, 8], true),
            (&[1, 8, 8, 8], &[8, 1, 64, 8], false),
            (&[2, 1, 4, 5], &[20, 1, 5, 1], true),
            (&[2, 3, 1, 1], &[3, 1, 1, 1], false),
            (&[1, 3, 1, 1], &[3, 1, 3, 3], true),
            (&[2, 3, 2, 4, 5], &[120, 1, 60, 15, 3], true),
        ];
        for (shape, strides, expected) in cases {
            assert_eq!(has_channels_innermost(&strided(shape, strides)), expected, "{shape:?} {strides:?}");
        }
    }

    #[test]
    fn a_reshape_of_a_strided_tensor_is_a_view_where_runs_allow_it() {
        type Case<'a> = ([&'a [i64]; 3], Option<&'a [i64]>);
        let cases: [Case<'_>; 6] = [
            ([&[2, 3, 4], &[12, 4, 1], &[6, 4]], Some(&[4, 1])),
            ([&[2, 3, 4], &[12, 1, 3], &[6, 4]], None),
            ([&[2, 3, 4], &[24, 4, 1], &[2, 12]], Some(&[24, 1])),
            ([&[2, 3, 4], &[24, 4, 1], &[24]], None),
            ([&[4, 1, 6], &[6, 6, 1], &[2, 2, 6, 1]], Some(&[12, 6, 1, 1])),
            ([&[6], &[2], &[2, 3]], Some(&[6, 2])),
        ];
        for ([shape, strides, to], expected) in cases {
            let found = reshaped(&strided(shape, strides), to);
            assert_eq!(found.as_deref(), expected, "{shape:?} {strides:?} -> {to:?}");
        }
    }
}
