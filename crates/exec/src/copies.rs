//! Copies of elements that lie by strides.

use std::{borrow::Cow, cell::Cell};

use smallvec::SmallVec;
use torch_sys::{Cells, Elements, Failure};

/// A dimension of what is copied: how many elements, and how far apart they lie here and there.
pub(crate) struct Dim {
    pub(crate) count: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// The dimensions, of which those that go on in each other are one.
pub(crate) fn dims(sizes: &[i64], from: &[i64], to: &[i64]) -> SmallVec<[Dim; 6]> {
    let mut dims: SmallVec<[Dim; 6]> = SmallVec::new();
    for ((size, from), to) in sizes.iter().zip(from).zip(to).filter(|((size, _), _)| **size != 1) {
        let dim = Dim { count: *size as usize, from: *from as usize, to: *to as usize };
        match dims.last_mut() {
            Some(outer) if outer.from == dim.count * dim.from && outer.to == dim.count * dim.to => {
                *outer = Dim { count: outer.count * dim.count, ..dim };
            }
            _ => dims.push(dim),
        }
    }
    dims
}

/// Copies elements by these dimensions.
pub(crate) fn copy<T: Copy>(from: &[Cell<T>], to: &[Cell<T>], dims: &[Dim]) {
    match dims {
        [] => to[0].set(from[0].get()),
        [Dim { count, from: 1, to: 1 }] => copy_side_by_side(&from[..*count], &to[..*count]),
        [outer, Dim { count, from: 1, to: 1 }] => {
            for at in 0..outer.count {
                copy_side_by_side(&from[at * outer.from..][..*count], &to[at * outer.to..][..*count]);
            }
        }
        [one] => (0..one.count).for_each(|at| to[at * one.to].set(from[at * one.from].get())),
        [outer, inner @ ..] => {
            (0..outer.count).for_each(|at| copy(&from[at * outer.from..], &to[at * outer.to..], inner));
        }
    }
}

/// Copies as many elements as there are, whole blocks of them at once.
#[inline(always)]
fn copy_side_by_side<T: Copy>(from: &[Cell<T>], to: &[Cell<T>]) {
    const BLOCK: usize = 8;
    let count = from.len().min(to.len());
    let mut at = 0;
    while at + BLOCK <= count {
        let (Some(from), Some(to)) = (from[at..].first_chunk::<BLOCK>(), to[at..].first_chunk::<BLOCK>())
        else {
            break;
        };
        // All are read before one is written, so that these are vectors.
        let mut block = [from[0].get(); BLOCK];
        for lane in 1..BLOCK {
            block[lane] = from[lane].get();
        }
        for lane in 0..BLOCK {
            to[lane].set(block[lane]);
        }
        at += BLOCK;
    }
    while at < count {
        to[at].set(from[at].get());
        at += 1;
    }
}

/// Copies numbers that lie in order to the elements of a tensor.
pub(crate) fn copy_back<T: Copy>(from: &[Cell<T>], to: &[Cell<T>], lies: &Elements<'_>) {
    if !lies.sizes.contains(&0) {
        copy(from, to, &dims(lies.sizes, &ir::contiguous_strides(lies.sizes), lies.strides));
    }
}

/// The elements of a tensor of whole numbers, in order.
pub(crate) fn whole_numbers<'a>(elements: &Elements<'a>) -> Result<Cow<'a, [Cell<i64>]>, Failure> {
    match elements.cells {
        Cells::Int64(cells) => Ok(side_by_side(cells, elements)),
        _ => Err(other_types()),
    }
}

/// The elements of a tensor in order, one behind the other.
pub(crate) fn side_by_side<'a, T: Copy + Default>(
    cells: &'a [Cell<T>],
    elements: &Elements<'a>,
) -> Cow<'a, [Cell<T>]> {
    let strides = ir::contiguous_strides(elements.sizes);
    let dims = dims(elements.sizes, elements.strides, &strides);
    if dims.iter().all(|dim| dim.from == dim.to) || elements.sizes.contains(&0) {
        return Cow::Borrowed(cells);
    }
    let count = elements.sizes.iter().product::<i64>() as usize;
    let made = vec![Cell::new(T::default()); count];
    copy(cells, &made, &dims);
    Cow::Owned(made)
}

#[cold]
pub(crate) fn other_types() -> Failure {
    Failure("tensors are of other element types than the step was captured with".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_that_go_on_in_each_other_are_one() {
        let counts = |sizes: &[i64], from: &[i64], to: &[i64]| {
            dims(sizes, from, to).iter().map(|dim| (dim.count, dim.from, dim.to)).collect::<Vec<_>>()
        };
        assert_eq!(counts(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]), [(24, 1, 1)]);
        assert_eq!(counts(&[2, 3, 4], &[12, 4, 1], &[24, 4, 1]), [(2, 12, 24), (12, 1, 1)]);
        assert_eq!(counts(&[2, 1, 4], &[4, 7, 1], &[4, 9, 1]), [(8, 1, 1)]);
        assert_eq!(counts(&[], &[], &[]), []);
    }
}
