//! Machine code of a kernel: for each row its numbers, and loops over vectors of its points.
//!
//! The code is a function of a table of addresses, one for each operand, and of a number of rows, which is not 0. What it needs of constants
//! lies before it, and it uses no address of its own, so that both may lie anywhere.

mod frame;
mod memory;
mod vectors;

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};
use loops::{
    Access, Element, Kernel, Nest, OperandId,
    phases::{Phases, lanes, span, spans},
};

use self::{frame::Frame, memory::kept_row};
use crate::{
    blocks::{Block, Blocks},
    isa::Isa,
    registers::{Action, Actions, Constants, Place},
    steps::{self, Output},
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
/// The rows that are left.
const ROWS: Register = Register::RSI;
/// Where the lanes of a point lie among those of a reduction, in bytes.
const LANE: Register = Register::RBP;

/// The most elements of a row, and between rows: instructions hold so many bytes.
const MOST_ELEMENTS: usize = i32::MAX as usize / 8;

/// The fewest registers of a loop beside those of lanes.
const FEWEST: usize = 6;

/// The most numbers that loops keep for later ones: they are to stay in a cache.
const MOST_KEPT: usize = 1 << 16;

/// The code of a kernel, behind the constants that it needs.
pub(crate) struct Emitted {
    pub(crate) code: Vec<u8>,
    /// Where the function begins.
    pub(crate) entry: usize,
    /// How many numbers its loops keep for later ones, in memory whose address stands behind those of operands.
    pub(crate) kept: usize,
}

/// The code of a verified kernel; none where it has too many operands, one whose neighbours lie apart in memory, or rows that are too long.
pub(crate) fn emit(kernel: &Kernel, nest: &Nest, isa: &'static Isa) -> Option<Emitted> {
    let strides = nest.outer_strides.iter().filter_map(|strides| strides.last());
    let mut behind = (0..kernel.operands.len()).map(|index| kernel.last_offset(OperandId(index as u32)));
    let too_long = strides.chain([&nest.inner]).any(|elements| *elements > MOST_ELEMENTS)
        || behind.any(|offset| offset as usize > MOST_ELEMENTS);
    // Integers are read one at a time.
    let mut operands = kernel.operands.iter().zip(&nest.inner_strides);
    let apart = operands.any(|(operand, stride)| operand.element == Element::I64 && *stride > 0);
    if kernel.operands.len() > ADDRESSES.len()
        || too_long
        || apart
        || kernel.operands.iter().any(|operand| operand.element == Element::F16)
        || nest.inner_strides.iter().any(|stride| *stride > 1)
    {
        return None;
    }
    let phases = Phases::of(kernel, &nest.inner_strides, true);
    let keeps = if kernel.operands.len() < ADDRESSES.len() { MOST_KEPT / kept_row(nest).max(1) } else { 0 };
    let blocks = Blocks::of(kernel, &phases, isa.wide, keeps);
    let kept = blocks.kept * kept_row(nest);
    let mut constants = Constants::default();
    let mut parts: Vec<(Actions, Loop)> = Vec::new();
    for block in &blocks.phases {
        let row = Actions::of(&block.row, isa.registers, &mut constants);
        parts.push((row, loop_of(block, nest.inner, isa, &mut constants)));
    }
    let end = Actions::of(&blocks.end, isa.registers, &mut constants);
    let starts = blocks.phases.iter().flat_map(|block| &block.reductions);
    starts.for_each(|(reduction, _)| {
        constants.place(reduction.start().to_bits());
    });
    let spilled =
        parts.iter().flat_map(|(row, points)| [row.slots, points.actions.slots]).chain([end.slots]).max();
    let frame = Frame::new(isa, spilled.unwrap_or(0), &blocks, nest.inner)?;
    let data = data(&constants, nest, isa);
    let (rest, entry) = (nest.inner % isa.lanes, data.len());
    let mut encoder = Encoder::new(64);
    // Code goes behind the constants.
    encoder.set_buffer(data);
    let mut emitter = Emitter {
        kernel,
        nest,
        isa,
        frame,
        constants,
        encoder,
        length: entry as u64,
        tail: None,
        ahead: 0,
        held: None,
    };
    emitter.function(&blocks, &parts, &end, rest).ok()?;
    Some(Emitted { code: emitter.encoder.take_buffer(), entry, kept })
}

/// Bytes that there is room for from the beginning behind constants.
const CODE: usize = 2048;

/// The most actions of the code of a loop that is written several times.
const MOST_ACTIONS: usize = 400;

/// The loop of a block. Lanes of reductions are in registers where there are so many, and the code for each turn of them is not long.
fn loop_of(block: &Block, points: usize, isa: &Isa, constants: &mut Constants) -> Loop {
    let each = lanes(points).div_ceil(isa.lanes);
    // One register more is for what joins lanes.
    let last = isa.registers - 1;
    let free = usize::from(last).checked_sub(block.reductions.len() * each);
    let counts = block.points.steps.iter().any(|step| step.code == steps::Code::Column);
    let hold = |actions: &mut Actions, registers| {
        if points > isa.lanes { actions.hold_constants(registers) } else { Vec::new() }
    };
    if let Some(free) = free.filter(|free| *free >= FEWEST)
        && !block.reductions.is_empty()
        && spans(points) == 1
        && !counts
    {
        let mut actions = Actions::of(&block.points, free as u8, constants);
        if actions.slots == 0 && actions.list.len() * each <= MOST_ACTIONS {
            let registers = actions.written()..free as u8;
            let held = Some(Held { first: free as u8, each: each as u8, now: 0 });
            return Loop { constants: hold(&mut actions, registers), actions, held };
        }
    }
    let mut actions = Actions::of(&block.points, isa.registers, constants);
    // The lanes of spans are joined in the first two registers and the last one.
    let registers = actions.written().max(2)..last;
    Loop { constants: hold(&mut actions, registers), actions, held: None }
}

/// Constants, each as many times as a vector has numbers, then a mask of the points that do not fill a vector, and the positions in one.
fn data(constants: &Constants, nest: &Nest, isa: &Isa) -> Vec<u8> {
    let mut data = Vec::with_capacity((constants.0.len() + 2) * isa.bytes() + CODE);
    let mut put = |word: u32| data.extend_from_slice(&word.to_le_bytes());
    for bits in &constants.0 {
        (0..isa.lanes).for_each(|_| put(*bits));
    }
    let rest = nest.inner % isa.lanes;
    (0..isa.lanes).for_each(|lane| put(if lane < rest { u32::MAX } else { 0 }));
    (0..isa.lanes).for_each(|lane| put((lane as f32).to_bits()));
    data
}

struct Emitter<'a> {
    kernel: &'a Kernel,
    nest: &'a Nest,
    isa: &'static Isa,
    frame: Frame,
    constants: Constants,
    encoder: Encoder,
    /// Bytes from the first constant on.
    length: u64,
    /// How many points there are, where they do not fill a vector.
    tail: Option<usize>,
    /// So many vectors of points behind that of the point.
    ahead: usize,
    /// Where lanes are in registers.
    held: Option<Held>,
}

/// The registers of lanes: some for each reduction, from the first one on, in turn.
#[derive(Clone, Copy)]
struct Held {
    first: u8,
    each: u8,
    now: u8,
}

impl Held {
    /// The register of a reduction's lanes of a turn.
    const fn register(self, position: usize, turn: u8) -> u8 {
        self.first + position as u8 * self.each + turn
    }
}

/// The code of a loop over points.
struct Loop {
    actions: Actions,
    /// Registers that have a constant in all turns of the loop.
    constants: Vec<(u8, u32)>,
    held: Option<Held>,
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

    /// A jump ahead; where it [lands](Self::land) is said later.
    fn jump(&mut self, code: Code) -> Result<u64, IcedError> {
        self.put(Instruction::with_branch(code, self.length))?;
        Ok(self.length)
    }

    /// The jump that ends at `from` leads to here: its distance is its last four bytes.
    fn land(&mut self, from: u64) {
        let distance = (self.length - from) as u32;
        let mut buffer = self.encoder.take_buffer();
        buffer[from as usize - 4..from as usize].copy_from_slice(&distance.to_le_bytes());
        self.encoder.set_buffer(buffer);
    }

    fn function(&mut self, blocks: &Blocks, parts: &[(Actions, Loop)], end: &Actions, rest: usize) -> Done {
        for register in KEPT {
            self.put(Instruction::with1(Code::Push_r64, register))?;
        }
        self.enter()?;
        let addresses = self.kernel.operands.len() + usize::from(blocks.kept > 0);
        for (index, address) in ADDRESSES.into_iter().enumerate().take(addresses) {
            self.put(Instruction::with2(Code::Mov_r64_rm64, address, at(POINT, 8 * index)))?;
        }
        if rest > 0 {
            self.mask(rest)?;
        }
        let start = self.length;
        for (block, (row, points)) in blocks.phases.iter().zip(parts) {
            self.actions(row)?;
            for (register, constant) in points.constants.iter().filter(|_| block.loops) {
                self.load(self.vector(*register), Place::Constant(*constant))?;
            }
            match points.held {
                Some(held) if block.loops => self.points_in_turn(block, &points.actions, rest, held)?,
                None if block.loops => self.points(block, &points.actions, rest)?,
                _ => {}
            }
        }
        self.actions(end)?;
        self.next_row(start)?;
        self.leave()?;
        for register in KEPT.into_iter().rev() {
            self.put(Instruction::with1(Code::Pop_r64, register))?;
        }
        self.put(Ok(Instruction::with(Code::VEX_Vzeroupper)))?;
        self.put(Ok(Instruction::with(Code::Retnq)))
    }

    /// Goes on to the next row, if there is one.
    fn next_row(&mut self, start: u64) -> Done {
        for (index, operand) in self.kernel.operands.iter().enumerate() {
            let stride = self.nest.outer_strides[index].last().copied().unwrap_or(0);
            if stride > 0 && operand.access != Access::Add {
                let bytes = (stride * operand.element.bytes()) as i32;
                self.put(Instruction::with2(Code::Add_rm64_imm32, ADDRESSES[index], bytes))?;
            }
        }
        self.put(Instruction::with1(Code::Dec_rm64, ROWS))?;
        self.put(Instruction::with_branch(Code::Jne_rel32_64, start))
    }

    /// The loop over the points of a row, and what becomes of its reductions.
    fn points(&mut self, block: &Block, points: &Actions, rest: usize) -> Done {
        let reduces = !block.reductions.is_empty();
        self.start_lanes(&block.reductions)?;
        self.put(Instruction::with2(Code::Xor_r32_rm32, Register::EDI, Register::EDI))?;
        if reduces {
            self.put(Instruction::with2(Code::Xor_r32_rm32, Register::EBP, Register::EBP))?;
        }
        let in_spans =
            if reduces && spans(self.nest.inner) > 1 { self.whole_spans(block, points)? } else { 0 };
        let full = self.nest.inner - rest;
        if full > in_spans {
            let start = self.length;
            self.vector_of_points(points, reduces)?;
            if full > in_spans + self.isa.lanes {
                self.put(Instruction::with2(Code::Cmp_rm64_imm32, POINT, full as i32))?;
                self.put(Instruction::with_branch(Code::Jb_rel32_64, start))?;
            }
        }
        if rest > 0 {
            self.tail = Some(rest);
            self.actions(points)?;
            self.tail = None;
        }
        if in_spans > 0 && self.nest.inner > in_spans {
            self.end_span(&block.reductions)?;
        }
        block
            .reductions
            .iter()
            .enumerate()
            .try_for_each(|(position, (reduction, number))| self.join_lanes(*reduction, position, *number))
    }

    /// The same with lanes in registers: the code is there for each turn of them.
    fn points_in_turn(&mut self, block: &Block, points: &Actions, rest: usize, held: Held) -> Done {
        let turns = usize::from(held.each);
        let vectors = self.nest.inner / self.isa.lanes;
        let whole = vectors / turns * turns;
        for (position, (reduction, _)) in block.reductions.iter().enumerate() {
            let start = self.constants.place(reduction.start().to_bits());
            for turn in 0..held.each {
                self.load(self.vector(held.register(position, turn)), start)?;
            }
        }
        self.put(Instruction::with2(Code::Xor_r32_rm32, Register::EDI, Register::EDI))?;
        if whole > 0 {
            let start = self.length;
            (0..turns).try_for_each(|turn| self.turn(points, held, turn))?;
            self.put(Instruction::with2(Code::Add_rm64_imm32, POINT, (turns * self.isa.lanes) as i32))?;
            if whole > turns {
                let end = (whole * self.isa.lanes) as i32;
                self.put(Instruction::with2(Code::Cmp_rm64_imm32, POINT, end))?;
                self.put(Instruction::with_branch(Code::Jb_rel32_64, start))?;
            }
        }
        let last = vectors - whole;
        (0..last).try_for_each(|turn| self.turn(points, held, turn))?;
        if rest > 0 {
            self.tail = Some(rest);
            self.turn(points, held, last)?;
            self.tail = None;
        }
        (self.ahead, self.held) = (0, None);
        block.reductions.iter().enumerate().try_for_each(|(position, (reduction, number))| {
            self.join_held(*reduction, held, position)?;
            self.spread(*reduction, *number)
        })
    }

    fn turn(&mut self, points: &Actions, held: Held, turn: usize) -> Done {
        self.ahead = turn;
        self.held = Some(Held { now: turn as u8, ..held });
        self.actions(points)
    }

    /// The loops over those spans of a row that have all points of one; gives how many points these are.
    fn whole_spans(&mut self, block: &Block, points: &Actions) -> Result<usize, IcedError> {
        let span = span(self.nest.inner);
        let whole = self.nest.inner / span * span;
        let end = self.frame.end();
        self.put(Instruction::with2(Code::Mov_rm64_imm32, end, span as i32))?;
        let start = self.length;
        self.vector_of_points(points, true)?;
        self.put(Instruction::with2(Code::Cmp_r64_rm64, POINT, end))?;
        self.put(Instruction::with_branch(Code::Jb_rel32_64, start))?;
        self.end_span(&block.reductions)?;
        self.put(Instruction::with2(Code::Add_rm64_imm32, end, span as i32))?;
        self.put(Instruction::with2(Code::Cmp_rm64_imm32, POINT, whole as i32))?;
        self.put(Instruction::with_branch(Code::Jb_rel32_64, start))?;
        Ok(whole)
    }

    fn vector_of_points(&mut self, points: &Actions, reduces: bool) -> Done {
        self.actions(points)?;
        self.put(Instruction::with2(Code::Add_rm64_imm32, POINT, self.isa.lanes as i32))?;
        if reduces { self.next_lanes() } else { Ok(()) }
    }

    fn actions(&mut self, actions: &Actions) -> Done {
        actions.list.iter().try_for_each(|action| self.action(action))
    }

    fn action(&mut self, action: &Action) -> Done {
        match action {
            Action::Spill { register, slot } => {
                let to = self.frame.slot(*slot);
                self.put(Instruction::with2(self.isa.store, to, self.vector(*register)))
            }
            Action::Output { to, from } => self.output(*to, *from),
            Action::Step { code, to, from } => self.step(*code, self.vector(*to), from),
        }
    }

    fn output(&mut self, to: Output, from: Place) -> Done {
        match to {
            Output::Store(operand, offset) => self.store(operand, offset, from),
            Output::Add(operand, offset) => self.add(operand, offset, from),
            Output::Row(number) => {
                let from = self.in_register(from, self.scratch())?;
                self.put(Instruction::with2(self.isa.store, self.frame.number(number), from))
            }
            Output::Kept(position) => {
                let from = self.in_register(from, self.scratch())?;
                self.put(Instruction::with2(self.isa.store, self.kept(position), from))
            }
            Output::Lanes(position) => {
                if let Some(held) = self.held {
                    let lanes = self.vector(held.register(position as usize, held.now));
                    return match self.tail {
                        Some(_) => self.some_into(lanes, from),
                        None => self.load(lanes, from),
                    };
                }
                let lanes = self.frame.lanes(position as usize);
                let from = match self.tail {
                    Some(_) => self.some_of(from, lanes)?,
                    None => self.in_register(from, self.scratch())?,
                };
                self.put(Instruction::with2(self.isa.store, lanes, from))
            }
        }
    }
}
