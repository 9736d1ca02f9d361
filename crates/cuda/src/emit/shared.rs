//! Rows that have more threads than a warp: what is reduced goes through shared memory, where a warp for each reduction joins it in the order
//! of lanes.

use loops::{Op, Value};

use super::{Emitter, rows::join_name};
use crate::form::Form;

/// Threads of a warp.
const WARP: usize = 32;

impl Form<'_> {
    /// How many numbers a reduction has in shared memory.
    pub(super) const fn shared_columns(&self) -> usize {
        self.nest.inner.next_multiple_of(4)
    }
}

impl Emitter<'_> {
    /// Whether threads of several warps have a row together, beside the block that a single long row may have.
    pub(super) fn is_shared(&self) -> bool {
        let form = self.form;
        form.rows_each.is_some() && form.team > WARP && form.phases.most_reductions() > 0
    }

    /// The memory for it.
    pub(super) fn shared_memory(&mut self) {
        if self.is_shared() {
            let most = self.form.phases.most_reductions();
            let all = most * self.form.shared_columns();
            self.lines.line(format!("alignas(16) __shared__ float all[{all}];"));
            self.lines.line(format!("__shared__ float joined_row[{most}];"));
        }
    }

    /// Writes what a thread has of each reduction there.
    pub(super) fn share(&mut self, reductions: &[Value]) {
        let (columns, width) = (self.form.shared_columns(), self.form.width);
        for number in 0..reductions.len() {
            let at = format!("{} + column", number * columns);
            self.lines.line(match width {
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
        self.lines.line("__syncthreads();");
        for (number, value) in reductions.iter().enumerate() {
            let Op::Reduce(reduction, _) = self.form.kernel.op(*value) else { continue };
            let (by, warp) = (join_name(reduction), number % warps);
            let start = crate::functions::literal(reduction.start().to_bits());
            self.lines.open(format!("if (threadIdx.x / {WARP} == {warp})"));
            self.lines.line(format!(
                "const float own = joined_by_warp<{by}, {inner}>(all + {}, {start});",
                number * columns
            ));
            self.lines.line(format!("if (threadIdx.x % {WARP} == 0) joined_row[{number}] = own;"));
            self.lines.close();
        }
        self.lines.line("__syncthreads();");
        for (number, value) in reductions.iter().enumerate() {
            self.lines.line(format!("const float v{} = joined_row[{number}];", value.0));
        }
    }
}
