//! The sums of groups of rows by themselves, where no layout has rows and their sums in one pass: points are computed again, one thread for
//! each column of each group, and what rows reduce has been kept for it.

use loops::{Store, Value};

use super::{Body, Emitter, body::behind, sums::Sums};
use crate::form::{Form, ROW_BLOCK};

/// How many rows of a group a thread reads before it adds the first of them.
const ROWS_AT_ONCE: usize = 8;

impl Emitter<'_> {
    /// One thread for each column of each group.
    pub(super) fn parts(&mut self) {
        let (form, inner, groups) = (self.form, self.form.nest.inner, self.sums.groups());
        let each = self.sums.each;
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
        let (rows, first) = (form.nest.rows(), format!("group * {each}"));
        // Where the last row is known before the loop, several are under way at once.
        let end = if rows.is_multiple_of(each) {
            format!("{first} + {each}")
        } else {
            format!("{rows} - {first} < {each} ? {rows} : {first} + {each}")
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
                body.load(&mut self.lines, &[value], false);
                body.compute(&mut self.lines, &[value], "column");
            }
        }
        for (number, store) in stores.iter().enumerate() {
            if by_point || self.is_once(store) {
                self.lines.line(format!("s{number} = s{number} + {};", body.text(store.value)));
            }
        }
    }

    pub(super) fn is_once(&self, store: &Store) -> bool {
        self.form.nest.inner_strides[store.operand.0 as usize] == 0
    }

    fn keep_part(&mut self, number: usize, store: &Store) {
        let stride = self.form.nest.inner_strides[store.operand.0 as usize];
        let once = self.is_once(store);
        let element = if once { "0".to_owned() } else { format!("column * {stride}") };
        let at = self.sums.place(store.operand, &behind(&element, store.offset));
        let guard = if once { "if (column == 0) " } else { "" };
        if once || self.form.nest.inner > 0 {
            self.lines.line(format!("{guard}{at} = s{number};"));
        }
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
