//! A kernel as blocks of [`Steps`]: numbers of a row, loops over its points, and what is written when they are over.

use loops::{
    Access, Element, Kernel, Op, Reduction, Store, Value,
    math::round_bf16,
    phases::{Phase, Phases},
};

use smallvec::SmallVec;

use crate::steps::{Code, Maker, Output, Steps, V};

/// What is done for each row.
pub(crate) struct Blocks {
    pub(crate) phases: Vec<Block>,
    /// What is written once for a row.
    pub(crate) end: Steps,
    /// How many numbers of a row there are.
    pub(crate) numbers: u32,
    /// How many rows of points loops keep for later ones.
    pub(crate) kept: usize,
}

/// A phase.
pub(crate) struct Block {
    pub(crate) row: Steps,
    pub(crate) points: Steps,
    /// Reductions in the order of their lanes, and the number of the row that each gives.
    pub(crate) reductions: Vec<(Reduction, u32)>,
    pub(crate) loops: bool,
}

impl Blocks {
    /// The blocks of a verified kernel; `scales` says whether the processor multiplies by powers of two in one instruction, and loops may keep
    /// as many rows as `keeps` for later ones.
    pub(crate) fn of(kernel: &Kernel, phases: &Phases, scales: bool, keeps: usize) -> Self {
        let points = kept_points(kernel, phases, keeps);
        let mut kept = Kept { kernel, phases, number: vec![None; kernel.body.len()], points, scales };
        let numbers = kept.count();
        let blocks = phases.list.iter().enumerate().map(|(index, phase)| kept.block(index, phase)).collect();
        let end = kept.stores(&phases.row_stores);
        Self { phases: blocks, end, numbers, kept: kept.points.len() }
    }
}

/// The values by point that take long to compute and are needed by several loops: each with the first of these.
fn kept_points(kernel: &Kernel, phases: &Phases, most: usize) -> Vec<(Value, usize)> {
    let is_long = |value: &Value| {
        use loops::Unary::{Erf, Exp, Log, Sigmoid, Tanh};
        matches!(kernel.op(*value), Op::Unary(Exp | Log | Sigmoid | Tanh | Erf, _))
    };
    let mut kept: Vec<(Value, usize)> = Vec::new();
    for (index, phase) in phases.list.iter().enumerate() {
        let later = |value: &Value| phases.list[index + 1..].iter().any(|phase| phase.points.contains(value));
        for value in phase.points.iter().filter(|value| is_long(value) && later(value)) {
            if kept.len() < most && kept.iter().all(|(known, _)| known != value) {
                kept.push((*value, index));
            }
        }
    }
    kept
}

/// Which numbers of a row are kept.
struct Kept<'a> {
    kernel: &'a Kernel,
    phases: &'a Phases,
    number: Vec<Option<u32>>,
    /// Values by point that a loop keeps for later ones, with the position of that phase.
    points: Vec<(Value, usize)>,
    scales: bool,
}

impl Kept<'_> {
    /// Gives a position to each number of a row: all but constants and masks, which are made where they are needed.
    fn count(&mut self) -> u32 {
        let mut count = 0;
        for (index, op) in self.kernel.body.iter().enumerate() {
            if self.phases.is_of_row[index] && !op.is_mask() && !matches!(op, Op::Const(_)) {
                self.number[index] = Some(count);
                count += 1;
            }
        }
        count
    }

    fn block(&self, index: usize, phase: &Phase) -> Block {
        let mut row = self.steps(false);
        for value in &phase.row {
            let made = row.value(*value);
            if let Some(number) = self.number[value.0 as usize].filter(|_| self.is_needed(*value)) {
                row.outputs.push((Output::Row(number), made));
            }
        }
        let mut points = self.steps(phase.loops());
        for value in &phase.points {
            let kept = self.points.iter().position(|(kept, _)| kept == value);
            match kept.map(|position| (position as u32, self.points[position].1)) {
                Some((position, maker)) if maker < index => {
                    let step = points.maker.step(Code::Kept(position), &[]);
                    points.values[value.0 as usize] = Some(step);
                }
                Some((position, _)) => {
                    let made = points.value(*value);
                    points.outputs.push((Output::Kept(position), made));
                }
                None => {
                    points.value(*value);
                }
            }
        }
        let mut reductions = Vec::new();
        for value in &phase.reductions {
            let (Op::Reduce(reduction, from), Some(number)) =
                (self.kernel.op(*value), self.number[value.0 as usize])
            else {
                unreachable!("a phase names reductions here, which are numbers of a row");
            };
            let position = reductions.len() as u32;
            let before = points.maker.step(Code::Lanes(position), &[]);
            let from = points.taken(from);
            let joined = points.maker.binary(reduction.binary(), before, from);
            points.outputs.push((Output::Lanes(position), joined));
            reductions.push((reduction, number));
        }
        phase.stores.iter().for_each(|store| points.store(*store));
        Block { row: row.finish(), points: points.finish(), reductions, loops: phase.loops() }
    }

    /// Whether anything but the phase that makes it takes a number of a row. Masks are made again where they are needed, and so count as
    /// what is not.
    fn is_needed(&self, value: Value) -> bool {
        let takes = |index: usize| self.kernel.body[index].operands().any(|taken| taken == value);
        let own = self.phases.list.iter().find(|phase| phase.row.contains(&value));
        let is_own = |index: usize| own.is_some_and(|phase| phase.row.contains(&Value(index as u32)));
        (0..self.kernel.body.len())
            .any(|index| takes(index) && (!is_own(index) || self.kernel.body[index].is_mask()))
            || self.kernel.stores.iter().any(|store| store.value == value)
    }

    fn stores(&self, stores: &[Store]) -> Steps {
        let mut steps = self.steps(false);
        for store in stores {
            steps.store(*store);
        }
        steps.finish()
    }

    /// The steps of a block, which may be those of a loop: there divisions wait for one another.
    fn steps(&self, loops: bool) -> BlockSteps<'_> {
        let values = vec![None; self.kernel.body.len()];
        BlockSteps {
            kept: self,
            maker: Maker::new(self.scales, self.scales && loops),
            values,
            outputs: Vec::new(),
        }
    }
}

/// The steps of a block while they are made.
struct BlockSteps<'a> {
    kept: &'a Kept<'a>,
    maker: Maker,
    values: Vec<Option<V>>,
    outputs: Vec<(Output, V)>,
}

impl BlockSteps<'_> {
    /// A value that this block computes.
    fn value(&mut self, value: Value) -> V {
        let op = self.kept.kernel.op(value);
        let taken: SmallVec<[V; 3]> = op.operands().map(|value| self.taken(value)).collect();
        let made = self.maker.op(op, &taken);
        self.values[value.0 as usize] = Some(made);
        made
    }

    /// A value that this block takes: its own, or a number of the row.
    fn taken(&mut self, value: Value) -> V {
        if let Some(known) = self.values[value.0 as usize] {
            return known;
        }
        match self.kept.number[value.0 as usize] {
            Some(number) => self.maker.step(Code::Row(number), &[]),
            None => self.value(value),
        }
    }

    fn store(&mut self, Store { operand, offset, value }: Store) {
        let to = &self.kept.kernel.operands[operand.0 as usize];
        let mut made = self.taken(value);
        if to.access == Access::Add {
            return self.outputs.push((Output::Add(operand, offset), made));
        }
        if to.element == Element::Bf16 {
            made = round_bf16(&mut self.maker, made);
        }
        self.outputs.push((Output::Store(operand, offset), made));
    }

    fn finish(self) -> Steps {
        Steps { steps: self.maker.steps, outputs: self.outputs }.without_dead()
    }
}
