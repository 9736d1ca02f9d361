//! A kernel's values in registers that each hold a tile, for the interpreter.

use crate::{Kernel, Op, OperandId, Value};

/// One value to compute.
pub(crate) struct Step {
    pub(crate) op: Op,
    pub(crate) target: usize,
    /// The registers of what it takes.
    pub(crate) from: [usize; 3],
}

/// The values of a kernel in registers.
pub(crate) struct Tiles {
    pub(crate) steps: Vec<Step>,
    pub(crate) stores: Vec<(OperandId, usize)>,
    /// Registers that hold a number throughout.
    pub(crate) constants: Vec<(usize, f32)>,
    pub(crate) registers: usize,
}

impl Tiles {
    /// Gives every value of a verified kernel a register, from its definition to its last use.
    pub(crate) fn of(kernel: &Kernel) -> Self {
        let mut tiles = Self { steps: Vec::new(), stores: Vec::new(), constants: Vec::new(), registers: 0 };
        let last = last_uses(kernel);
        let mut register = vec![0; kernel.body.len()];
        let mut free = Vec::new();
        for (index, op) in kernel.body.iter().enumerate().filter(|(index, _)| last[*index].is_some()) {
            if let Op::Const(bits) = op {
                register[index] = tiles.fresh();
                tiles.constants.push((register[index], f32::from_bits(*bits)));
                continue;
            }
            let mut from = [0; 3];
            for (from, value) in from.iter_mut().zip(op.operands()) {
                *from = register[value.0 as usize];
            }
            register[index] = free.pop().unwrap_or_else(|| tiles.fresh());
            tiles.steps.push(Step { op: *op, target: register[index], from });
            let mut ended: Vec<Value> =
                op.operands().filter(|value| ends(kernel, &last, *value, index)).collect();
            ended.sort_unstable();
            ended.dedup();
            free.extend(ended.into_iter().map(|value| register[value.0 as usize]));
        }
        let stored = |store: &crate::Store| (store.operand, register[store.value.0 as usize]);
        tiles.stores = kernel.stores.iter().map(stored).collect();
        tiles
    }

    const fn fresh(&mut self) -> usize {
        self.registers += 1;
        self.registers - 1
    }
}

/// Whether the register of `value` is free after the value at `index`.
fn ends(kernel: &Kernel, last: &[Option<usize>], value: Value, index: usize) -> bool {
    last[value.0 as usize] == Some(index) && !matches!(kernel.op(value), Op::Const(_))
}

/// For each value the last one that takes it; `usize::MAX` for what is stored, `None` where nothing takes it.
pub(crate) fn last_uses(kernel: &Kernel) -> Vec<Option<usize>> {
    let mut last = vec![None; kernel.body.len()];
    for store in &kernel.stores {
        last[store.value.0 as usize] = Some(usize::MAX);
    }
    for (index, op) in kernel.body.iter().enumerate().rev() {
        if last[index].is_some() {
            for value in op.operands() {
                let slot: &mut Option<usize> = &mut last[value.0 as usize];
                *slot = slot.or(Some(index));
            }
        }
    }
    last
}
