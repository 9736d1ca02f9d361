//! The loops of a kernel: its domain with as few dimensions as possible.

use smallvec::SmallVec;

use crate::{Access, Kernel};

/// Strides of an operand along outer loops, or of operands along a loop.
pub type Strides<const COUNT: usize> = SmallVec<[usize; COUNT]>;

/// The loops around the innermost one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Nest {
    /// Sizes of the outer loops, the outermost first.
    pub outer: Vec<usize>,
    /// How many points the innermost loop has.
    pub inner: usize,
    /// For each operand its strides along the outer loops, in elements.
    pub outer_strides: Vec<Strides<3>>,
    /// For each operand its stride along the innermost loop, in elements.
    pub inner_strides: Strides<12>,
}

impl Nest {
    /// The loops of a verified kernel: dimensions of one point vanish, the order is that of the first operand that is written, and
    /// neighbours that every operand walks through as one are one. The row of a kernel by rows is the innermost loop.
    pub fn of(kernel: &Kernel) -> Self {
        let strides = |dim: usize| kernel.operands.iter().map(move |operand| operand.strides[dim] as usize);
        let row = kernel.domain.len().checked_sub(1).filter(|_| kernel.by_rows());
        let rest = 0..row.unwrap_or(kernel.domain.len());
        let mut dims: SmallVec<[usize; 6]> = rest.filter(|dim| kernel.domain[*dim] != 1).collect();
        if let Some(first) = kernel.operands.iter().find(|operand| operand.access == Access::Write) {
            dims.sort_by_key(|dim| std::cmp::Reverse(first.strides[*dim]));
        }
        // From the innermost loop outwards: its size, and its stride for each operand.
        let mut loops: SmallVec<[(usize, Strides<12>); 4]> = SmallVec::new();
        if let Some(row) = row {
            let size = kernel.domain[row] as usize;
            // Of a single point no two share an element.
            loops.push((size, strides(row).map(|stride| if size == 1 { 1 } else { stride }).collect()));
        }
        let fixed = loops.len();
        for dim in dims.into_iter().rev() {
            let size = kernel.domain[dim] as usize;
            let strides: Strides<12> = strides(dim).collect();
            let joins = loops.len() > fixed;
            match loops.last_mut() {
                Some((inner, steps))
                    if joins && steps.iter().zip(&strides).all(|(step, stride)| step * *inner == *stride) =>
                {
                    *inner *= size;
                }
                _ => loops.push((size, strides)),
            }
        }
        loops.reverse();
        let (inner, inner_strides) =
            loops.pop().unwrap_or_else(|| (1, SmallVec::from_elem(1, kernel.operands.len())));
        let along = |operand: usize| loops.iter().map(|(_, strides)| strides[operand]).collect();
        Self {
            outer_strides: (0..kernel.operands.len()).map(along).collect(),
            outer: loops.iter().map(|(size, _)| *size).collect(),
            inner,
            inner_strides,
        }
    }

    /// How many times the innermost loop runs.
    pub fn rows(&self) -> usize {
        self.outer.iter().product()
    }

    /// The index of the first element that `operand` has in a row.
    #[inline]
    pub fn start(&self, operand: usize, row: usize) -> usize {
        let mut left = row;
        let mut index = 0;
        for (size, stride) in self.outer.iter().zip(&self.outer_strides[operand]).rev() {
            index += left % size * stride;
            left /= size;
        }
        index
    }
}
