//! What lies on the stack: vectors without a register, numbers of the row, and what reductions have so far, of a span and of the spans before.

use iced_x86::{Code, Instruction, MemoryOperand, Register};
use loops::{Reduction, phases};

use super::{Done, Emitter, Held, LANE, at};
use crate::{blocks::Blocks, isa::Isa, registers::Place};

/// The most bytes on the stack.
const MOST: usize = 4096;

/// Where each lies, from the stack pointer on.
pub(super) struct Frame {
    vector: usize,
    numbers: usize,
    lanes: usize,
    /// Bytes of the lanes of a reduction.
    lane_bytes: usize,
    /// Where the lanes of the spans before lie, the same where there are none.
    joined: usize,
    /// Where the end of a span lies.
    end: usize,
    /// Where the caller's stack pointer lies.
    caller: usize,
    size: usize,
}

impl Frame {
    /// The frame of a kernel with so many vectors without a register; none where it is too large.
    pub(super) fn new(isa: &Isa, slots: u32, blocks: &Blocks, points: usize) -> Option<Self> {
        let vector = isa.bytes();
        let numbers = slots as usize * vector;
        let lanes = numbers + blocks.numbers as usize * vector;
        let most = blocks.phases.iter().map(|block| block.reductions.len()).max().unwrap_or(0);
        let lane_bytes = 4 * phases::lanes(points);
        let joined = if phases::spans(points) > 1 { lanes + most * lane_bytes } else { lanes };
        let end = joined + most * lane_bytes;
        let caller = end + 8;
        let size = (caller + 8).next_multiple_of(64);
        (size <= MOST).then_some(Self { vector, numbers, lanes, lane_bytes, joined, end, caller, size })
    }

    pub(super) fn slot(&self, slot: u32) -> MemoryOperand {
        at(Register::RSP, slot as usize * self.vector)
    }

    /// The vector that has a number of the row in all places.
    pub(super) fn number(&self, number: u32) -> MemoryOperand {
        at(Register::RSP, self.numbers + number as usize * self.vector)
    }

    /// The end of the span that a loop is in.
    pub(super) fn end(&self) -> MemoryOperand {
        at(Register::RSP, self.end)
    }

    fn lanes_at(&self, position: usize, displacement: usize) -> MemoryOperand {
        at(Register::RSP, self.lanes + position * self.lane_bytes + displacement)
    }

    fn joined_at(&self, position: usize, displacement: usize) -> MemoryOperand {
        at(Register::RSP, self.joined + position * self.lane_bytes + displacement)
    }

    /// What a reduction has at the point.
    pub(super) fn lanes(&self, position: usize) -> MemoryOperand {
        let displacement = (self.lanes + position * self.lane_bytes) as i64;
        MemoryOperand::with_base_index_scale_displ_size(Register::RSP, LANE, 1, displacement, 1)
    }
}

impl Emitter<'_> {
    /// Makes room on the stack, where vectors are aligned.
    pub(super) fn enter(&mut self) -> Done {
        self.put(Instruction::with2(Code::Mov_r64_rm64, Register::RAX, Register::RSP))?;
        self.put(Instruction::with2(Code::And_rm64_imm8, Register::RSP, -64))?;
        self.put(Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, self.frame.size as i32))?;
        let caller = at(Register::RSP, self.frame.caller);
        self.put(Instruction::with2(Code::Mov_rm64_r64, caller, Register::RAX))
    }

    pub(super) fn leave(&mut self) -> Done {
        let caller = at(Register::RSP, self.frame.caller);
        self.put(Instruction::with2(Code::Mov_r64_rm64, Register::RSP, caller))
    }

    /// Lets all lanes of reductions begin.
    pub(super) fn start_lanes(&mut self, reductions: &[(Reduction, u32)]) -> Done {
        for (position, (reduction, _)) in reductions.iter().enumerate() {
            let place = self.constants.place(reduction.start().to_bits());
            self.load(self.scratch(), place)?;
            for displacement in (0..self.frame.lane_bytes).step_by(self.frame.vector) {
                let lanes = self.frame.lanes_at(position, displacement);
                self.put(Instruction::with2(self.isa.store, lanes, self.scratch()))?;
                if self.frame.joined != self.frame.lanes {
                    let joined = self.frame.joined_at(position, displacement);
                    self.put(Instruction::with2(self.isa.store, joined, self.scratch()))?;
                }
            }
        }
        Ok(())
    }

    /// Joins the lanes of a span with those of the spans before, and lets them begin again.
    pub(super) fn end_span(&mut self, reductions: &[(Reduction, u32)]) -> Done {
        let (joined, lanes) = (self.isa.first, self.isa.first + 1);
        for (position, (reduction, _)) in reductions.iter().enumerate() {
            let start = self.constants.place(reduction.start().to_bits());
            for displacement in (0..self.frame.lane_bytes).step_by(self.frame.vector) {
                let before = self.frame.joined_at(position, displacement);
                let own = self.frame.lanes_at(position, displacement);
                self.put(Instruction::with2(self.isa.load, joined, before))?;
                self.put(Instruction::with2(self.isa.load, lanes, own))?;
                self.join(*reduction, joined, lanes)?;
                self.put(Instruction::with2(self.isa.store, before, joined))?;
                self.load(self.scratch(), start)?;
                self.put(Instruction::with2(self.isa.store, own, self.scratch()))?;
            }
        }
        Ok(())
    }

    /// Goes on to the lanes of the next point.
    pub(super) fn next_lanes(&mut self) -> Done {
        let bytes = self.frame.vector as i32;
        self.put(Instruction::with2(Code::Add_rm32_imm32, Register::EBP, bytes))?;
        self.put(Instruction::with2(Code::And_rm32_imm32, Register::EBP, self.frame.lane_bytes as i32 - 1))
    }

    /// Joins the lanes of a reduction by halves, and spreads the result.
    pub(super) fn join_lanes(&mut self, reduction: Reduction, position: usize, number: u32) -> Done {
        let count = (self.frame.lane_bytes / self.frame.vector).max(1);
        let at = |this: &Self, index: usize| this.frame.joined_at(position, index * this.frame.vector);
        let (first, second) = (count.div_ceil(2), count / 2);
        for index in 0..first {
            let to = self.isa.first + index as u32;
            self.put(Instruction::with2(self.isa.load, to, at(self, index)))?;
        }
        for index in 0..second {
            let scratch = self.scratch();
            self.put(Instruction::with2(self.isa.load, scratch, at(self, first + index)))?;
            self.join(reduction, self.isa.first + index as u32, scratch)?;
        }
        self.join_halves(reduction, first)?;
        self.spread(reduction, number)
    }

    /// Joins the lanes of a reduction, which are in registers, to one vector.
    pub(super) fn join_held(&mut self, reduction: Reduction, held: Held, position: usize) -> Done {
        let (first, second) = (held.each.div_ceil(2), held.each / 2);
        for index in 0..first {
            self.load(self.vector(index), Place::Register(held.register(position, index)))?;
        }
        for index in 0..second {
            let other = self.vector(held.register(position, first + index));
            self.join(reduction, self.vector(index), other)?;
        }
        self.join_halves(reduction, usize::from(first))
    }

    /// Joins so many registers, from the first one on, to one.
    fn join_halves(&mut self, reduction: Reduction, mut count: usize) -> Done {
        while count > 1 {
            count /= 2;
            for index in 0..count {
                self.join(reduction, self.isa.first + index as u32, self.isa.first + (index + count) as u32)?;
            }
        }
        Ok(())
    }

    /// Joins the numbers of the first register by halves, and makes the result a number of the row.
    pub(super) fn spread(&mut self, reduction: Reduction, number: u32) -> Done {
        let (low, high) = (self.isa.first, self.isa.first + 1);
        if self.isa.wide {
            let half = Register::YMM0 + 1;
            self.put(Instruction::with3(Code::EVEX_Vextractf64x4_ymmm256_k1z_zmm_imm8, half, low, 1))?;
            self.join(reduction, low, high)?;
        }
        let half = Register::XMM0 + 1;
        self.put(Instruction::with3(Code::VEX_Vextractf128_xmmm128_ymm_imm8, half, Register::YMM0, 1))?;
        self.join(reduction, low, high)?;
        // The upper two of four numbers, then the second one.
        for order in [0b1110, 0b01] {
            let code = Code::VEX_Vpermilps_xmm_xmmm128_imm8;
            self.put(Instruction::with3(code, half, Register::XMM0, order))?;
            self.join(reduction, low, high)?;
        }
        self.put(Instruction::with2(self.isa.spread, low, Register::XMM0))?;
        self.put(Instruction::with2(self.isa.store, self.frame.number(number), low))
    }

    /// Joins the numbers of two vectors into the first one.
    fn join(&mut self, reduction: Reduction, low: Register, high: Register) -> Done {
        use crate::steps::{Code as Step, Compare};
        let step = match reduction {
            Reduction::Sum => Step::Add,
            Reduction::Max => Step::Max,
            Reduction::Min => Step::Min,
        };
        let (code, _) = self.isa.binary(step).expect("it takes two values");
        if reduction == Reduction::Sum {
            return self.put(Instruction::with3(code, low, low, high));
        }
        let place = |register: Register| Place::Register((register as u32 - self.isa.first as u32) as u8);
        let (a, to) = (place(low), self.vector(self.isa.registers - 1));
        self.put(Instruction::with3(code, to, low, high))?;
        self.select(Compare::Unordered, low, [a, a], a, place(to))
    }
}
