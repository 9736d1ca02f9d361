//! Sums over rows, in the order that all ways of running have: rows in groups, and then the groups.
//!
//! They are computed by points again, one thread for each column of each group of rows, which is as wide as the device; what the rows
//! reduce has been kept for it.

use loops::{Bounds, OperandId, Store, Value, phases::ROWS_OF_A_SUM};

use super::{Body, Emitter, body::behind};
use crate::form::{Form, ROW_BLOCK};

/// How many rows of a group, and how many groups, a thread reads before it adds the first of them.
const ROWS_AT_ONCE: usize = 8;
const GROUPS_AT_ONCE: usize = 16;

/// The operands that rows are added up in, and what is kept for them.
pub(super) struct Sums {
    /// By position, with how many elements each has.
    pub(super) operands: Vec<(usize, usize)>,
    /// Reductions that are kept, for each row.
    pub(super) numbers: Vec<Value>,
    rows: usize,
}

impl Sums {
    /// Fails where elements of a sum come from several columns.
    pub(super) fn of(form: &Form<'_>) -> Result<Self, String> {
        let bounds = Bounds::of(form.kernel);
        let operands: Vec<(usize, usize)> =
            loops::phases::sums(form.kernel).map(|operand| (operand, bounds.elements(operand))).collect();
        for (operand, _) in &operands {
            let offsets = form.kernel.offsets(OperandId(*operand as u32));
            let stride = form.nest.inner_strides[*operand];
            let reach = form.nest.inner.saturating_sub(1) * stride;
            let apart = offsets.windows(2).all(|pair| (pair[1] - pair[0]) as usize > reach);
            let within = offsets
                .last()
                .zip(offsets.first())
                .is_none_or(|(last, first)| ((last - first) as usize) < stride);
            if !apart && !within {
                return Err(format!("sums of a{operand} lie across each other"));
            }
        }
        Ok(Self { operands, numbers: form.numbers(), rows: form.nest.rows() })
    }

    fn groups(&self) -> usize {
        self.rows.div_ceil(ROWS_OF_A_SUM)
    }

    /// Where the sums of groups begin in what is kept.
    fn parts(&self) -> usize {
        self.numbers.len() * self.rows
    }

    fn length(&self) -> usize {
        self.operands.iter().map(|(_, length)| length).sum()
    }

    /// How many numbers are kept; some wherever there is a sum.
    pub(super) fn kept(&self) -> usize {
        if self.operands.is_empty() { 0 } else { (self.parts() + self.groups() * self.length()).max(1) }
    }
}

impl Emitter<'_> {
    pub(super) fn sums(&mut self) {
        if self.sums.operands.is_empty() {
            return;
        }
        let narrow = self.form.narrow();
        let mut own = Emitter {
            form: &narrow,
            sums: self.sums,
            name: self.name,
            lines: std::mem::take(&mut self.lines),
            functions: std::mem::take(&mut self.functions),
        };
        own.parts();
        own.totals();
        (self.lines, self.functions) = (own.lines, own.functions);
    }

    /// One thread for each column of each group.
    fn parts(&mut self) {
        let (form, inner, groups) = (self.form, self.form.nest.inner, self.sums.groups());
        let stores: Vec<Store> =
            form.kernel.stores.iter().copied().filter(|store| form.is_sum(store.operand)).collect();
        let along = |store: &Store| form.nest.inner_strides[store.operand.0 as usize] > 0;
        let by_point = stores.iter().any(along);
        let columns = if by_point { inner.max(1) } else { 1 };
        self.begin("_parts", (groups * columns).div_ceil(ROW_BLOCK), ROW_BLOCK);
        self.lines.line(format!("const index at = (index)blockIdx.x * {ROW_BLOCK} + threadIdx.x;"));
        self.lines.line(format!("if (at >= {}) return;", groups * columns));
        self.lines.line(format!("const index group = at / {columns}, column = at % {columns};"));
        for number in 0..stores.len() {
            self.lines.line(format!("float s{number} = 0.0f;"));
        }
        let (rows, first) = (form.nest.rows(), format!("group * {ROWS_OF_A_SUM}"));
        // Where the last row is known before the loop, several are under way at once.
        let end = if rows.is_multiple_of(ROWS_OF_A_SUM) {
            format!("{first} + {ROWS_OF_A_SUM}")
        } else {
            format!("{rows} - {first} < {ROWS_OF_A_SUM} ? {rows} : {first} + {ROWS_OF_A_SUM}")
        };
        self.lines.line(format!("const index end = {end};"));
        self.lines.line(format!("#pragma unroll {ROWS_AT_ONCE}"));
        self.lines.open(format!("for (index row = {first}; row < end; ++row)"));
        self.starts("row");
        self.row_of_sum(&stores, by_point && inner > 0);
        self.lines.close();
        for (number, store) in stores.iter().enumerate() {
            self.keep_part(number, store);
        }
        self.lines.close();
    }

    /// Adds what a row gives.
    fn row_of_sum(&mut self, stores: &[Store], by_point: bool) {
        let (form, rows) = (self.form, self.form.nest.rows());
        let body = Body { form };
        let needed = needed(form, self.sums, stores, by_point);
        for (position, value) in self.sums.numbers.iter().enumerate() {
            self.lines.line(format!("const float v{} = kept[{} + row];", value.0, position * rows));
        }
        for value in needed {
            if form.phases.is_of_row[value.0 as usize] {
                body.define_of_row(&mut self.lines, value);
            } else {
                body.load(&mut self.lines, &[value]);
                body.compute(&mut self.lines, &[value], "column");
            }
        }
        for (number, store) in stores.iter().enumerate() {
            if by_point || self.is_once(store) {
                self.lines.line(format!("s{number} = s{number} + {};", body.text(store.value)));
            }
        }
    }

    fn is_once(&self, store: &Store) -> bool {
        self.form.nest.inner_strides[store.operand.0 as usize] == 0
    }

    fn keep_part(&mut self, number: usize, store: &Store) {
        let stride = self.form.nest.inner_strides[store.operand.0 as usize];
        let (first, length) = self.place(store.operand.0 as usize);
        if self.is_once(store) {
            let at = behind(&format!("kept[{first} + group * {length}"), store.offset);
            self.lines.line(format!("if (column == 0) {at}] = s{number};"));
        } else if self.form.nest.inner > 0 {
            let at = behind(&format!("kept[{first} + group * {length} + column * {stride}"), store.offset);
            self.lines.line(format!("{at}] = s{number};"));
        }
    }

    /// Where the sums of groups begin for an operand, and how many elements each has.
    fn place(&self, operand: usize) -> (usize, usize) {
        let mut first = self.sums.parts();
        for (known, length) in &self.sums.operands {
            if *known == operand {
                return (first, *length);
            }
            first += length * self.sums.groups();
        }
        unreachable!("only operands that rows are added up in have a place")
    }

    /// One thread for each element.
    fn totals(&mut self) {
        let longest = self.sums.operands.iter().map(|(_, length)| *length).max().unwrap_or(0);
        self.begin("_totals", longest.div_ceil(ROW_BLOCK), ROW_BLOCK);
        self.lines.line(format!("const index at = (index)blockIdx.x * {ROW_BLOCK} + threadIdx.x;"));
        let groups = self.sums.groups();
        for (operand, length) in self.sums.operands.clone() {
            let (first, _) = self.place(operand);
            self.lines.open(format!("if (at < {length})"));
            self.lines.line("float s = 0.0f;");
            let touched = self.touched(operand);
            if let Some(touched) = &touched {
                self.lines.open(touched);
            }
            self.lines.line(format!("#pragma unroll {GROUPS_AT_ONCE}"));
            self.lines.line(format!(
                "for (index group = 0; group < {groups}; ++group) s = s + kept[{first} + group * {length} + at];"
            ));
            if touched.is_some() {
                self.lines.close();
            }
            self.lines.line(format!("put(a{operand} + at, s);"));
            self.lines.close();
        }
        self.lines.close();
    }

    /// A condition on the elements that rows are added up in, where there are others between.
    fn touched(&self, operand: usize) -> Option<String> {
        let (inner, stride) = (self.form.nest.inner, self.form.nest.inner_strides[operand]);
        let offsets = self.form.kernel.offsets(OperandId(operand as u32));
        let (columns, stride) = if stride == 0 { (1, 1) } else { (inner, stride) };
        let (_, length) = self.place(operand);
        if columns * offsets.len() == length {
            return None;
        }
        let of = |offset: &u32| {
            let step =
                if stride == 1 { String::new() } else { format!(" && (at - {offset}) % {stride} == 0") };
            format!("at >= {offset} && at - {offset} < {}{step}", columns * stride)
        };
        Some(format!("if ({})", offsets.iter().map(of).collect::<Vec<_>>().join(" || ")))
    }
}

/// What sums take, definitions before uses, reductions left out.
fn needed(form: &Form<'_>, sums: &Sums, stores: &[Store], by_point: bool) -> Vec<Value> {
    let mut needed = vec![false; form.kernel.body.len()];
    let once = |store: &Store| form.nest.inner_strides[store.operand.0 as usize] == 0;
    for store in stores.iter().filter(|store| by_point || once(store)) {
        needed[store.value.0 as usize] = true;
    }
    for index in (0..needed.len()).rev() {
        let value = Value(index as u32);
        if needed[index] && !sums.numbers.contains(&value) {
            form.kernel.op(value).operands().for_each(|taken| needed[taken.0 as usize] = true);
        }
    }
    let values = (0..needed.len()).filter(|index| needed[*index]).map(|index| Value(index as u32));
    let constant = |value: &Value| matches!(form.kernel.op(*value), loops::Op::Const(_));
    values.filter(|value| !sums.numbers.contains(value) && !constant(value)).collect()
}
