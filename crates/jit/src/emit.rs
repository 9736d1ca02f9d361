//! Machine code of a kernel: one loop over vectors.
//!
//! The code is a function of a table of addresses, one for each operand and then that of the constants, and of a number of points, which is
//! a multiple of the vector size and not 0. It uses no address of its own, so that it may lie anywhere.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};
use loops::{Element, Kernel, Nest, OperandId};

use crate::{
    isa::Isa,
    registers::{Action, Actions, Place},
    steps::{Code as Step, Compare, Steps},
};

/// Registers that hold the addresses of operands.
const ADDRESSES: [Register; 12] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::RBX,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
/// Registers that a function must leave as they were.
const KEPT: [Register; 6] =
    [Register::RBX, Register::RBP, Register::R12, Register::R13, Register::R14, Register::R15];
/// The table of addresses at first, then the point.
const POINT: Register = Register::RDI;
const COUNT: Register = Register::RSI;
const CONSTANTS: Register = Register::RBP;

/// The code of a kernel, with the constants that it needs: each as many times as a vector has numbers.
pub(crate) struct Emitted {
    pub(crate) code: Vec<u8>,
    pub(crate) constants: Vec<u32>,
}

/// The code of a verified kernel; none where it has too many operands, or one whose neighbours lie apart in memory.
pub(crate) fn emit(kernel: &Kernel, nest: &Nest, isa: &'static Isa) -> Option<Emitted> {
    if kernel.operands.len() > ADDRESSES.len() || nest.inner_strides.iter().any(|stride| *stride > 1) {
        return None;
    }
    let actions = Actions::of(&Steps::of(kernel, isa.wide), isa.registers);
    let mut emitter = Emitter { kernel, nest, isa, encoder: Encoder::new(64), length: 0 };
    emitter.function(&actions).ok()?;
    let constants = actions.constants.iter().flat_map(|bits| std::iter::repeat_n(*bits, isa.lanes));
    Some(Emitted { code: emitter.encoder.take_buffer(), constants: constants.collect() })
}

struct Emitter<'a> {
    kernel: &'a Kernel,
    nest: &'a Nest,
    isa: &'static Isa,
    encoder: Encoder,
    length: u64,
}

/// A value's register, or its memory.
enum Source {
    Register(Register),
    Memory(MemoryOperand),
}

type Done = Result<(), IcedError>;

/// The memory at `displacement` from a register.
fn at(base: Register, displacement: usize) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(base, displacement as i64, 1)
}

impl Emitter<'_> {
    fn put(&mut self, instruction: Result<Instruction, IcedError>) -> Done {
        self.length += self.encoder.encode(&instruction?, self.length)? as u64;
        Ok(())
    }

    fn function(&mut self, actions: &Actions) -> Done {
        let stack = (actions.slots as usize * self.isa.bytes()) as i32;
        for register in KEPT {
            self.put(Instruction::with1(Code::Push_r64, register))?;
        }
        if stack > 0 {
            self.put(Instruction::with2(Code::Sub_rm64_imm32, Register::RSP, stack))?;
        }
        let operands = self.kernel.operands.len();
        for (index, address) in ADDRESSES.into_iter().enumerate().take(operands) {
            self.put(Instruction::with2(Code::Mov_r64_rm64, address, at(POINT, 8 * index)))?;
        }
        self.put(Instruction::with2(Code::Mov_r64_rm64, CONSTANTS, at(POINT, 8 * operands)))?;
        self.put(Instruction::with2(Code::Xor_r32_rm32, Register::EDI, Register::EDI))?;
        let start = self.length;
        for action in &actions.list {
            self.action(action)?;
        }
        self.put(Instruction::with2(Code::Add_rm64_imm32, POINT, self.isa.lanes as i32))?;
        self.put(Instruction::with2(Code::Cmp_r64_rm64, POINT, COUNT))?;
        self.put(Instruction::with_branch(Code::Jb_rel32_64, start))?;
        if stack > 0 {
            self.put(Instruction::with2(Code::Add_rm64_imm32, Register::RSP, stack))?;
        }
        for register in KEPT.into_iter().rev() {
            self.put(Instruction::with1(Code::Pop_r64, register))?;
        }
        self.put(Ok(Instruction::with(Code::VEX_Vzeroupper)))?;
        self.put(Ok(Instruction::with(Code::Retnq)))
    }

    fn vector(&self, register: u8) -> Register {
        self.isa.first + u32::from(register)
    }

    /// The register for what an instruction needs in between.
    fn scratch(&self) -> Register {
        self.vector(self.isa.registers)
    }

    /// Where an instruction finds a value.
    fn source(&self, place: Place) -> Source {
        match place {
            Place::Register(register) => Source::Register(self.vector(register)),
            Place::Constant(index) => Source::Memory(at(CONSTANTS, index as usize * self.isa.bytes())),
            Place::Stack(slot) => Source::Memory(at(Register::RSP, slot as usize * self.isa.bytes())),
        }
    }

    /// The register of a place; what is in memory goes into `into` first.
    fn in_register(&mut self, place: Place, into: Register) -> Result<Register, IcedError> {
        match self.source(place) {
            Source::Register(register) => Ok(register),
            Source::Memory(_) => self.load(into, place).map(|()| into),
        }
    }

    fn load(&mut self, into: Register, place: Place) -> Done {
        match self.source(place) {
            Source::Register(from) if from == into => Ok(()),
            Source::Register(from) => self.put(Instruction::with2(self.isa.load, into, from)),
            Source::Memory(memory) => self.put(Instruction::with2(self.isa.load, into, memory)),
        }
    }

    fn action(&mut self, action: &Action) -> Done {
        match action {
            Action::Spill { register, slot } => {
                let memory = at(Register::RSP, *slot as usize * self.isa.bytes());
                self.put(Instruction::with2(self.isa.store, memory, self.vector(*register)))
            }
            Action::Store { operand, from } => self.store(*operand, *from),
            Action::Step { code, to, from } => self.step(*code, self.vector(*to), from),
        }
    }

    fn step(&mut self, code: Step, to: Register, from: &[Place]) -> Done {
        match (code, from) {
            (Step::Load(operand), _) => self.read(operand, to),
            (Step::Sqrt, [a]) => self.one(self.isa.sqrt, to, *a),
            (Step::NumberOfWord, [a]) => self.one(self.isa.number_of_word, to, *a),
            (Step::ShiftRight(bits), [a]) => self.shift(self.isa.shift_right, to, *a, bits),
            (Step::ShiftRightSigned(bits), [a]) => self.shift(self.isa.shift_right_signed, to, *a, bits),
            (Step::ShiftLeft(bits), [a]) => self.shift(self.isa.shift_left, to, *a, bits),
            (Step::Fma, [a, b, c]) => self.fma(to, *a, *b, *c),
            (Step::Select(compare), [a, b, yes, no]) => self.select(compare, to, [*a, *b], *yes, *no),
            (_, [a, b]) => {
                let (code, commutes) = self.isa.binary(code).expect("all other steps take two values");
                self.two(code, commutes, to, *a, *b)
            }
            _ => unreachable!("a step takes as many values as its code says"),
        }
    }

    fn one(&mut self, code: Code, to: Register, a: Place) -> Done {
        let made = match self.source(a) {
            Source::Memory(a) => Instruction::with2(code, to, a),
            Source::Register(a) => Instruction::with2(code, to, a),
        };
        self.put(made)
    }

    fn shift(&mut self, code: Code, to: Register, a: Place, bits: u8) -> Done {
        let scratch = self.scratch();
        let a = self.in_register(a, scratch)?;
        self.put(Instruction::with3(code, to, a, i32::from(bits)))
    }

    fn two(&mut self, code: Code, commutes: bool, to: Register, a: Place, b: Place) -> Done {
        let (a, b) = if commutes && a.is_memory() { (b, a) } else { (a, b) };
        let scratch = self.scratch();
        let a = self.in_register(a, scratch)?;
        self.three(code, to, a, b)
    }

    /// An instruction whose last operand may lie in memory.
    fn three(&mut self, code: Code, to: Register, a: Register, b: Place) -> Done {
        let made = match self.source(b) {
            Source::Memory(memory) => Instruction::with3(code, to, a, memory),
            Source::Register(b) => Instruction::with3(code, to, a, b),
        };
        self.put(made)
    }

    /// `a * b + c`. The instructions overwrite one of the three, which may be `to` itself.
    fn fma(&mut self, to: Register, a: Place, b: Place, c: Place) -> Done {
        let [product_into_a, product_with_last, sum_into] = self.isa.fma;
        let is_to = |this: &Self, place: Place| matches!(place, Place::Register(r) if this.vector(r) == to);
        // `a` is in a register, and it is the one to be overwritten if one of the factors is.
        let swap = a.is_memory() || is_to(self, b);
        let (a, b) = if swap { (b, a) } else { (a, b) };
        let scratch = self.scratch();
        if is_to(self, c) && !is_to(self, a) {
            let a = self.in_register(a, scratch)?;
            return self.three(sum_into, to, a, b);
        }
        self.load(to, a)?;
        if let (Source::Memory(factor), Source::Register(c)) = (self.source(b), self.source(c)) {
            return self.put(Instruction::with3(product_with_last, to, c, factor));
        }
        let b = self.in_register(b, scratch)?;
        self.three(product_into_a, to, b, c)
    }

    fn select(&mut self, compare: Compare, to: Register, [a, b]: [Place; 2], yes: Place, no: Place) -> Done {
        let scratch = self.scratch();
        // The last operand of a blend, which may lie in memory, is what is chosen where the mask holds.
        let opposite = no.is_memory() && !yes.is_memory();
        let (yes, no) = if opposite { (no, yes) } else { (yes, no) };
        let number = if opposite { compare.opposite() } else { compare.number() };
        let a = self.in_register(a, scratch)?;
        let mask = if self.isa.wide { Register::K1 } else { scratch };
        let made = match self.source(b) {
            Source::Memory(b) => Instruction::with4(self.isa.compare, mask, a, b, number),
            Source::Register(b) => Instruction::with4(self.isa.compare, mask, a, b, number),
        };
        self.put(made)?;
        // Where both lie in memory, neither is in `to`, and the comparison is done with it.
        let no = self.in_register(no, to)?;
        self.blend(to, no, yes, mask)
    }

    fn blend(&mut self, to: Register, no: Register, yes: Place, mask: Register) -> Done {
        let code = self.isa.blend;
        let made = match (self.isa.wide, self.source(yes)) {
            (true, Source::Memory(yes)) => Instruction::with3(code, to, no, yes),
            (true, Source::Register(yes)) => Instruction::with3(code, to, no, yes),
            (false, Source::Memory(yes)) => Instruction::with4(code, to, no, yes, mask),
            (false, Source::Register(yes)) => Instruction::with4(code, to, no, yes, mask),
        };
        let masked = made.map(|mut blend| {
            if self.isa.wide {
                blend.set_op_mask(mask);
            }
            blend
        });
        self.put(masked)
    }

    /// The elements of an operand at this point and those behind it.
    fn element(&self, operand: OperandId) -> (MemoryOperand, Element, bool) {
        let index = operand.0 as usize;
        let (base, element) = (ADDRESSES[index], self.kernel.operands[index].element);
        let same = self.nest.inner_strides[index] == 0;
        let memory = if same {
            at(base, 0)
        } else {
            MemoryOperand::with_base_index_scale(base, POINT, element.bytes() as u32)
        };
        (memory, element, same)
    }

    fn read(&mut self, operand: OperandId, to: Register) -> Done {
        let (memory, element, same) = self.element(operand);
        let code = match (element, same) {
            (Element::F32, false) => self.isa.load,
            (Element::F32, true) => self.isa.broadcast,
            (Element::Bf16, false) => self.isa.widen,
            (Element::Bf16, true) => self.isa.broadcast_half,
        };
        self.put(Instruction::with2(code, to, memory))?;
        if element == Element::Bf16 {
            self.put(Instruction::with3(self.isa.shift_left, to, to, 16))?;
        }
        Ok(())
    }

    /// A `bf16` has been rounded by steps before; its bits are the upper half.
    fn store(&mut self, operand: OperandId, from: Place) -> Done {
        let (memory, element, _) = self.element(operand);
        let scratch = self.scratch();
        let from = self.in_register(from, scratch)?;
        if element == Element::F32 {
            return self.put(Instruction::with2(self.isa.store, memory, from));
        }
        self.put(Instruction::with3(self.isa.shift_right, scratch, from, 16))?;
        if self.isa.wide {
            return self.put(Instruction::with2(Code::EVEX_Vpmovdw_ymmm256_k1z_zmm, memory, scratch));
        }
        self.put(Instruction::with3(Code::VEX_Vpackusdw_ymm_ymm_ymmm256, scratch, scratch, scratch))?;
        self.put(Instruction::with3(Code::VEX_Vpermq_ymm_ymmm256_imm8, scratch, scratch, 0b1000))?;
        let half = Register::XMM0 + u32::from(self.isa.registers);
        self.put(Instruction::with2(Code::VEX_Vmovdqu_xmmm128_xmm, memory, half))
    }
}
