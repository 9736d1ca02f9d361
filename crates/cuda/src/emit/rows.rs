//! Kernels by rows: some threads of a block have a row, and each of them some of the lanes that a reduction has.

use loops::{
    Op, Reduction, Store, Value,
    phases::{MOST_LANES, Phase},
};

use super::{
    Emitter,
    body::behind,
    held::{Loop, loops_of},
};
use crate::form::{ROW_BLOCK, WARP};

/// How many pieces of its row a thread may have under way at once.
const PIECES_AT_ONCE: usize = 4;

impl Emitter<'_> {
    /// The function that writes points and rows, and keeps the numbers that sums over rows take; none where there is nothing of it.
    pub(super) fn rows(&mut self) {
        let form = self.form;
        let written = form.kernel.stores.iter().any(|store| !form.is_sum(store.operand));
        if !written && self.sums.numbers.is_empty() {
            return;
        }
        let rows = form.nest.rows();
        if form.spans > 1 {
            self.begin("", rows, form.team * form.spans);
            self.lines.line("const index own = blockIdx.x;");
            self.shared_lanes();
        } else {
            self.begin("", rows.div_ceil(ROW_BLOCK / form.team), ROW_BLOCK);
            self.lines.line(format!(
                "const index own = ((index)blockIdx.x * {ROW_BLOCK} + threadIdx.x) / {};",
                form.team
            ));
        }
        self.lines.line(format!("const unsigned int lane = threadIdx.x % {};", form.team));
        let last = rows.saturating_sub(1);
        self.lines.line(format!("const bool live = own < {rows};"));
        self.lines.line(format!("const index row = live ? own : {last};"));
        self.starts("row");
        let (loops, pieces) = loops_of(form);
        self.registers(&loops, pieces);
        for (phase, one) in form.phases.list.iter().zip(&loops) {
            self.phase(phase, one, pieces);
        }
        self.end();
        self.lines.close();
    }

    /// What threads hold from loop to loop.
    pub(super) fn registers(&mut self, loops: &[Loop], pieces: Option<usize>) {
        let Some(pieces) = pieces else { return };
        let each = self.each();
        for value in loops.iter().flat_map(|one| &one.held) {
            self.lines.line(format!("float h{}[{pieces}]{each};", value.0));
        }
    }

    /// The dimension of what a thread has for each point of a piece.
    pub(super) fn each(&self) -> String {
        if self.form.width == 1 { String::new() } else { format!("[{}]", self.form.width) }
    }

    pub(super) fn phase(&mut self, phase: &Phase, one: &Loop, pieces: Option<usize>) {
        let body = Self::body(self.form);
        for value in &phase.row {
            body.define_of_row(&mut self.lines, *value);
        }
        if one.is_empty() {
            return;
        }
        if self.form.is_shared() {
            self.row_loop(one, pieces);
            self.join_shared(&one.reductions);
            return;
        }
        self.lanes(&one.reductions);
        self.row_loop(one, pieces);
        if self.form.spans > 1 {
            return self.join_spans(&one.reductions);
        }
        for value in &one.reductions {
            self.join(*value);
        }
    }

    /// The lanes of each reduction that a thread has.
    fn lanes(&mut self, reductions: &[Value]) {
        let width = self.form.width;
        for value in reductions {
            let Op::Reduce(reduction, _) = self.form.kernel.op(*value) else { continue };
            let start = crate::functions::literal(reduction.start().to_bits());
            let starts = vec![start; width].join(", ");
            self.lines.line(format!("float s{}[{width}] = {{{starts}}};", value.0));
        }
    }

    fn row_loop(&mut self, one: &Loop, pieces: Option<usize>) {
        let (form, inner) = (self.form, self.form.nest.inner);
        let step = form.step();
        let first = match (form.width, form.apart) {
            (1, _) | (_, 2..) => "lane".to_owned(),
            (width, _) => format!("lane * {width}"),
        };
        let (first, end) = if form.spans > 1 {
            (format!("start + {first}"), "end".to_owned())
        } else {
            (first, inner.to_string())
        };
        if let Some(pieces) = pieces {
            // All of it is unrolled, so that what is held is in registers.
            self.lines.line("#pragma unroll");
            self.lines.open(format!("for (int piece = 0; piece < {pieces}; ++piece)"));
            self.lines.line(format!("const index column = {first} + piece * {step};"));
            if form.spans * pieces * step != inner {
                self.end = Some(end);
            }
        } else {
            if inner > step {
                self.lines.line(format!("#pragma unroll {PIECES_AT_ONCE}"));
            }
            self.lines.open(format!("for (index column = {first}; column < {end}; column += {step})"));
        }
        self.left();
        Self::body(form).load(&mut self.lines, &one.points, self.end.is_some());
        self.compute_points(one);
        if self.form.is_shared() {
            self.share(&one.reductions);
        }
        if !one.stores.is_empty() {
            let here = self.here();
            self.lines.open(format!("if ({here})"));
            self.write(&one.stores);
            self.lines.close();
        }
        self.lines.close();
        self.end = None;
    }

    /// The condition under which a thread's row, and its point of it, is there.
    pub(super) fn here(&self) -> &'static str {
        if self.end.is_some() { "live && here" } else { "live" }
    }

    /// One number for the row from what its threads have gathered.
    fn join(&mut self, value: Value) {
        let Op::Reduce(reduction, _) = self.form.kernel.op(value) else { return };
        let (by, team, number) = (join_name(reduction), self.form.team, value.0);
        if team == MOST_LANES {
            self.lines.line(format!("__shared__ float shared{number}[{MOST_LANES}];"));
            self.lines.line(format!(
                "const float v{number} = joined_by_block<{by}>(s{number}[0], shared{number});"
            ));
        } else {
            self.lines.line(format!("const float v{number} = joined<{by}, {team}>(s{number});"));
        }
    }

    /// What is written once for a row, when all of its threads have read what may lie there.
    pub(super) fn end(&mut self) {
        let form = self.form;
        let stores: Vec<Store> =
            form.phases.row_stores.iter().copied().filter(|store| !form.is_sum(store.operand)).collect();
        if stores.is_empty() && self.sums.numbers.is_empty() {
            return;
        }
        let threads = form.team * form.spans;
        self.lines.line(if threads > WARP { "__syncthreads();" } else { "__syncwarp();" });
        let first = if form.spans > 1 { "threadIdx.x" } else { "lane" };
        self.lines.open(format!("if (live && {first} == 0)"));
        for store in &stores {
            let at = behind(&format!("o{}", store.operand.0), store.offset);
            Self::body(form).put(&mut self.lines, store, &at);
        }
        let rows = form.nest.rows();
        for (position, value) in self.sums.numbers.iter().enumerate() {
            self.lines.line(format!("kept[{} + row] = v{};", position * rows, value.0));
        }
        self.lines.close();
    }

    /// How many points a thread has of those that it may take.
    pub(super) fn left(&mut self) {
        let (inner, width, apart) = (self.form.nest.inner, self.form.width, self.form.apart);
        // Without a branch, so that what all pieces load is under way at once.
        let behind = self.end.as_ref().map_or("", |end| {
            self.lines.line(format!("const bool here = column < {end};"));
            "!here ? 0 : "
        });
        if width == 1 {
            return;
        }
        let some = match apart {
            1 => format!("{inner} - column"),
            _ => format!("({inner} - column + {}) / {apart}", apart - 1),
        };
        self.lines.line(if self.form.is_whole() {
            format!("const int left = {behind}{width};")
        } else {
            format!("const int left = {behind}{some} < {width} ? (int)({some}) : {width};")
        });
    }

    /// Computes points, gathers what is reduced and puts what is stored where [`Self::write`] takes it.
    pub(super) fn compute_points(&mut self, one: &Loop) {
        let (form, width) = (self.form, self.form.width);
        let body = Self::body(form);
        if width > 1 {
            for number in 0..one.stores.len() {
                self.lines.line(format!("float y{number}[{width}];"));
            }
            if self.form.is_shared() {
                for number in 0..one.reductions.len() {
                    self.lines.line(format!("float r{number}[{width}];"));
                }
            }
            self.lines.line("#pragma unroll");
            self.lines.open(format!("for (int j = 0; j < {width}; ++j)"));
        }
        let each = self.j();
        for value in &one.taken {
            self.lines.line(format!("const float v{0} = h{0}[piece]{each};", value.0));
        }
        let column = match (width, form.apart) {
            (1, _) => "column".to_owned(),
            (_, 1) => "column + j".to_owned(),
            (_, apart) => format!("column + j * {apart}"),
        };
        body.compute(&mut self.lines, &one.points, &column);
        for value in &one.held {
            self.lines.line(format!("h{0}[piece]{each} = v{0};", value.0));
        }
        for (number, value) in one.reductions.iter().enumerate() {
            self.gather(number, *value);
        }
        for store in &one.sums {
            self.add_point(store);
        }
        if width > 1 {
            for (number, store) in one.stores.iter().enumerate() {
                self.lines.line(format!("y{number}[j] = {};", body.text(store.value)));
            }
            self.lines.close();
        }
    }

    /// Which point of a piece a thread is at.
    pub(super) fn j(&self) -> &'static str {
        if self.form.width == 1 { "" } else { "[j]" }
    }

    fn gather(&mut self, number: usize, value: Value) {
        let Op::Reduce(reduction, from) = self.form.kernel.op(value) else { return };
        let width = self.form.width;
        if self.form.is_shared() {
            let from = Self::body(self.form).text(from);
            return match width {
                1 => self.lines.line(format!("const float r{number} = {from};")),
                _ => self.lines.line(format!("r{number}[j] = {from};")),
            };
        }
        let lane = format!("s{}[{}]", value.0, if width == 1 { "0" } else { "j" });
        let from = Self::body(self.form).text(from);
        let joined = match reduction {
            Reduction::Sum => format!("{lane} + {from}"),
            Reduction::Max => format!("f_max({lane}, {from})"),
            Reduction::Min => format!("f_min({lane}, {from})"),
        };
        let guard = match (width == 1 || self.form.is_whole(), &self.end) {
            (true, None) => "",
            (true, Some(_)) => "if (here) ",
            (false, _) => "if (j < left) ",
        };
        self.lines.line(format!("{guard}{lane} = {joined};"));
    }

    /// Writes what [`Self::compute_points`] has computed.
    pub(super) fn write(&mut self, stores: &[Store]) {
        let (form, width) = (self.form, self.form.width);
        let body = Self::body(form);
        for (number, store) in stores.iter().enumerate() {
            if width == 1 {
                body.put(&mut self.lines, store, &body.first(store.operand, store.offset));
            } else {
                body.store(&mut self.lines, number, store);
            }
        }
    }
}

pub(super) const fn join_name(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::Sum => "by_sum",
        Reduction::Max => "by_max",
        Reduction::Min => "by_min",
    }
}
