//! How a kernel is laid out over threads, and which of its accesses take several elements at once.

use loops::{
    Access, Kernel, Nest, Op, OperandId, Value,
    phases::{Phases, lanes, span, spans},
};

/// Threads of a block of a kernel by rows; a row that has a block for itself has them all.
pub(crate) const ROW_BLOCK: usize = 128;
/// Threads of a block of any other kernel.
pub(crate) const POINT_BLOCK: usize = 256;
/// The most blocks of a kernel whose threads take several points each.
pub(crate) const MOST_BLOCKS: usize = 1 << 14;
/// Fewer rows than this do not fill a device with 32 threads each.
const FEW_ROWS: usize = 2048;
/// Threads of a warp.
pub(crate) const WARP: usize = 32;

/// How many elements a thread takes at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// As many as fit the kernel: needs operands that begin where such accesses may ([`Emitted::aligned`](crate::Emitted)).
    Wide,
    /// One.
    Narrow,
}

/// A kernel's layout.
pub(crate) struct Form<'a> {
    pub(crate) kernel: &'a Kernel,
    pub(crate) nest: Nest,
    pub(crate) phases: Phases,
    pub(crate) by_rows: bool,
    /// Elements that a thread takes at once.
    pub(crate) width: usize,
    /// How far apart these are: neighbours, or, of a long row whose elements are not aligned, so many that threads read neighbours.
    pub(crate) apart: usize,
    /// Threads of a row, where the kernel is by rows, or of a span of it.
    pub(crate) team: usize,
    /// How many spans of a row have a team each, side by side.
    pub(crate) spans: usize,
    /// How many rows a team has one after the other, where its threads hold their sums; none where it has one.
    pub(crate) rows_each: Option<usize>,
}

impl<'a> Form<'a> {
    pub(crate) fn of(kernel: &'a Kernel, width: Width) -> Self {
        let mut form = Self::single(kernel);
        if form.phases.most_reductions() > 0 {
            form.spans = spans(form.nest.inner).max(1);
        }
        if width == Width::Wide {
            form.width = form.widest();
        }
        if form.spans > 1 && form.width == 1 {
            (form.width, form.apart) = (lanes(form.nest.inner) / WARP, WARP);
        }
        form.team = lanes(form.nest.inner) / form.width;
        form
    }

    /// The layout in which each thread takes single elements, and those of a team a row.
    pub(crate) fn single(kernel: &'a Kernel) -> Self {
        let (nest, by_rows) = (Nest::of(kernel), kernel.by_rows());
        let phases = Phases::of(kernel, &nest.inner_strides, by_rows);
        let team = lanes(nest.inner);
        Self { kernel, nest, phases, by_rows, width: 1, apart: 1, team, spans: 1, rows_each: None }
    }

    fn widest(&self) -> usize {
        let long_and_few = lanes(self.nest.inner) > WARP && self.nest.rows() < FEW_ROWS && self.spans == 1;
        if self.nest.inner < 4 || self.by_rows && long_and_few || !self.any_is_wide(4) {
            return 1;
        }
        let short = |operand: usize| self.kernel.operands[operand].element.bytes() <= 2;
        let all_short = self.wide_operands(4).iter().all(|operand| short(*operand));
        if !self.by_rows && all_short && self.nest.inner >= 8 && self.any_is_wide(8) { 8 } else { 4 }
    }

    /// How far apart the points are that a thread has of a row.
    pub(crate) const fn step(&self) -> usize {
        self.width * self.team
    }

    /// How many points a team has of a row.
    pub(crate) const fn span(&self) -> usize {
        if self.spans > 1 { span(self.nest.inner) } else { self.nest.inner }
    }

    /// How many points, or pieces of several of them, a thread has of a row.
    pub(crate) const fn pieces(&self) -> usize {
        self.span().div_ceil(self.step())
    }

    /// Whether no piece of a row has fewer points than others.
    pub(crate) const fn is_whole(&self) -> bool {
        let piece = if self.apart > 1 { self.step() } else { self.width };
        self.nest.inner.is_multiple_of(piece)
    }

    pub(crate) fn any_is_wide(&self, width: usize) -> bool {
        !self.wide_operands(width).is_empty()
    }

    /// The operands of which some access may take so many elements at once.
    fn wide_operands(&self, width: usize) -> Vec<usize> {
        let is = |operand: &usize| {
            let offsets = self.kernel.offsets(OperandId(*operand as u32));
            self.kernel.operands[*operand].access != Access::Add
                && offsets.iter().any(|offset| self.is_wide_at(*operand, *offset, width))
        };
        (0..self.kernel.operands.len()).filter(is).collect()
    }

    fn is_wide_at(&self, operand: usize, offset: u32, width: usize) -> bool {
        width > 1
            && self.apart == 1
            && self.nest.inner_strides[operand] == 1
            && self.nest.outer_strides[operand].iter().all(|stride| stride % width == 0)
            && (offset as usize).is_multiple_of(width)
    }

    /// Whether an access takes several elements at once.
    pub(crate) fn is_wide(&self, operand: OperandId, offset: u32) -> bool {
        self.is_wide_at(operand.0 as usize, offset, self.width)
    }

    /// Operands of which several elements are taken at once, each with the bytes that its address must be a multiple of.
    pub(crate) fn aligned(&self) -> Vec<(usize, usize)> {
        let bytes = |operand: usize| self.width * self.kernel.operands[operand].element.bytes();
        self.wide_operands(self.width).into_iter().map(|operand| (operand, bytes(operand))).collect()
    }

    /// The type of positions: 32 bits where all fit, those of as many numbers as are kept too.
    pub(crate) fn index(&self, kept: usize) -> &'static str {
        let most = (0..self.kernel.operands.len()).map(|operand| self.last(operand)).max().unwrap_or(0);
        let most = most.max(kept);
        // Room for a grid beyond the last point.
        let points = self.nest.rows().saturating_mul(self.nest.inner.max(1) + self.width + ROW_BLOCK);
        if most.max(points) < 1 << 31 { "unsigned int" } else { "unsigned long long" }
    }

    /// No less than the largest index into an operand.
    fn last(&self, operand: usize) -> usize {
        let outer = self.nest.outer.iter().zip(&self.nest.outer_strides[operand]);
        let outer: usize = outer.map(|(size, stride)| size.saturating_mul(*stride)).sum();
        let behind = self.kernel.offsets(OperandId(operand as u32)).last().copied().unwrap_or(0);
        outer + self.nest.inner * self.nest.inner_strides[operand] + behind as usize
    }

    /// The reductions that sums over rows take.
    pub(crate) fn numbers(&self) -> Vec<Value> {
        let mut needed = vec![false; self.kernel.body.len()];
        let sums = self.kernel.stores.iter().filter(|store| self.is_sum(store.operand));
        sums.for_each(|store| needed[store.value.0 as usize] = true);
        for index in
            (0..needed.len()).rev().filter(|index| !matches!(self.kernel.body[*index], Op::Reduce(..)))
        {
            if needed[index] {
                self.kernel.body[index].operands().for_each(|value| needed[value.0 as usize] = true);
            }
        }
        let values = (0..needed.len()).filter(|index| needed[*index]).map(|index| Value(index as u32));
        values.filter(|value| matches!(self.kernel.op(*value), Op::Reduce(..))).collect()
    }

    pub(crate) fn is_sum(&self, operand: OperandId) -> bool {
        self.kernel.operands[operand.0 as usize].access == Access::Add
    }
}
