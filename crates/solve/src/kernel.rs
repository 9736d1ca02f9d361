//! The inner kernel: add the arrays of a bucket and minimise over one variable.
//!
//! Cells are non-negative and at most [`INFINITE`], of which seven can be added. The innermost loops run over contiguous
//! cells of the result.

use std::borrow::Cow;

use smallvec::SmallVec;

use crate::{
    Cost, Failure,
    array::{ArrayId, BIAS, INFINITE, Run, Shape, Store, WORST, for_each_run, lesser, strides},
    dual::minima,
};

/// Axes, as bits of their positions in the bucket.
pub(crate) type Mask = u64;

/// Innermost loops need not be longer than this.
const BLOCK: usize = 64;

/// What starting an innermost loop costs, in cells.
const ROW_OVERHEAD: usize = 16;

/// What is eliminated at once: arrays on subsets of axes.
pub(crate) struct Bucket {
    /// Sizes of the axes; arrays have theirs in the same order.
    pub sizes: SmallVec<[u32; 12]>,
    /// The axis that is minimised over.
    pub pivot: usize,
    /// Number of an array, and its axes.
    pub operands: SmallVec<[(ArrayId, Mask); 8]>,
}

/// An array on the axes of `mask`, with a stride for every axis of the bucket: 0 along those that it lacks.
struct Operand<'a> {
    mask: Mask,
    steps: SmallVec<[usize; 12]>,
    cells: Cow<'a, [i64]>,
}

/// Buffers that were used before: large ones are costly to get from the system.
#[derive(Default)]
pub(crate) struct Scratch(Vec<Vec<i64>>);

impl Scratch {
    fn take(&mut self) -> Vec<i64> {
        let mut buffer = self.0.pop().unwrap_or_default();
        buffer.clear();
        buffer
    }

    /// Takes a buffer back.
    pub fn give(&mut self, buffer: Vec<i64>) {
        self.0.push(buffer);
    }

    fn give_all(&mut self, operands: Vec<Operand<'_>>) {
        self.0.extend(operands.into_iter().filter_map(Operand::buffer));
    }
}

impl Operand<'_> {
    fn buffer(self) -> Option<Vec<i64>> {
        match self.cells {
            Cow::Owned(buffer) => Some(buffer),
            Cow::Borrowed(_) => None,
        }
    }
}

impl Bucket {
    /// For each state of the other axes, the least sum over the states of the pivot. Not normalised; what is forbidden is
    /// at least [`INFINITE`].
    pub fn minimise(&self, store: &Store, scratch: &mut Scratch) -> Result<Vec<i64>, Failure> {
        let greatest: i64 = self.operands.iter().map(|(id, _)| store[*id].max).fold(0, i64::saturating_add);
        if greatest >= Cost::LIMIT.0 {
            return Err(Failure::CostOverflow);
        }
        let borrow = |&(id, mask): &(ArrayId, Mask)| {
            let cells = Cow::Borrowed(&*store[id].cells);
            Operand { mask, steps: self.steps(self.axes(mask)), cells }
        };
        let mut operands: Vec<Operand<'_>> = self.operands.iter().map(borrow).collect();
        self.merge(&mut operands, scratch);
        Ok(self.reduce(operands, scratch))
    }

    /// For each state of the pivot, the least sum over all other axes.
    pub fn marginal(&self, store: &Store, scratch: &mut Scratch) -> Result<Vec<i64>, Failure> {
        let others = (0..self.sizes.len()).filter(|axis| *axis != self.pivot);
        let largest = others.max_by_key(|axis| self.sizes[*axis]);
        let mut bucket =
            Self { sizes: self.sizes.clone(), pivot: self.pivot, operands: self.operands.clone() };
        // Without another axis there is nothing to minimise over but one of a single state.
        bucket.pivot = largest.unwrap_or_else(|| {
            bucket.sizes.push(1);
            1
        });
        let cells = bucket.minimise(store, scratch)?;
        let shape = self.shape((0..self.sizes.len()).filter(|axis| *axis != bucket.pivot));
        let axis = self.pivot - usize::from(bucket.pivot < self.pivot);
        let least = minima(&shape, &cells, axis);
        scratch.give(cells);
        Ok(least)
    }

    /// The positions of the axes of `mask`.
    fn axes(&self, mask: Mask) -> impl DoubleEndedIterator<Item = usize> + Clone + use<> {
        (0..self.sizes.len()).filter(move |axis| mask >> axis & 1 == 1)
    }

    fn cells(&self, mask: Mask) -> usize {
        self.axes(mask).map(|axis| self.sizes[axis] as usize).product()
    }

    fn shape(&self, axes: impl Iterator<Item = usize>) -> Shape {
        axes.map(|axis| self.sizes[axis]).collect()
    }

    /// Strides, by axis of the bucket, of an array that has these axes in this order.
    fn steps(&self, axes: impl Iterator<Item = usize> + Clone) -> SmallVec<[usize; 12]> {
        let mut steps = SmallVec::from_elem(0, self.sizes.len());
        let shape = self.shape(axes.clone());
        for (axis, stride) in axes.zip(strides(&shape)) {
            steps[axis] = stride;
        }
        steps
    }

    /// Adds arrays up before the reduction, the smallest sums first, until at most three are left.
    fn merge(&self, operands: &mut Vec<Operand<'_>>, scratch: &mut Scratch) {
        let all = operands.iter().fold(0, |mask, operand| mask | operand.mask);
        let total = self.cells(all);
        while operands.len() > 1 {
            let (cells, i, j) = self.cheapest_pair(operands);
            if operands.len() <= 3 && cells * 2 > total && cells > operands[i].cells.len() {
                break;
            }
            let other = operands.remove(j);
            let mask = operands[i].mask | other.mask;
            let axes = || self.axes(mask);
            let mut cells = self.lay_out(&operands[i], axes(), scratch);
            self.add(&mut cells, &other, axes());
            let sum = Operand { mask, steps: self.steps(axes()), cells: Cow::Owned(cells) };
            let merged = std::mem::replace(&mut operands[i], sum);
            scratch.give_all(vec![merged, other]);
        }
    }

    /// The pair whose sum has the fewest cells; of these the first.
    fn cheapest_pair(&self, operands: &[Operand<'_>]) -> (usize, usize, usize) {
        let pairs = (0..operands.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
        let cost = |(i, j): (usize, usize)| (self.cells(operands[i].mask | operands[j].mask), i, j);
        pairs.map(cost).min().expect("there are two operands")
    }

    fn for_each_run(
        &self,
        operand: &Operand<'_>,
        axes: impl Iterator<Item = usize> + Clone,
        visit: impl FnMut(Run),
    ) {
        let steps: SmallVec<[usize; 12]> = axes.clone().map(|axis| operand.steps[axis]).collect();
        for_each_run(&self.shape(axes), &steps, visit);
    }

    /// The array on these axes in this order, repeated along those that it lacks.
    fn lay_out(
        &self,
        operand: &Operand<'_>,
        axes: impl Iterator<Item = usize> + Clone,
        scratch: &mut Scratch,
    ) -> Vec<i64> {
        let mut cells = scratch.take();
        cells.reserve(axes.clone().map(|axis| self.sizes[axis] as usize).product());
        self.for_each_run(operand, axes, |run| match run.step {
            0 => cells.resize(cells.len() + run.length, operand.cells[run.offset]),
            1 => cells.extend_from_slice(&operand.cells[run.offset..][..run.length]),
            _ => cells.extend(run.of(&operand.cells)),
        });
        cells
    }

    /// Adds the array to `cells`, which have these axes in this order.
    fn add(&self, cells: &mut [i64], operand: &Operand<'_>, axes: impl Iterator<Item = usize> + Clone) {
        let mut rest = cells;
        self.for_each_run(operand, axes, |run| {
            let (cells, tail) = std::mem::take(&mut rest).split_at_mut(run.length);
            rest = tail;
            let add = |(cell, other): (&mut i64, i64)| *cell = (*cell + other).min(INFINITE);
            match run.step {
                0 => cells.iter_mut().for_each(|cell| add((cell, operand.cells[run.offset]))),
                1 => cells.iter_mut().zip(operand.cells[run.offset..].iter().copied()).for_each(add),
                _ => cells.iter_mut().zip(run.of(&operand.cells)).for_each(add),
            }
        });
    }

    /// Minimises over the pivot.
    fn reduce(&self, mut operands: Vec<Operand<'_>>, scratch: &mut Scratch) -> Vec<i64> {
        let all = operands.iter().fold(0, |mask, operand| mask | operand.mask) & !(1 << self.pivot);
        let block = self.best_block(&operands, all);
        // What covers blocks comes first.
        operands.sort_by_key(|operand| operand.mask & block == 0);
        let covering = operands.iter().filter(|operand| operand.mask & block != 0).count();
        for operand in operands[..covering].iter_mut().filter(|operand| !self.covers(operand, block)) {
            let axes = self.axes(operand.mask & !block).chain(self.axes(block));
            let cells = self.lay_out(operand, axes.clone(), scratch);
            let moved = Operand { mask: operand.mask, steps: self.steps(axes), cells: Cow::Owned(cells) };
            scratch.give_all(vec![std::mem::replace(operand, moved)]);
        }
        let mut result = scratch.take();
        result.resize(self.cells(all), WORST);
        self.reduce_blocks(&operands, covering, (all, block), &mut result);
        scratch.give_all(operands);
        if self.is_last(block, all) {
            return result;
        }
        let steps = self.steps(self.axes(all & !block).chain(self.axes(block)));
        let result = Operand { mask: all, steps, cells: Cow::Owned(result) };
        let sorted = self.lay_out(&result, self.axes(all), scratch);
        scratch.give_all(vec![result]);
        sorted
    }

    /// Some axes of the result that all belong to the same arrays, so that each array covers them wholly or not at all:
    /// innermost loops run over them. Those that save most work, roughly in cells.
    fn best_block(&self, operands: &[Operand<'_>], all: Mask) -> Mask {
        let signature = |axis: usize| {
            operands.iter().map(|operand| operand.mask >> axis & 1).collect::<SmallVec<[Mask; 3]>>()
        };
        let mut blocks: SmallVec<[(SmallVec<[Mask; 3]>, Mask); 8]> = SmallVec::new();
        for axis in self.axes(all).rev() {
            let signature = signature(axis);
            match blocks.iter_mut().find(|(known, _)| *known == signature) {
                Some((_, block)) if self.cells(*block) < BLOCK => *block |= 1 << axis,
                Some(_) => {}
                None => blocks.push((signature, 1 << axis)),
            }
        }
        let work = |block: Mask| {
            let rows = self.cells(all) / self.cells(block) * self.sizes[self.pivot] as usize;
            let moved =
                operands.iter().filter(|operand| operand.mask & block != 0 && !self.covers(operand, block));
            let result = if self.is_last(block, all) { 0 } else { self.cells(all) };
            rows * ROW_OVERHEAD + result + moved.map(|operand| operand.cells.len()).sum::<usize>()
        };
        blocks.into_iter().map(|(_, block)| block).min_by_key(|&block| work(block)).unwrap_or(0)
    }

    fn is_last(&self, block: Mask, all: Mask) -> bool {
        (all & !block) < block & block.wrapping_neg() || block == 0
    }

    /// Whether the array has the axes of the block contiguously in their order.
    fn covers(&self, operand: &Operand<'_>, block: Mask) -> bool {
        let contiguous = self.steps(self.axes(block));
        self.axes(block).all(|axis| operand.steps[axis] == contiguous[axis])
    }

    fn reduce_blocks(
        &self,
        operands: &[Operand<'_>],
        covering: usize,
        (all, block): (Mask, Mask),
        result: &mut [i64],
    ) {
        let heads: SmallVec<[usize; 12]> = self.axes(all & !block).collect();
        let mut index: SmallVec<[u32; 12]> = SmallVec::from_elem(0, heads.len());
        let mut offsets: SmallVec<[usize; 3]> = SmallVec::from_elem(0, operands.len());
        for row in result.chunks_exact_mut(self.cells(block)) {
            self.reduce_row(row, operands, covering, &offsets);
            for (i, &axis) in index.iter_mut().zip(&heads).rev() {
                *i += 1;
                let back = if *i == self.sizes[axis] { self.sizes[axis] as usize } else { 0 };
                for (offset, operand) in offsets.iter_mut().zip(operands) {
                    *offset = *offset + operand.steps[axis] - operand.steps[axis] * back;
                }
                if back == 0 {
                    break;
                }
                *i = 0;
            }
        }
    }

    fn reduce_row(&self, row: &mut [i64], operands: &[Operand<'_>], covering: usize, offsets: &[usize]) {
        for state in 0..self.sizes[self.pivot] as usize {
            let at = |i: usize| offsets[i] + state * operands[i].steps[self.pivot];
            let slice = |i: usize| &operands[i].cells[at(i)..][..row.len()];
            let constant = BIAS + (covering..operands.len()).map(|i| operands[i].cells[at(i)]).sum::<i64>();
            match covering {
                0 => row.iter_mut().for_each(|cell| *cell = lesser(*cell, constant)),
                1 => {
                    let sums = slice(0).iter().map(|a| a + constant);
                    row.iter_mut().zip(sums).for_each(|(cell, sum)| *cell = lesser(*cell, sum));
                }
                2 => {
                    let sums = slice(0).iter().zip(slice(1)).map(|(a, b)| a + b + constant);
                    row.iter_mut().zip(sums).for_each(|(cell, sum)| *cell = lesser(*cell, sum));
                }
                _ => {
                    let sums =
                        slice(0).iter().zip(slice(1)).zip(slice(2)).map(|((a, b), c)| a + b + c + constant);
                    row.iter_mut().zip(sums).for_each(|(cell, sum)| *cell = lesser(*cell, sum));
                }
            }
        }
        for cell in row {
            *cell -= BIAS;
        }
    }
}
