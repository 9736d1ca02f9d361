//! Kernels without rows: each thread takes a few points, and then those a grid behind.

use super::{Emitter, held::Loop};
use crate::form::{MOST_BLOCKS, POINT_BLOCK};

impl Emitter<'_> {
    pub(super) fn points(&mut self) {
        let (form, width) = (self.form, self.form.width);
        let pieces = form.nest.inner.div_ceil(width);
        let total = form.nest.rows() * pieces;
        let blocks = total.div_ceil(POINT_BLOCK).min(MOST_BLOCKS);
        self.begin("", blocks, POINT_BLOCK);
        let first = format!("(index)blockIdx.x * {POINT_BLOCK} + threadIdx.x");
        let next = format!("(index)gridDim.x * {POINT_BLOCK}");
        self.lines.open(format!("for (index at = {first}; at < {total}; at += {next})"));
        if form.nest.outer.is_empty() {
            self.lines.line(format!("const index column = at{};", times(width)));
        } else {
            self.lines
                .line(format!("const index row = at / {pieces}, column = at % {pieces}{};", times(width)));
        }
        self.starts("row");
        self.piece();
        self.lines.close();
        self.lines.close();
    }

    /// What a thread does with the points from `column` on: of the first phase, which is the only one.
    fn piece(&mut self) {
        let form = self.form;
        let body = Self::body(form);
        let one = Loop::of(&form.phases.list[0]);
        self.left();
        body.load(&mut self.lines, &one.points, false);
        self.compute_points(&one);
        self.write(&one.stores);
    }
}

fn times(width: usize) -> String {
    if width == 1 { String::new() } else { format!(" * {width}") }
}
