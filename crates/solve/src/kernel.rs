//! The inner kernel: add the arrays of a bucket and minimise over one variable.
//!
//! Cells are non-negative and at most [`INFINITE`], of which seven can be added. Every array is first laid out with the
//! variable that goes as its slowest axis, so that the innermost loops run over contiguous cells of the result.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::{
    Cost, Failure,
    array::{INFINITE, Store, for_each_run, permute, strides},
};

/// Axes, as bits of their positions in the bucket.
pub(crate) type Mask = u64;

/// Innermost loops should be at least this long.
const BLOCK: usize = 32;

/// What is eliminated at once: arrays on subsets of axes that all contain the pivot.
pub(crate) struct Bucket {
    /// Sizes of the axes; arrays have theirs in the same order.
    pub sizes: SmallVec<[u32; 12]>,
    /// The axis that is minimised over.
    pub pivot: usize,
    /// Number of an array, and its axes.
    pub operands: SmallVec<[(crate::array::ArrayId, Mask); 8]>,
}

/// An array whose slowest axis is the pivot, followed by the axes of `mask`.
struct Operand<'a> {
    mask: Mask,
    cells: Cow<'a, [i64]>,
}

impl Bucket {
    /// For each state of the other axes, the least sum over the states of the pivot. Not normalised; what is forbidden is
    /// at least [`INFINITE`].
    pub fn minimise(&self, store: &Store) -> Result<Vec<i64>, Failure> {
        let greatest: i64 = self.operands.iter().map(|(id, _)| store[*id].max).fold(0, i64::saturating_add);
        if greatest >= Cost::LIMIT.0 {
            return Err(Failure::CostOverflow);
        }
        let mut operands = self.lay_out(store);
        self.merge(&mut operands);
        Ok(self.reduce(operands))
    }

    fn axes(&self, mask: Mask) -> impl DoubleEndedIterator<Item = usize> + use<'_> {
        (0..self.sizes.len()).filter(move |axis| mask >> axis & 1 == 1)
    }

    fn cells(&self, mask: Mask) -> usize {
        self.axes(mask).map(|axis| self.sizes[axis] as usize).product()
    }

    fn states(&self) -> usize {
        self.sizes[self.pivot] as usize
    }

    /// Brings the pivot to the front of every array.
    fn lay_out<'a>(&self, store: &'a Store) -> Vec<Operand<'a>> {
        let pivot = 1 << self.pivot;
        let lay_out = |&(id, mask): &(_, Mask)| {
            let array = &store[id];
            let axis = (mask & (pivot - 1)).count_ones() as usize;
            let cells = if axis == 0 {
                Cow::Borrowed(&*array.cells)
            } else {
                let axes: SmallVec<[usize; 8]> = std::iter::once(axis)
                    .chain((0..array.shape.len()).filter(|&other| other != axis))
                    .collect();
                Cow::Owned(permute(&array.shape, &array.cells, &axes).1)
            };
            Operand { mask: mask & !pivot, cells }
        };
        self.operands.iter().map(lay_out).collect()
    }

    /// Adds arrays up before the reduction, the smallest sums first, until at most three are left.
    fn merge(&self, operands: &mut Vec<Operand<'_>>) {
        let all = operands.iter().fold(0, |mask, operand| mask | operand.mask);
        let total = self.cells(all);
        while operands.len() > 1 {
            let (cells, i, j) = self.cheapest_pair(operands);
            if operands.len() <= 3 && cells * 2 > total && cells > operands[i].cells.len() / self.states() {
                break;
            }
            let other = operands.remove(j);
            operands[i] = self.sum(&operands[i], &other);
        }
    }

    /// The pair whose sum has the fewest cells; of these the first.
    fn cheapest_pair(&self, operands: &[Operand<'_>]) -> (usize, usize, usize) {
        let pairs = (0..operands.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
        let cost = |(i, j): (usize, usize)| (self.cells(operands[i].mask | operands[j].mask), i, j);
        pairs.map(cost).min().expect("there are two operands")
    }

    fn sum(&self, a: &Operand<'_>, b: &Operand<'_>) -> Operand<'static> {
        let mask = a.mask | b.mask;
        let mut cells = self.spread(a, mask);
        let (shape, steps) = self.steps(b, mask);
        let mut rest = cells.as_mut_slice();
        for_each_run(&shape, &steps, |run| {
            let (cells, tail) = std::mem::take(&mut rest).split_at_mut(run.length);
            rest = tail;
            match run.step {
                0 => cells.iter_mut().for_each(|cell| *cell = (*cell + b.cells[run.offset]).min(INFINITE)),
                1 => {
                    let others = &b.cells[run.offset..][..run.length];
                    cells.iter_mut().zip(others).for_each(|(cell, other)| *cell = (*cell + other).min(INFINITE));
                }
                _ => unreachable!("axes are in the same order in all arrays"),
            }
        });
        Operand { mask, cells: Cow::Owned(cells) }
    }

    /// The array repeated along the axes of `mask` that it lacks.
    fn spread(&self, operand: &Operand<'_>, mask: Mask) -> Vec<i64> {
        if operand.mask == mask {
            return operand.cells.to_vec();
        }
        let (shape, steps) = self.steps(operand, mask);
        let mut cells = Vec::with_capacity(self.cells(mask) * self.states());
        for_each_run(&shape, &steps, |run| match run.step {
            0 => cells.resize(cells.len() + run.length, operand.cells[run.offset]),
            1 => cells.extend_from_slice(&operand.cells[run.offset..][..run.length]),
            _ => unreachable!("axes are in the same order in all arrays"),
        });
        cells
    }

    /// Sizes of the pivot and of the axes of `mask`, with the array's stride along each: 0 along an axis that it lacks.
    fn steps(&self, operand: &Operand<'_>, mask: Mask) -> (SmallVec<[u32; 12]>, SmallVec<[usize; 12]>) {
        let own: SmallVec<[u32; 12]> =
            std::iter::once(self.pivot).chain(self.axes(operand.mask)).map(|axis| self.sizes[axis]).collect();
        let mut own_strides = strides(&own).into_iter();
        let mut shape = SmallVec::from_slice(&[self.sizes[self.pivot]]);
        let mut steps: SmallVec<[usize; 12]> = own_strides.next().into_iter().collect();
        for axis in self.axes(mask) {
            shape.push(self.sizes[axis]);
            let has = operand.mask >> axis & 1 == 1;
            steps.push(if has { own_strides.next().expect("one stride for each axis") } else { 0 });
        }
        (shape, steps)
    }

    /// Minimises over the pivot. The fastest axes of the result form blocks; an array covers a block wholly or not at all.
    fn reduce(&self, mut operands: Vec<Operand<'_>>) -> Vec<i64> {
        let all = operands.iter().fold(0, |mask, operand| mask | operand.mask);
        let mut block: Mask = 0;
        for axis in self.axes(all).rev() {
            if self.cells(block) >= BLOCK {
                break;
            }
            block |= 1 << axis;
        }
        for operand in &mut operands {
            if operand.mask & block != 0 && operand.mask & block != block {
                let mask = operand.mask | block;
                *operand = Operand { mask, cells: Cow::Owned(self.spread(operand, mask)) };
            }
        }
        // What covers blocks comes first.
        operands.sort_by_key(|operand| operand.mask & block == 0);
        let covering = operands.iter().filter(|operand| operand.mask & block != 0).count();
        let mut result = vec![i64::MAX; self.cells(all)];
        let heads: SmallVec<[u32; 12]> = self.axes(all & !block).map(|axis| self.sizes[axis]).collect();
        let mut index: SmallVec<[u32; 12]> = SmallVec::from_elem(0, heads.len());
        let steps: Vec<_> = operands.iter().map(|operand| self.steps(operand, all).1).collect();
        let mut offsets: SmallVec<[usize; 3]> = SmallVec::from_elem(0, operands.len());
        for row in result.chunks_exact_mut(self.cells(block)) {
            self.reduce_row(row, &operands, covering, &offsets, &steps);
            for axis in (0..heads.len()).rev() {
                index[axis] += 1;
                let wraps = index[axis] == heads[axis];
                for (offset, steps) in offsets.iter_mut().zip(&steps) {
                    *offset += steps[axis + 1];
                    if wraps {
                        *offset -= steps[axis + 1] * heads[axis] as usize;
                    }
                }
                if !wraps {
                    break;
                }
                index[axis] = 0;
            }
        }
        result
    }

    fn reduce_row(
        &self,
        row: &mut [i64],
        operands: &[Operand<'_>],
        covering: usize,
        offsets: &[usize],
        steps: &[SmallVec<[usize; 12]>],
    ) {
        for state in 0..self.states() {
            let at = |i: usize| offsets[i] + state * steps[i][0];
            let slice = |i: usize| &operands[i].cells[at(i)..][..row.len()];
            let constant: i64 = (covering..operands.len()).map(|i| operands[i].cells[at(i)]).sum();
            match covering {
                0 => row.iter_mut().for_each(|cell| *cell = (*cell).min(constant)),
                1 => {
                    let a = slice(0);
                    row.iter_mut().zip(a).for_each(|(cell, a)| *cell = (*cell).min(a + constant));
                }
                2 => {
                    let (a, b) = (slice(0), slice(1));
                    let sums = a.iter().zip(b).map(|(a, b)| a + b + constant);
                    row.iter_mut().zip(sums).for_each(|(cell, sum)| *cell = (*cell).min(sum));
                }
                _ => {
                    let (a, b, c) = (slice(0), slice(1), slice(2));
                    let sums = a.iter().zip(b).zip(c).map(|((a, b), c)| a + b + c);
                    row.iter_mut().zip(sums).for_each(|(cell, sum)| *cell = (*cell).min(sum));
                }
            }
        }
    }
}
