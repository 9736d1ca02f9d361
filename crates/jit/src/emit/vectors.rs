//! One step each.

use iced_x86::{Code, IcedError, Instruction, Register};

use super::{Done, Emitter, Source};
use crate::{
    registers::Place,
    steps::{Code as Step, Compare},
};

impl Emitter<'_> {
    pub(super) fn vector(&self, register: u8) -> Register {
        self.isa.first + u32::from(register)
    }

    /// The register for what an instruction needs in between.
    pub(super) fn scratch(&self) -> Register {
        self.vector(self.isa.registers)
    }

    /// Where an instruction finds a value.
    pub(super) fn source(&self, place: Place) -> Source {
        match place {
            Place::Register(register) => Source::Register(self.vector(register)),
            Place::Constant(index) => Source::Memory(self.constant(index as usize)),
            Place::Stack(slot) => Source::Memory(self.frame.slot(slot)),
            Place::Row(number) => Source::Memory(self.frame.number(number)),
            Place::Lanes(position) => match self.held {
                Some(held) => Source::Register(self.vector(held.register(position as usize, held.now))),
                None => Source::Memory(self.frame.lanes(position as usize)),
            },
            Place::Kept(position) => Source::Memory(self.kept(position)),
        }
    }

    /// The register of a place; what is in memory goes into `into` first.
    pub(super) fn in_register(&mut self, place: Place, into: Register) -> Result<Register, IcedError> {
        match self.source(place) {
            Source::Register(register) => Ok(register),
            Source::Memory(_) => self.load(into, place).map(|()| into),
        }
    }

    pub(super) fn load(&mut self, into: Register, place: Place) -> Done {
        match self.source(place) {
            Source::Register(from) if from == into => Ok(()),
            Source::Register(from) => self.put(Instruction::with2(self.isa.load, into, from)),
            Source::Memory(memory) => self.put(Instruction::with2(self.isa.load, into, memory)),
        }
    }

    pub(super) fn step(&mut self, code: Step, to: Register, from: &[Place]) -> Done {
        match (code, from) {
            (Step::Load(operand, offset), _) => self.read(operand, offset, to),
            (Step::Column, _) => self.column(to),
            (Step::Sqrt, [a]) => self.one(self.isa.sqrt, to, *a),
            (Step::NumberOfWord, [a]) => self.one(self.isa.number_of_word, to, *a),
            (Step::ShiftRight(bits), [a]) => self.shift(self.isa.shift_right, to, *a, bits),
            (Step::ShiftRightSigned(bits), [a]) => self.shift(self.isa.shift_right_signed, to, *a, bits),
            (Step::ShiftLeft(bits), [a]) => self.shift(self.isa.shift_left, to, *a, bits),
            (Step::Fma, [a, b, c]) => self.fma(self.isa.fma, to, [*a, *b, *c]),
            (Step::NegatedFma, [a, b, c]) => self.fma(self.isa.negated_fma, to, [*a, *b, *c]),
            (Step::Quotient, [made, a, b, is_apart]) => self.quotient(to, [*made, *a, *b], *is_apart),
            (Step::Select(compare), [a, b, yes, no]) => self.select(compare, to, [*a, *b], *yes, *no),
            (_, [a, b]) => {
                let (code, commutes) = self.isa.binary(code).expect("all other steps take two values");
                self.two(code, commutes, to, *a, *b)
            }
            _ => unreachable!("a step takes as many values as its code says"),
        }
    }

    pub(super) fn one(&mut self, code: Code, to: Register, a: Place) -> Done {
        let made = match self.source(a) {
            Source::Memory(a) => Instruction::with2(code, to, a),
            Source::Register(a) => Instruction::with2(code, to, a),
        };
        self.put(made)
    }

    pub(super) fn shift(&mut self, code: Code, to: Register, a: Place, bits: u8) -> Done {
        let scratch = self.scratch();
        let a = self.in_register(a, scratch)?;
        self.put(Instruction::with3(code, to, a, i32::from(bits)))
    }

    pub(super) fn two(&mut self, code: Code, commutes: bool, to: Register, a: Place, b: Place) -> Done {
        let (a, b) = if commutes && a.is_memory() { (b, a) } else { (a, b) };
        let scratch = self.scratch();
        let a = self.in_register(a, scratch)?;
        self.three(code, to, a, b)
    }

    /// An instruction whose last operand may lie in memory.
    pub(super) fn three(&mut self, code: Code, to: Register, a: Register, b: Place) -> Done {
        let made = match self.source(b) {
            Source::Memory(memory) => Instruction::with3(code, to, a, memory),
            Source::Register(b) => Instruction::with3(code, to, a, b),
        };
        self.put(made)
    }

    /// `a * b + c`, or as the codes have it. The instructions overwrite one of the three, which may be `to` itself.
    pub(super) fn fma(&mut self, codes: [Code; 3], to: Register, [a, b, c]: [Place; 3]) -> Done {
        let [product_into_a, product_with_last, sum_into] = codes;
        let is_to = |this: &Self, place: Place| matches!(place, Place::Register(r) if this.vector(r) == to);
        let scratch = self.scratch();
        if a.is_memory() && !b.is_memory() && !is_to(self, b) && !is_to(self, c) {
            self.load(to, a)?;
            let b = self.in_register(b, scratch)?;
            return self.three(product_into_a, to, b, c);
        }
        // `a` is in a register, and it is the one to be overwritten if one of the factors is.
        let swap = a.is_memory() || is_to(self, b);
        let (a, b) = if swap { (b, a) } else { (a, b) };
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

    /// `made`, or `a / b` where a number is apart. Most vectors jump over the division.
    fn quotient(&mut self, to: Register, [made, a, b]: [Place; 3], is_apart: Place) -> Done {
        let scratch = self.scratch();
        let is_apart = self.in_register(is_apart, scratch)?;
        self.put(Instruction::with2(Code::EVEX_Vpmovd2m_kr_zmm, Register::K1, is_apart))?;
        self.put(Instruction::with2(Code::VEX_Kortestw_kr_kr, Register::K1, Register::K1))?;
        let (divide, _) = self.isa.binary(Step::Div).expect("it is of two values");
        // `to` may be where `a` lies, so that it is written last on either way.
        let to_made = self.jump(Code::Je_rel32_64)?;
        let a = self.in_register(a, scratch)?;
        self.three(divide, to, a, b)?;
        let to_end = self.jump(Code::Jmp_rel32_64)?;
        self.land(to_made);
        self.load(to, made)?;
        self.land(to_end);
        Ok(())
    }

    pub(super) fn select(
        &mut self,
        compare: Compare,
        to: Register,
        [a, b]: [Place; 2],
        yes: Place,
        no: Place,
    ) -> Done {
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

    pub(super) fn blend(&mut self, to: Register, no: Register, yes: Place, mask: Register) -> Done {
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
}
