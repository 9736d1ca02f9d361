//! A kernel's values in registers that each hold a tile, for the interpreter.

use crate::{
    Kernel, Op, Reduction, Store, Value,
    phases::{Phase, Phases},
};

/// One value to compute.
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) target: usize,
    /// The registers of what it takes.
    pub(crate) from: [usize; 3],
}

/// A reduction of the register `from`, whose result fills `target`.
pub(crate) struct Reduce {
    pub(crate) reduction: Reduction,
    pub(crate) from: usize,
    pub(crate) target: usize,
}

/// A [`Phase`] in registers.
pub(crate) struct TilePhase {
    pub(crate) row: Vec<Step>,
    pub(crate) points: Vec<Step>,
    pub(crate) reductions: Vec<Reduce>,
    pub(crate) stores: Vec<Stored>,
}

/// What is written from the register `from`.
pub(crate) struct Stored {
    pub(crate) operand: usize,
    pub(crate) offset: usize,
    pub(crate) from: usize,
}

/// The values of a kernel in registers.
pub(crate) struct Tiles {
    pub(crate) phases: Vec<TilePhase>,
    pub(crate) row_stores: Vec<Stored>,
    /// Registers that hold a number throughout.
    pub(crate) constants: Vec<(usize, f32)>,
    pub(crate) registers: usize,
}

impl Tiles {
    /// Gives every value of a verified kernel a register: what is one number for each row keeps it, others have it from their definition to
    /// their last use in a loop.
    pub(crate) fn of(kernel: &Kernel, phases: &Phases) -> Self {
        let mut maker = Maker { kernel, phases, register: vec![0; kernel.body.len()], registers: 0 };
        let mut constants = Vec::new();
        for (index, op) in kernel.body.iter().enumerate() {
            if phases.is_of_row[index] {
                maker.register[index] = maker.fresh();
            }
            if let Op::Const(bits) = op {
                constants.push((maker.register[index], f32::from_bits(*bits)));
            }
        }
        let mut free = Vec::new();
        let made = phases.list.iter().map(|phase| maker.phase(phase, &mut free)).collect();
        let row_stores = phases.row_stores.iter().map(|store| maker.stored(store)).collect();
        Self { phases: made, row_stores, constants, registers: maker.registers }
    }
}

struct Maker<'a> {
    kernel: &'a Kernel,
    phases: &'a Phases,
    /// The register of each value.
    register: Vec<usize>,
    registers: usize,
}

impl Maker<'_> {
    const fn fresh(&mut self) -> usize {
        self.registers += 1;
        self.registers - 1
    }

    fn at(&self, value: Value) -> usize {
        self.register[value.0 as usize]
    }

    fn stored(&self, store: &Store) -> Stored {
        Stored {
            operand: store.operand.0 as usize,
            offset: store.offset as usize,
            from: self.at(store.value),
        }
    }

    fn step(&self, value: Value) -> Step {
        let op = self.kernel.op(value);
        let mut from = [0; 3];
        for (from, value) in from.iter_mut().zip(op.operands()) {
            *from = self.at(value);
        }
        Step { op, target: self.at(value), from }
    }

    fn phase(&mut self, phase: &Phase, free: &mut Vec<usize>) -> TilePhase {
        let row = phase.row.iter().map(|value| self.step(*value)).collect();
        let last = last_uses(self.kernel, phase);
        let mut points = Vec::with_capacity(phase.points.len());
        for (position, value) in phase.points.iter().enumerate() {
            let target = free.pop().unwrap_or_else(|| self.fresh());
            self.register[value.0 as usize] = target;
            points.push(self.step(*value));
            let mut ended: Vec<Value> = self.kernel.op(*value).operands().collect();
            ended.retain(|taken| !self.phases.is_of_row[taken.0 as usize]);
            ended.retain(|taken| last[taken.0 as usize] == Some(position));
            ended.sort_unstable();
            ended.dedup();
            free.extend(ended.into_iter().map(|value| self.at(value)));
        }
        let reductions = phase.reductions.iter().map(|value| self.reduce(*value)).collect();
        let stores = phase.stores.iter().map(|store| self.stored(store)).collect();
        // What reductions and stores take ends with the loop.
        let kept = phase.points.iter().filter(|value| last[value.0 as usize] == Some(usize::MAX));
        free.extend(kept.map(|value| self.at(*value)));
        TilePhase { row, points, reductions, stores }
    }

    fn reduce(&self, value: Value) -> Reduce {
        match self.kernel.op(value) {
            Op::Reduce(reduction, from) => Reduce { reduction, from: self.at(from), target: self.at(value) },
            _ => unreachable!("a phase names reductions here"),
        }
    }
}

/// For each value that a loop computes the position of the last one that takes it; `usize::MAX` for what is reduced or stored.
fn last_uses(kernel: &Kernel, phase: &Phase) -> Vec<Option<usize>> {
    let mut last = vec![None; kernel.body.len()];
    for (position, value) in phase.points.iter().enumerate() {
        kernel.op(*value).operands().for_each(|taken| last[taken.0 as usize] = Some(position));
    }
    let reduced = phase.reductions.iter().flat_map(|value| kernel.op(*value).operands());
    let kept = reduced.chain(phase.stores.iter().map(|store| store.value));
    kept.for_each(|value| last[value.0 as usize] = Some(usize::MAX));
    last
}
