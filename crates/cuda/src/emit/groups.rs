//! Kernels with sums over rows in one pass: some threads have a group of rows, one row after the other, and each of them the same columns of
//! all, whose sums it holds in registers.

use loops::{
    Kernel, Store,
    phases::{MOST_LANES, lanes},
    sums::rows_of_a_sum,
};

use super::{
    Emitter,
    body::behind,
    held::{held_by, loops_of},
};
use crate::form::{Form, ROW_BLOCK, WARP, Width};

/// The most numbers that a thread holds, of rows and of sums.
const MOST_NUMBERS: usize = 96;
/// The most threads of a row: with more, registers do not hold that many numbers.
const MOST_THREADS: usize = 512;
/// The most bytes of shared memory of a block.
const MOST_SHARED: usize = 48 << 10;
/// Fewer threads than this do not fill a device: then each has single elements, if nothing else speaks for several.
const FEW_THREADS: usize = 1 << 16;
/// How many rows of a group are under way at once in threads that know nothing of each other.
const ROWS_AT_ONCE: usize = 4;

/// The layout of a kernel with sums over rows in which a team has a group of rows. None where there are no such sums of points, or where no team
/// can hold them, of several elements at once or of single ones: the same for both, so that they keep as much and may write over the same.
pub(super) fn form(kernel: &Kernel, width: Width) -> Option<Form<'_>> {
    let form = Form { rows_each: Some(0), ..Form::single(kernel) };
    let mut by_point = form.phases.list.iter().flat_map(|phase| &phase.stores);
    if form.nest.inner == 0 || !by_point.any(|store| form.is_sum(store.operand)) {
        return None;
    }
    let rows_each = Some(rows_of_a_sum(form.nest.rows(), form.nest.inner));
    let of = if form.phases.most_reductions() == 0 { alone } else { together };
    let narrow = of(Form { rows_each, ..form }, Width::Narrow)?;
    if width == Width::Narrow {
        return Some(narrow);
    }
    of(Form { rows_each, ..Form::single(kernel) }, width)
}

impl Form<'_> {
    fn groups(&self) -> usize {
        self.nest.rows().div_ceil(self.rows_each.unwrap_or(1))
    }

    /// How many numbers a thread holds.
    fn held_numbers(&self) -> usize {
        let sums = self.phases.list.iter().flat_map(|phase| &phase.stores);
        let sums = sums.filter(|store| self.is_sum(store.operand)).count();
        (sums + held_by(&loops_of(self).0)) * self.pieces() * self.width
    }

    fn may_be_wide(&self, width: Width) -> bool {
        width == Width::Wide && self.nest.inner >= 4 && self.any_is_wide(4)
    }
}

/// Threads know nothing of each other: each has a few columns. What is written once for a row may lie where it is read, by all of the row's
/// threads, so that there is none.
fn alone(form: Form<'_>, width: Width) -> Option<Form<'_>> {
    if form.phases.row_stores.iter().any(|store| !form.is_sum(store.operand)) {
        return None;
    }
    let is_wide = form.may_be_wide(width) && form.groups() * form.nest.inner.div_ceil(4) >= FEW_THREADS;
    let width = if is_wide { 4 } else { 1 };
    Some(Form { width, team: form.nest.inner.div_ceil(width), ..form })
}

/// The threads of a row reduce it together: as few as can hold what they must, where one warp has all lanes of a reduction, or more.
fn together(form: Form<'_>, width: Width) -> Option<Form<'_>> {
    let count = lanes(form.nest.inner);
    let widths: &[usize] = if form.may_be_wide(width) { &[4, 1] } else { &[1] };
    let mut form = form;
    for width in widths {
        (form.width, form.team) = (*width, count / width);
        while count == MOST_LANES && form.team < MOST_THREADS && form.held_numbers() > MOST_NUMBERS {
            form.team *= 2;
        }
        if form.held_numbers() <= MOST_NUMBERS && 4 * form.shared_numbers() <= MOST_SHARED {
            return Some(form);
        }
    }
    None
}

impl Emitter<'_> {
    /// The function that writes points and rows and keeps the sums of groups, of so many rows, and those that add these up.
    pub(super) fn groups(&mut self, each: usize) {
        self.begin_groups();
        self.shared_memory();
        let sums: Vec<Store> =
            self.form.kernel.stores.iter().copied().filter(|store| self.form.is_sum(store.operand)).collect();
        let (once, along): (Vec<Store>, Vec<Store>) = sums.into_iter().partition(|store| self.is_once(store));
        self.hold_sums(&once, &along);
        self.rows_of_group(each, &once);
        self.keep_sums(&once, &along);
        self.lines.close();
        self.totals();
    }

    fn begin_groups(&mut self) {
        let team = self.form.team;
        let block = if self.form.phases.most_reductions() > 0 { team.max(WARP) } else { ROW_BLOCK };
        self.begin("", (self.sums.groups() * team).div_ceil(block), block);
        if block == team {
            self.lines.line("const index group = blockIdx.x;");
            self.lines.line("const unsigned int lane = threadIdx.x;");
        } else {
            self.lines.line(format!("const index at = (index)blockIdx.x * {block} + threadIdx.x;"));
            self.lines.line(format!("const index group = at / {team};"));
            self.lines.line(format!("const unsigned int lane = at % {team};"));
        }
    }

    fn rows_of_group(&mut self, each: usize, once: &[Store]) {
        let (form, rows) = (self.form, self.form.nest.rows());
        let (loops, pieces) = loops_of(form);
        self.registers(&loops, pieces);
        // Rows are under way at once where none waits for what threads tell each other.
        let at_once = if form.phases.most_reductions() > 0 { 1 } else { ROWS_AT_ONCE };
        self.lines.line(format!("#pragma unroll {at_once}"));
        self.lines.open(format!("for (int step = 0; step < {each}; ++step)"));
        self.lines.line(format!("const index own = group * {each} + step;"));
        self.lines.line(format!("const bool live = own < {rows};"));
        self.lines.line(format!("const index row = live ? own : {};", rows.saturating_sub(1)));
        self.starts("row");
        for (phase, one) in form.phases.list.iter().zip(&loops) {
            self.phase(phase, one, pieces);
        }
        for store in once {
            self.add_point(store);
        }
        self.end();
        self.lines.close();
    }

    fn hold_sums(&mut self, once: &[Store], along: &[Store]) {
        let (pieces, each) = (self.form.pieces(), self.each());
        for store in once {
            self.lines.line(format!("float {} = 0.0f;", self.sum_name(store)));
        }
        for store in along {
            self.lines.line(format!("float {}[{pieces}]{each} = {{}};", self.sum_name(store)));
        }
    }

    /// The sum that a thread holds.
    fn sum_name(&self, store: &Store) -> String {
        let is = |other: &Store| other.operand == store.operand && other.offset == store.offset;
        format!("p{}", self.form.kernel.stores.iter().position(is).unwrap_or(0))
    }

    /// Adds what a point, or a row, gives to it.
    pub(super) fn add_point(&mut self, store: &Store) {
        let at = if self.is_once(store) { String::new() } else { format!("[piece]{}", self.j()) };
        let (name, value) = (self.sum_name(store), Self::body(self.form).text(store.value));
        self.lines.line(format!("if ({}) {name}{at} = {name}{at} + {value};", self.here()));
    }

    /// Writes the sums of a group.
    fn keep_sums(&mut self, once: &[Store], along: &[Store]) {
        let (form, width) = (self.form, self.form.width);
        let (inner, pieces, step) = (form.nest.inner, form.pieces(), form.step());
        self.lines.open(format!("if (group < {})", self.sums.groups()));
        for store in once {
            let at = self.sums.place(store.operand, &store.offset.to_string());
            self.lines.line(format!("if (lane == 0) {at} = {};", self.sum_name(store)));
        }
        self.lines.line("#pragma unroll");
        self.lines.open(format!("for (int own = 0; own < {}; ++own)", pieces * width));
        if width == 1 {
            self.lines.line(format!("const index column = lane + own * {step};"));
        } else {
            self.lines.line(format!(
                "const index column = lane * {width} + own / {width} * {step} + own % {width};"
            ));
        }
        if pieces * step != inner {
            self.lines.line(format!("if (column >= {inner}) break;"));
        }
        for store in along {
            let stride = form.nest.inner_strides[store.operand.0 as usize];
            let column = if stride == 1 { "column".to_owned() } else { format!("column * {stride}") };
            let at = self.sums.place(store.operand, &behind(&column, store.offset));
            let own = if width == 1 { "[own]".to_owned() } else { format!("[own / {width}][own % {width}]") };
            self.lines.line(format!("{at} = {}{own};", self.sum_name(store)));
        }
        self.lines.close();
        self.lines.close();
    }
}
