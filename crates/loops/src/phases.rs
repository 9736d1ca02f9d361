//! The order in which a kernel is computed: numbers of a row, then a loop over its points, in turn.

use crate::{Access, Kernel, Op, Store, Value};

/// The most loops over the points of a row.
pub const MOST_LOOPS: usize = 4;

/// What is computed for each row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phases {
    /// One after the other.
    pub list: Vec<Phase>,
    /// What is written once for a row, when all loops are over.
    pub row_stores: Vec<Store>,
    /// For each value whether it is one number for each row.
    pub is_of_row: Vec<bool>,
}

/// Numbers of a row, and a loop over the points of the row.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Phase {
    /// What is computed once, before the loop.
    pub row: Vec<Value>,
    /// What the loop computes.
    pub points: Vec<Value>,
    /// Reductions whose results the loop gives.
    pub reductions: Vec<Value>,
    /// What the loop writes.
    pub stores: Vec<Store>,
}

impl Phase {
    /// Whether there is a loop.
    pub fn loops(&self) -> bool {
        !self.reductions.is_empty() || !self.stores.is_empty()
    }
}

impl Phases {
    /// The phases of a kernel whose operands have these strides along a row. With `hoist`, what is the same at all points of a row is computed
    /// once for it; kernels by rows need that.
    pub fn of(kernel: &Kernel, inner_strides: &[usize], hoist: bool) -> Self {
        let is_of_row = of_row(kernel, inner_strides, hoist);
        let phase = phase_of(kernel);
        let last = phase.iter().copied().max().unwrap_or(0);
        let mut list = vec![Phase::default(); last + 1];
        let (row_stores, stores): (Vec<Store>, Vec<Store>) =
            kernel.stores.iter().partition(|store| hoist && inner_strides[store.operand.0 as usize] == 0);
        for index in 0..kernel.body.len() {
            match kernel.body[index] {
                Op::Const(_) => {}
                Op::Reduce(_, from) => list[phase[from.0 as usize]].reductions.push(Value(index as u32)),
                _ if is_of_row[index] => list[phase[index]].row.push(Value(index as u32)),
                _ => {}
            }
        }
        list[last].stores = stores;
        for phase in &mut list {
            phase.points = points(kernel, phase, &is_of_row);
        }
        Self { list, row_stores, is_of_row }
    }

    /// The most reductions that a loop gives.
    pub fn most_reductions(&self) -> usize {
        self.list.iter().map(|phase| phase.reductions.len()).max().unwrap_or(0)
    }

    /// How many loops over the points of a row there are.
    pub fn loops(&self) -> usize {
        self.list.iter().filter(|phase| phase.loops()).count()
    }
}

/// For each value whether it is one number for each row.
pub(crate) fn of_row(kernel: &Kernel, inner_strides: &[usize], hoist: bool) -> Vec<bool> {
    let mut is: Vec<bool> = Vec::with_capacity(kernel.body.len());
    for op in &kernel.body {
        is.push(match op {
            Op::Const(_) | Op::Reduce(..) => true,
            Op::Load(operand, _) => hoist && inner_strides[operand.0 as usize] == 0,
            Op::Column => false,
            _ => hoist && op.operands().all(|value| is[value.0 as usize]),
        });
    }
    is
}

/// The phase in which each value can be computed first.
fn phase_of(kernel: &Kernel) -> Vec<usize> {
    let mut phase: Vec<usize> = Vec::with_capacity(kernel.body.len());
    for op in &kernel.body {
        let needed = op.operands().map(|value| phase[value.0 as usize]).max().unwrap_or(0);
        phase.push(needed + usize::from(matches!(op, Op::Reduce(..))));
    }
    phase
}

/// What a loop must compute, definitions before uses.
fn points(kernel: &Kernel, phase: &Phase, is_of_row: &[bool]) -> Vec<Value> {
    let mut needed = vec![false; kernel.body.len()];
    let reduced = phase.reductions.iter().flat_map(|value| kernel.op(*value).operands());
    reduced
        .chain(phase.stores.iter().map(|store| store.value))
        .for_each(|value| needed[value.0 as usize] = true);
    for index in (0..kernel.body.len()).rev() {
        needed[index] &= !is_of_row[index];
        if needed[index] {
            kernel.body[index].operands().for_each(|value| needed[value.0 as usize] = true);
        }
    }
    (0..needed.len()).filter(|index| needed[*index]).map(|index| Value(index as u32)).collect()
}

/// The operands that rows are added up in, by position.
pub fn sums(kernel: &Kernel) -> impl Iterator<Item = usize> + '_ {
    let operands = kernel.operands.iter().enumerate();
    operands.filter(|(_, operand)| operand.access == Access::Add).map(|(index, _)| index)
}

/// The most lanes of a reduction.
pub const MOST_LANES: usize = 128;

/// How many results a reduction over a row of so many points has, each of every so many points in turn. They are joined by halves, so that
/// all ways of running give the same bits. Long rows have many, so that no sum waits for the one before; short ones few, so that little is
/// joined.
pub const fn lanes(points: usize) -> usize {
    match points {
        0..=64 => 16,
        65..=256 => 32,
        _ => MOST_LANES,
    }
}

/// The most points of a row that is not cut, and the most spans of one that is.
const LONGEST_SPAN: usize = 1024;
const MOST_SPANS: usize = 16;

/// How many points of a row have results of a reduction for themselves: a long row is cut into spans of so many, of which the last may have fewer.
/// The results of spans are joined lane by lane, the first with the second and so on, and then by halves. So threads can have a span each.
pub const fn span(points: usize) -> usize {
    if points <= LONGEST_SPAN {
        return if points == 0 { 1 } else { points };
    }
    let count = points.div_ceil(LONGEST_SPAN);
    points.div_ceil(if count < MOST_SPANS { count } else { MOST_SPANS }).next_multiple_of(MOST_LANES)
}

/// How many spans a row has.
pub const fn spans(points: usize) -> usize {
    points.div_ceil(span(points))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_rows_have_spans_of_about_as_many_points_each() {
        let of = |points| (span(points), spans(points));
        let short = [0, 1, 1000, 1024].map(of);
        assert_eq!(short, [(1, 0), (1, 1), (1000, 1), (1024, 1)]);
        let long = [1025, 1536, 4096, 5120, 50_257, 128_256].map(of);
        assert_eq!(long, [(640, 2), (768, 2), (1024, 4), (1024, 5), (3200, 16), (8064, 16)]);
    }
}
