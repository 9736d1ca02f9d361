//! Long rows: a block has one, and some threads of it each span. The lanes of all spans meet in shared memory, where a warp for each reduction
//! joins them.

use loops::{
    Value,
    phases::{MOST_LANES, span},
};

use super::Emitter;
use crate::form::WARP;

impl Emitter<'_> {
    /// The memory in which lanes meet, and which columns a thread's span has.
    pub(super) fn shared_lanes(&mut self) {
        let (form, most) = (self.form, self.form.phases.most_reductions());
        let (inner, span) = (form.nest.inner, span(form.nest.inner));
        self.lines.line(format!("alignas(16) __shared__ float all[{}];", most * form.spans * MOST_LANES));
        self.lines.line(format!("__shared__ float joined_row[{most}];"));
        self.lines.line(format!("const unsigned int span = threadIdx.x / {};", form.team));
        self.lines.line(format!("const index start = span * {span};"));
        self.lines.line(format!("const index end = start + {span} < {inner} ? start + {span} : {inner};"));
    }

    /// One number for the row for each reduction.
    pub(super) fn join_spans(&mut self, reductions: &[Value]) {
        if reductions.is_empty() {
            return;
        }
        let (form, spans) = (self.form, self.form.spans);
        let warps = form.team * spans / WARP;
        let lane = if form.apart > 1 {
            format!("lane + j * {}", form.apart)
        } else {
            format!("lane * {} + j", form.width)
        };
        self.lines.line("#pragma unroll");
        self.lines.open(format!("for (int j = 0; j < {}; ++j)", form.width));
        for (number, value) in reductions.iter().enumerate() {
            let first = number * spans * MOST_LANES;
            self.lines.line(format!("all[{first} + span * {MOST_LANES} + {lane}] = s{}[j];", value.0));
        }
        self.lines.close();
        let how = format!("joined_spans<{{}}, {spans}>");
        self.join_by_warps(reductions, warps, ("all", spans * MOST_LANES), &how);
    }
}
