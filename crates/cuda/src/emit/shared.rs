//! Groups of rows that have more threads than a warp, or spans: what is reduced goes through shared memory, where a warp for each reduction joins
//! it in the order of lanes; of a row in spans, one for each span before.

use loops::{
    Op, Value,
    phases::{MOST_LANES, span, spans},
};

use super::{Emitter, rows::join_name};
use crate::form::{Form, WARP};

impl Form<'_> {
    /// How many numbers a reduction has in shared memory.
    pub(super) const fn shared_columns(&self) -> usize {
        self.nest.inner.next_multiple_of(4)
    }

    /// How many numbers are in shared memory: what is reduced, and the lanes of spans.
    pub(super) fn shared_numbers(&self) -> usize {
        if !self.is_shared() {
            return 0;
        }
        let lanes = spans(self.nest.inner) * MOST_LANES;
        self.phases.most_reductions() * (self.shared_columns() + lanes)
    }

    /// Whether what is reduced of groups of rows goes through shared memory.
    pub(super) fn is_shared(&self) -> bool {
        let is_more = self.team > WARP || spans(self.nest.inner) > 1;
        self.rows_each.is_some() && is_more && self.phases.most_reductions() > 0
    }
}

impl Emitter<'_> {
    /// The memory for it.
    pub(super) fn shared_memory(&mut self) {
        if self.form.is_shared() {
            let (most, spans) = (self.form.phases.most_reductions(), spans(self.form.nest.inner));
            let all = most * self.form.shared_columns();
            self.lines.line(format!("alignas(16) __shared__ float all[{all}];"));
            if spans > 1 {
                let lanes = most * spans * MOST_LANES;
                self.lines.line(format!("alignas(16) __shared__ float lanes_of[{lanes}];"));
            }
            self.lines.line(format!("__shared__ float joined_row[{most}];"));
        }
    }

    /// Writes what a thread has of each reduction there.
    pub(super) fn share(&mut self, reductions: &[Value]) {
        let (columns, width) = (self.form.shared_columns(), self.form.width);
        for number in 0..reductions.len() {
            let at = format!("{} + column", number * columns);
            self.lines.line(match width {
                1 if self.end.is_some() => format!("if (here) all[{at}] = r{number};"),
                1 => format!("all[{at}] = r{number};"),
                _ => format!("store<{width}>(all + {at}, left, r{number});"),
            });
        }
    }

    /// One number for the row for each reduction; all threads of the block have one row.
    pub(super) fn join_shared(&mut self, reductions: &[Value]) {
        if reductions.is_empty() {
            return;
        }
        let (columns, inner, warps) =
            (self.form.shared_columns(), self.form.nest.inner, self.form.team / WARP);
        if spans(inner) == 1 {
            return self.join_by_warps(
                reductions,
                warps,
                ("all", columns),
                &format!("joined_by_warp<{{}}, {inner}>"),
            );
        }
        self.lines.line("__syncthreads();");
        self.gather_spans(reductions, warps);
        let (lanes, how) = (spans(inner) * MOST_LANES, format!("joined_spans<{{}}, {}>", spans(inner)));
        self.join_by_warps(reductions, warps, ("lanes_of", lanes), &how);
    }

    /// The lanes of each span of each reduction, for which each warp takes the next one.
    fn gather_spans(&mut self, reductions: &[Value], warps: usize) {
        let (columns, inner) = (self.form.shared_columns(), self.form.nest.inner);
        let (span, spans) = (span(inner), spans(inner));
        for (number, value) in reductions.iter().enumerate() {
            let Op::Reduce(reduction, _) = self.form.kernel.op(*value) else { continue };
            let start = crate::functions::literal(reduction.start().to_bits());
            let by = join_name(reduction);
            let shift = (warps - number * spans % warps) % warps;
            let first = format!("(threadIdx.x / {WARP} + {shift}) % {warps}");
            self.lines.open(format!("for (int span = {first}; span < {spans}; span += {warps})"));
            self.lines.line(format!(
                "gather_span<{by}, {inner}, {span}>(all + {}, span, {start}, lanes_of + {});",
                number * columns,
                number * spans * MOST_LANES
            ));
            self.lines.close();
        }
    }

    /// One number for the row for each reduction, which has so many numbers in `shared` that a warp joins; `how` names the function, with `{}`
    /// for what joins two numbers.
    pub(super) fn join_by_warps(
        &mut self,
        reductions: &[Value],
        warps: usize,
        (shared, numbers): (&str, usize),
        how: &str,
    ) {
        self.lines.line("__syncthreads();");
        for (number, value) in reductions.iter().enumerate() {
            let Op::Reduce(reduction, _) = self.form.kernel.op(*value) else { continue };
            let start = crate::functions::literal(reduction.start().to_bits());
            let (join, first) = (how.replace("{}", join_name(reduction)), number * numbers);
            self.lines.open(format!("if (threadIdx.x / {WARP} == {})", number % warps));
            self.lines.line(format!("const float own = {join}({shared} + {first}, {start});"));
            self.lines.line(format!("if (threadIdx.x % {WARP} == 0) joined_row[{number}] = own;"));
            self.lines.close();
        }
        self.lines.line("__syncthreads();");
        for (number, value) in reductions.iter().enumerate() {
            self.lines.line(format!("const float v{} = joined_row[{number}];", value.0));
        }
    }
}
