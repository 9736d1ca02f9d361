//! Sums over rows, in the [order](loops::sums) that all ways of running have: groups of rows, these in groups again, and so on.
//!
//! Who computes rows keeps the sums of each group; further functions add these up.

use loops::{
    Bounds, OperandId, Value,
    sums::{SUMS_OF_A_SUM, rows_of_a_sum},
};

use super::Emitter;
use crate::form::{Form, ROW_BLOCK};

/// How many sums a thread reads before it adds the first of them.
const SUMS_AT_ONCE: usize = 16;
/// Threads of a warp, which read neighbours.
const WARP: usize = 32;
/// The most warps of a block that adds up what is left.
const MOST_WARPS: usize = 16;

/// An operand that rows are added up in.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    pub(super) operand: usize,
    /// Where its elements begin among those of all sums.
    pub(super) first: usize,
    pub(super) length: usize,
}

/// The operands that rows are added up in, and what is kept for them.
pub(super) struct Sums {
    pub(super) list: Vec<Sum>,
    /// Reductions that are kept, for each row.
    pub(super) numbers: Vec<Value>,
    pub(super) rows: usize,
    /// Rows of a group.
    pub(super) each: usize,
}

impl Sums {
    /// Fails where elements of a sum come from several columns.
    pub(super) fn of(form: &Form<'_>) -> Result<Self, String> {
        let bounds = Bounds::of(form.kernel);
        let mut list: Vec<Sum> = Vec::new();
        for operand in loops::phases::sums(form.kernel) {
            check_columns(form, operand)?;
            let first = list.last().map_or(0, |sum: &Sum| sum.first + sum.length);
            list.push(Sum { operand, first, length: bounds.elements(operand) });
        }
        let numbers = if form.rows_each.is_some() { Vec::new() } else { form.numbers() };
        let (rows, inner) = (form.nest.rows(), form.nest.inner);
        Ok(Self { list, numbers, rows, each: rows_of_a_sum(rows, inner) })
    }

    pub(super) fn groups(&self) -> usize {
        self.rows.div_ceil(self.each)
    }

    /// How many elements all sums have.
    pub(super) fn length(&self) -> usize {
        self.list.iter().map(|sum| sum.length).sum()
    }

    /// How many sums there are at each level, and where they begin in what is kept.
    fn levels(&self) -> Vec<(usize, usize)> {
        let mut levels = vec![(self.groups(), self.numbers.len() * self.rows)];
        while let Some((count, first)) = levels.last().copied()
            && count > SUMS_OF_A_SUM * SUMS_OF_A_SUM
        {
            levels.push((count.div_ceil(SUMS_OF_A_SUM), first + count * self.length()));
        }
        levels
    }

    /// How many numbers are kept; some wherever there is a sum.
    pub(super) fn kept(&self) -> usize {
        let end = |(count, first): &(usize, usize)| first + count * self.length();
        if self.list.is_empty() { 0 } else { self.levels().last().map_or(0, end).max(1) }
    }

    /// Where a group keeps an element of an operand.
    pub(super) fn place(&self, operand: OperandId, element: &str) -> String {
        let sum = self.list.iter().find(|sum| sum.operand == operand.0 as usize);
        let first = self.numbers.len() * self.rows + sum.map_or(0, |sum| sum.first);
        format!("kept[{first} + group * {} + {element}]", self.length())
    }
}

fn check_columns(form: &Form<'_>, operand: usize) -> Result<(), String> {
    let offsets = form.kernel.offsets(OperandId(operand as u32));
    let stride = form.nest.inner_strides[operand];
    let reach = form.nest.inner.saturating_sub(1) * stride;
    let apart = offsets.windows(2).all(|pair| (pair[1] - pair[0]) as usize > reach);
    let within =
        offsets.last().zip(offsets.first()).is_none_or(|(last, first)| ((last - first) as usize) < stride);
    if apart || within { Ok(()) } else { Err(format!("sums of a{operand} lie across each other")) }
}

impl Emitter<'_> {
    /// The functions that add up what groups have kept.
    pub(super) fn totals(&mut self) {
        let levels = self.sums.levels();
        for (number, level) in levels.windows(2).enumerate() {
            self.next_level(number, level[0], level[1].1);
        }
        if let Some(last) = levels.last() {
            self.finish_sums(*last);
        }
    }

    /// One thread for each element of each sum of the next level, which begin at `to`.
    fn next_level(&mut self, number: usize, (count, from): (usize, usize), to: usize) {
        let (length, next) = (self.sums.length(), count.div_ceil(SUMS_OF_A_SUM));
        self.begin(&format!("_sums{number}"), (next * length).div_ceil(ROW_BLOCK), ROW_BLOCK);
        self.lines.line(format!("const index own = (index)blockIdx.x * {ROW_BLOCK} + threadIdx.x;"));
        self.lines.line(format!("if (own >= {}) return;", next * length));
        self.lines.line(format!("const index sum = own / {length}, at = own % {length};"));
        self.add_up((count, from));
        self.lines.line(format!("kept[{to} + own] = s;"));
        self.lines.close();
    }

    /// `s`, of the sums of a level that are one of the next, the `sum`-th, at the element `at`.
    fn add_up(&mut self, (count, from): (usize, usize)) {
        let (length, first) = (self.sums.length(), format!("sum * {SUMS_OF_A_SUM}"));
        let end = if count > 0 && count.is_multiple_of(SUMS_OF_A_SUM) {
            format!("{first} + {SUMS_OF_A_SUM}")
        } else {
            format!("{count} - {first} < {SUMS_OF_A_SUM} ? {count} : {first} + {SUMS_OF_A_SUM}")
        };
        self.lines.line(format!("const index end = {end};"));
        self.lines.line("float s = 0.0f;");
        self.lines.line(format!("#pragma unroll {SUMS_AT_ONCE}"));
        self.lines.line(format!(
            "for (index group = {first}; group < end; ++group) s = s + kept[{from} + group * {length} + at];"
        ));
    }

    /// A block for some elements: its warps add up the sums of the next level, and one of them those.
    fn finish_sums(&mut self, level: (usize, usize)) {
        let (length, next) = (self.sums.length(), level.0.div_ceil(SUMS_OF_A_SUM).max(1));
        let warps = next.min(MOST_WARPS);
        self.begin("_totals", length.div_ceil(WARP), warps * WARP);
        self.lines.line(format!("__shared__ float sums[{}];", next * WARP));
        self.lines.line(format!("const unsigned int lane = threadIdx.x % {WARP};"));
        self.lines.line(format!("const index at = (index)blockIdx.x * {WARP} + lane;"));
        self.lines.line(format!("const bool live = at < {length};"));
        self.lines
            .open(format!("for (index sum = threadIdx.x / {WARP}; live && sum < {next}; sum += {warps})"));
        self.add_up(level);
        self.lines.line(format!("sums[sum * {WARP} + lane] = s;"));
        self.lines.close();
        self.lines.line("__syncthreads();");
        self.lines.line(format!("if (threadIdx.x >= {WARP} || !live) return;"));
        self.lines.line("float s = 0.0f;");
        self.lines.line(format!("for (int sum = 0; sum < {next}; ++sum) s = s + sums[sum * {WARP} + lane];"));
        for sum in self.sums.list.clone() {
            self.put_sum(sum);
        }
        self.lines.close();
    }

    fn put_sum(&mut self, Sum { operand, first, length }: Sum) {
        let element = if first == 0 { "at".to_owned() } else { format!("(at - {first})") };
        let from = if first == 0 { String::new() } else { format!("at >= {first} && ") };
        let sum = self.touched(operand, length, &element);
        let sum = sum.map_or_else(|| "s".to_owned(), |touched| format!("{touched} ? s : 0.0f"));
        self.lines.line(format!("if ({from}at < {}) put(a{operand} + {element}, {sum});", first + length));
    }

    /// A condition on the elements that rows are added up in, where there are others between.
    fn touched(&self, operand: usize, length: usize, at: &str) -> Option<String> {
        let (inner, stride) = (self.form.nest.inner, self.form.nest.inner_strides[operand]);
        let offsets = self.form.kernel.offsets(OperandId(operand as u32));
        let (columns, stride) = if stride == 0 { (1, 1) } else { (inner, stride) };
        if columns * offsets.len() == length {
            return None;
        }
        let of = |offset: &u32| {
            let step =
                if stride == 1 { String::new() } else { format!(" && ({at} - {offset}) % {stride} == 0") };
            format!("{at} >= {offset} && {at} - {offset} < {}{step}", columns * stride)
        };
        let any = offsets.iter().map(of).collect::<Vec<_>>().join(" || ");
        Some(format!("({any})"))
    }
}
