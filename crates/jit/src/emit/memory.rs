//! Elements of operands: whole vectors of them, what does not fill one, and one for a row.

use iced_x86::{Code, IcedError, Instruction, MemoryOperand, Register};
use loops::{Access, Element, Nest, Operand, OperandId};

use super::{ADDRESSES, Done, Emitter, POINT, Source, at};
use crate::registers::Place;

/// The mask of what does not fill a vector, in wide vectors; a register of vectors has it in narrow ones.
const MASK: Register = Register::K2;

impl Emitter<'_> {
    /// A constant: constants lie at the beginning of all.
    pub(super) fn constant(&self, index: usize) -> MemoryOperand {
        MemoryOperand::with_base_displ(Register::RIP, (index * self.isa.bytes()) as i64)
    }

    /// What a loop keeps at these points for later ones: a row for each position, with room for a vector at the end.
    pub(super) fn kept(&self, position: u32) -> MemoryOperand {
        let base = ADDRESSES[self.kernel.operands.len()];
        let numbers = position as usize * kept_row(self.nest) + self.ahead * self.isa.lanes;
        let displacement = (numbers * 4) as i64;
        MemoryOperand::with_base_index_scale_displ_size(base, POINT, 4, displacement, 1)
    }

    /// The mask of narrow vectors.
    fn narrow_mask(&self) -> Register {
        self.vector(self.isa.registers + 1)
    }

    /// Makes the mask of so many points.
    pub(super) fn mask(&mut self, points: usize) -> Done {
        if self.isa.wide {
            self.put(Instruction::with2(Code::Mov_r32_imm32, Register::EBP, (1_u32 << points) - 1))?;
            return self.put(Instruction::with2(Code::VEX_Kmovw_kr_r32, MASK, Register::EBP));
        }
        let mask = self.constant(self.constants.0.len());
        self.put(Instruction::with2(self.isa.load, self.narrow_mask(), mask))
    }

    /// An instruction of a wide vector, for the points that there are: others are read as 0 and not written.
    fn masked(&self, made: Result<Instruction, IcedError>, is_read: bool) -> Result<Instruction, IcedError> {
        made.map(|mut made| {
            made.set_op_mask(MASK);
            made.set_zeroing_masking(is_read);
            made
        })
    }

    /// The elements of an operand so far behind this point and those behind it, or the one that the row has.
    fn element(&self, operand: OperandId, offset: u32) -> (MemoryOperand, Element, bool) {
        let index = operand.0 as usize;
        // Rows are added up in `f32`, whatever becomes of the sums.
        let element = match self.kernel.operands[index] {
            Operand { access: Access::Add, .. } => Element::F32,
            Operand { element, .. } => element,
        };
        let base = ADDRESSES[index];
        let same = self.nest.inner_strides[index] == 0;
        let memory = if same {
            at(base, offset as usize * element.bytes())
        } else {
            let behind = offset as usize + self.ahead * self.isa.lanes;
            let (scale, displacement) = (element.bytes() as u32, behind * element.bytes());
            MemoryOperand::with_base_index_scale_displ_size(base, POINT, scale, displacement as i64, 1)
        };
        (memory, element, same)
    }

    /// The positions of these points in their row.
    pub(super) fn column(&mut self, to: Register) -> Done {
        let first = self.first_of(to);
        self.put(Instruction::with3(self.isa.number_of_integer, first, first, POINT))?;
        self.put(Instruction::with2(self.isa.spread, to, first))?;
        let positions = self.constant(self.constants.0.len() + 1);
        let (add, _) = self.isa.binary(crate::steps::Code::Add).expect("it takes two values");
        self.put(Instruction::with3(add, to, to, positions))
    }

    pub(super) fn read(&mut self, operand: OperandId, offset: u32, to: Register) -> Done {
        let (memory, element, same) = self.element(operand, offset);
        match (element, same, self.tail) {
            (Element::F32, true, _) => self.put(Instruction::with2(self.isa.broadcast, to, memory)),
            (Element::F32, false, None) => self.put(Instruction::with2(self.isa.load, to, memory)),
            (Element::F32, false, Some(_)) => self.read_some(memory, to),
            (Element::Bf16, true, _) => self.read_halves(self.isa.broadcast_half, memory, to, None),
            (Element::Bf16, false, rest) => self.read_halves(self.isa.widen, memory, to, rest),
            (Element::Bool, true, _) => {
                self.put(Instruction::with2(self.isa.broadcast_byte, to, memory))?;
                self.put(Instruction::with3(self.isa.shift_right, to, to, 24))?;
                self.put(Instruction::with2(self.isa.number_of_word, to, to))
            }
            (Element::Bool, false, rest) => self.read_bytes(memory, to, rest),
            (Element::F16, ..) => unreachable!("kernels with it are interpreted"),
            (Element::I64, ..) => {
                let first = self.first_of(to);
                self.put(Instruction::with3(self.isa.number_of_integer, first, first, memory))?;
                self.put(Instruction::with2(self.isa.spread, to, first))
            }
        }
    }

    /// Reads bytes as numbers, or so many of them.
    fn read_bytes(&mut self, memory: MemoryOperand, to: Register, rest: Option<usize>) -> Done {
        match rest {
            None => self.put(Instruction::with2(self.isa.widen_byte, to, memory))?,
            Some(_) if self.isa.wide => {
                let made = self.masked(Instruction::with2(self.isa.widen_byte, to, memory), true);
                self.put(made)?;
            }
            Some(rest) => {
                let first = self.first_of(to);
                self.put(Instruction::with3(Code::VEX_Vpxor_xmm_xmm_xmmm128, first, first, first))?;
                for index in 0..rest {
                    let (code, from) = (Code::VEX_Vpinsrb_xmm_xmm_r32m8_imm8, behind(memory, index));
                    self.put(Instruction::with4(code, first, first, from, index as u32))?;
                }
                self.put(Instruction::with2(self.isa.widen_byte, to, first))?;
            }
        }
        self.put(Instruction::with2(self.isa.number_of_word, to, to))
    }

    fn read_some(&mut self, memory: MemoryOperand, to: Register) -> Done {
        if self.isa.wide {
            let made = self.masked(Instruction::with2(self.isa.load, to, memory), true);
            return self.put(made);
        }
        let code = Code::VEX_Vmaskmovps_ymm_ymm_m256;
        self.put(Instruction::with3(code, to, self.narrow_mask(), memory))
    }

    /// Reads `bf16` by `code`, or so many of them.
    fn read_halves(&mut self, code: Code, memory: MemoryOperand, to: Register, rest: Option<usize>) -> Done {
        match rest {
            None => self.put(Instruction::with2(code, to, memory))?,
            Some(_) if self.isa.wide => {
                let made = self.masked(Instruction::with2(code, to, memory), true);
                self.put(made)?;
            }
            Some(rest) => {
                let half = self.first_of(to);
                self.put(Instruction::with3(Code::VEX_Vpxor_xmm_xmm_xmmm128, half, half, half))?;
                for index in 0..rest {
                    let (code, from) = (Code::VEX_Vpinsrw_xmm_xmm_r32m16_imm8, behind(memory, 2 * index));
                    self.put(Instruction::with4(code, half, half, from, index as u32))?;
                }
                self.put(Instruction::with2(code, to, half))?;
            }
        }
        self.put(Instruction::with3(self.isa.shift_left, to, to, 16))
    }

    /// The points of a value that there are, and what lies in memory for others: a store of all is read back sooner than one under a mask.
    pub(super) fn some_of(&mut self, from: Place, memory: MemoryOperand) -> Result<Register, IcedError> {
        let scratch = self.scratch();
        self.put(Instruction::with2(self.isa.load, scratch, memory))?;
        self.some_into(scratch, from).map(|()| scratch)
    }

    /// The points of a value that there are into a register, which keeps what it has for others.
    pub(super) fn some_into(&mut self, to: Register, from: Place) -> Done {
        let mask = self.narrow_mask();
        let made = match (self.isa.wide, self.source(from)) {
            (true, Source::Register(from)) => Instruction::with2(self.isa.load, to, from),
            (true, Source::Memory(from)) => Instruction::with2(self.isa.load, to, from),
            (false, Source::Register(from)) => Instruction::with4(self.isa.blend, to, to, from, mask),
            (false, Source::Memory(from)) => Instruction::with4(self.isa.blend, to, to, from, mask),
        };
        let made = if self.isa.wide { self.masked(made, false) } else { made };
        self.put(made)
    }

    /// Writes a vector, or the points of it that there are.
    fn store_vector(&mut self, memory: MemoryOperand, from: Register) -> Done {
        match self.tail {
            None => self.put(Instruction::with2(self.isa.store, memory, from)),
            Some(_) if self.isa.wide => {
                let made = self.masked(Instruction::with2(self.isa.store, memory, from), false);
                self.put(made)
            }
            Some(_) => {
                let code = Code::VEX_Vmaskmovps_m256_ymm_ymm;
                self.put(Instruction::with3(code, memory, self.narrow_mask(), from))
            }
        }
    }

    /// A `bf16` has been rounded by steps before; its bits are the upper half.
    pub(super) fn store(&mut self, operand: OperandId, offset: u32, from: Place) -> Done {
        let (memory, element, same) = self.element(operand, offset);
        let scratch = self.scratch();
        let from = self.in_register(from, scratch)?;
        match (element, same) {
            (Element::F32, false) => self.store_vector(memory, from),
            (Element::F32, true) => {
                let first = self.first_of(from);
                self.put(Instruction::with2(self.isa.store_first, memory, first))
            }
            (Element::Bf16, _) => {
                self.put(Instruction::with3(self.isa.shift_right, scratch, from, 16))?;
                if same {
                    let first = self.first_of(scratch);
                    return self.put(Instruction::with3(self.isa.store_first_half, memory, first, 0));
                }
                self.store_halves(memory, scratch)
            }
            (Element::F16, _) => unreachable!("kernels with it are interpreted"),
            (Element::Bool | Element::I64, _) => unreachable!("the verifier lets no kernel write these"),
        }
    }

    /// Writes the lower halves of a vector's words, or of as many as there are points.
    fn store_halves(&mut self, memory: MemoryOperand, words: Register) -> Done {
        if self.isa.wide {
            let made = Instruction::with2(Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, memory, words);
            let made = if self.tail.is_some() { self.masked(made, false) } else { made };
            return self.put(made);
        }
        self.put(Instruction::with3(Code::VEX_Vpackusdw_ymm_ymm_ymmm256, words, words, words))?;
        self.put(Instruction::with3(Code::VEX_Vpermq_ymm_ymmm256_imm8, words, words, 0b1000))?;
        let half = self.first_of(words);
        match self.tail {
            None => self.put(Instruction::with2(Code::VEX_Vmovdqu_xmmm128_xmm, memory, half)),
            Some(rest) => (0..rest).try_for_each(|index| {
                let (code, to) = (Code::VEX_Vpextrw_r32m16_xmm_imm8, behind(memory, 2 * index));
                self.put(Instruction::with3(code, to, half, index as u32))
            }),
        }
    }

    /// Adds to what the rows before have stored. There is room for a vector behind the last element, but of several stores each has others'
    /// elements behind its own.
    pub(super) fn add(&mut self, operand: OperandId, offset: u32, from: Place) -> Done {
        let (memory, _, same) = self.element(operand, offset);
        let scratch = self.scratch();
        let from = self.in_register(from, scratch)?;
        if same {
            let (from, sum) = (self.first_of(from), self.first_of(scratch));
            self.put(Instruction::with3(self.isa.add_first, sum, from, memory))?;
            return self.put(Instruction::with2(self.isa.store_first, memory, sum));
        }
        let (add, _) = self.isa.binary(crate::steps::Code::Add).expect("it takes two values");
        self.put(Instruction::with3(add, scratch, from, memory))?;
        if self.kernel.offsets(operand).len() > 1 {
            return self.store_vector(memory, scratch);
        }
        self.put(Instruction::with2(self.isa.store, memory, scratch))
    }

    /// The part of a register that has its first numbers.
    fn first_of(&self, register: Register) -> Register {
        Register::XMM0 + (register as u32 - self.isa.first as u32)
    }
}

/// How many numbers a row that is kept takes.
pub(super) const fn kept_row(nest: &Nest) -> usize {
    nest.inner.next_multiple_of(16)
}

/// The memory so many bytes behind.
fn behind(memory: MemoryOperand, bytes: usize) -> MemoryOperand {
    let MemoryOperand { base, index, scale, displacement, .. } = memory;
    MemoryOperand::with_base_index_scale_displ_size(base, index, scale, displacement + bytes as i64, 1)
}
