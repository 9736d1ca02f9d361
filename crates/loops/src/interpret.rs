//! The tiled interpreter: each value is computed for a tile of points at a time, which stays in the first cache.

use std::cell::Cell;

use base::Result;

use crate::{
    Binary, Bounds, Kernel, Memory, Nest, Op, Unary, bf16_of, f32_of,
    math::{self, Math, Scalar},
    tile::{Step, Tiles},
    verify,
};

/// Points of a tile.
const TILE: usize = 512;
/// Tiles are computed in pieces of this many points.
const PIECE: usize = 16;

/// A kernel, ready to be interpreted.
pub struct Interpreter {
    kernel: Kernel,
    bounds: Bounds,
    nest: Nest,
    tiles: Tiles,
}

impl Interpreter {
    /// Prepares a kernel; fails where it is not [valid](verify).
    pub fn new(kernel: &Kernel) -> Result<Self> {
        verify(kernel)?;
        Ok(Self {
            kernel: kernel.clone(),
            bounds: Bounds::of(kernel),
            nest: Nest::of(kernel),
            tiles: Tiles::of(kernel),
        })
    }

    /// The kernel.
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Its loops.
    pub const fn nest(&self) -> &Nest {
        &self.nest
    }

    /// Fails where memory does not fit ([`Bounds`]).
    pub fn check(&self, memory: &[Memory<'_>]) -> Result<()> {
        self.bounds.check(memory)
    }

    /// Runs it over `memory`, which has that of each operand. Fails where memory does not fit ([`Bounds`]).
    pub fn run(&self, memory: &[Memory<'_>]) -> Result<()> {
        self.check(memory)?;
        run(self, memory);
        Ok(())
    }

    /// The same with vectors of eight numbers; gives the same bits.
    ///
    /// # Safety
    /// The processor has AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    pub fn run_avx2(&self, memory: &[Memory<'_>]) -> Result<()> {
        self.check(memory)?;
        run(self, memory);
        Ok(())
    }
}

#[inline(always)]
fn run(program: &Interpreter, memory: &[Memory<'_>]) {
    let points = program.nest.rows() * program.nest.inner;
    let size = TILE.min(points.next_multiple_of(PIECE));
    let mut registers = vec![vec![0.0_f32; size]; program.tiles.registers];
    for (register, number) in &program.tiles.constants {
        registers[*register].fill(*number);
    }
    for start in (0..points).step_by(size.max(1)) {
        let count = size.min(points - start);
        for step in &program.tiles.steps {
            compute(program, step, &mut registers, memory, start, count);
        }
        for (operand, register) in &program.tiles.stores {
            let rows = Rows { nest: &program.nest, operand: operand.0 as usize, start, count };
            rows.store(&registers[*register], memory[rows.operand]);
        }
    }
}

#[inline(always)]
fn compute(
    program: &Interpreter,
    step: &Step,
    registers: &mut [Vec<f32>],
    memory: &[Memory<'_>],
    start: usize,
    count: usize,
) {
    let mut target = std::mem::take(&mut registers[step.target]);
    let length = count.next_multiple_of(PIECE);
    let to = &mut target[..length];
    let [a, b, c] = step.from.map(|register| registers[register].get(..length).unwrap_or_default());
    match step.op {
        Op::Load(operand) => {
            let rows = Rows { nest: &program.nest, operand: operand.0 as usize, start, count };
            rows.load(to, memory[rows.operand]);
        }
        Op::Const(_) => unreachable!("constants have registers of their own"),
        Op::Unary(op, _) => unary(op, to, a),
        Op::Binary(op, ..) => binary(op, to, a, b),
        Op::Fma(..) => three(to, a, b, c, |a, b, c| Scalar.fma(a, b, c)),
        Op::Select(..) => three(to, a, b, c, |mask, yes, no| Scalar.select(mask, yes, no)),
    }
    registers[step.target] = target;
}

#[inline(always)]
fn one(to: &mut [f32], a: &[f32], function: impl Fn(f32) -> f32) {
    for (to, a) in to.iter_mut().zip(a) {
        *to = function(*a);
    }
}

#[inline(always)]
fn two(to: &mut [f32], a: &[f32], b: &[f32], function: impl Fn(f32, f32) -> f32) {
    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
        *to = function(*a, *b);
    }
}

#[inline(always)]
fn three(to: &mut [f32], a: &[f32], b: &[f32], c: &[f32], function: impl Fn(f32, f32, f32) -> f32) {
    for (((to, a), b), c) in to.iter_mut().zip(a).zip(b).zip(c) {
        *to = function(*a, *b, *c);
    }
}

#[inline(always)]
fn unary(op: Unary, to: &mut [f32], a: &[f32]) {
    match op {
        Unary::Neg => one(to, a, |x| math::neg(&mut Scalar, x)),
        Unary::Abs => one(to, a, |x| math::abs(&mut Scalar, x)),
        Unary::Sqrt => one(to, a, |x| Scalar.sqrt(x)),
        Unary::Exp => one(to, a, |x| math::exp(&mut Scalar, x)),
        Unary::Log => one(to, a, |x| math::log(&mut Scalar, x)),
        Unary::Tanh => one(to, a, |x| math::tanh(&mut Scalar, x)),
        Unary::Sigmoid => one(to, a, |x| math::sigmoid(&mut Scalar, x)),
        Unary::Erf => one(to, a, |x| math::erf(&mut Scalar, x)),
        Unary::RoundBf16 => one(to, a, |x| math::round_bf16(&mut Scalar, x)),
    }
}

#[inline(always)]
fn binary(op: Binary, to: &mut [f32], a: &[f32], b: &[f32]) {
    match op {
        Binary::Add => two(to, a, b, |a, b| Scalar.add(a, b)),
        Binary::Sub => two(to, a, b, |a, b| Scalar.sub(a, b)),
        Binary::Mul => two(to, a, b, |a, b| Scalar.mul(a, b)),
        Binary::Div => two(to, a, b, |a, b| Scalar.div(a, b)),
        Binary::Max => two(to, a, b, |a, b| math::maximum(&mut Scalar, a, b)),
        Binary::Min => two(to, a, b, |a, b| math::minimum(&mut Scalar, a, b)),
        Binary::Less => two(to, a, b, |a, b| Scalar.less(a, b)),
        Binary::LessEqual => two(to, a, b, |a, b| Scalar.less_equal(a, b)),
        Binary::Equal => two(to, a, b, |a, b| Scalar.equal(a, b)),
    }
}

/// The elements that an operand has at `count` points from `start` on.
struct Rows<'a> {
    nest: &'a Nest,
    operand: usize,
    start: usize,
    count: usize,
}

impl Rows<'_> {
    /// Calls `piece` for each part of a row: where it begins in the tile, how many points it has, where its elements begin.
    #[inline(always)]
    fn each(&self, mut piece: impl FnMut(usize, usize, usize)) {
        let inner = self.nest.inner;
        let (mut row, mut column) = (self.start / inner, self.start % inner);
        let mut at = 0;
        while at < self.count {
            let length = (inner - column).min(self.count - at);
            piece(at, length, self.nest.start(self.operand, row) + column * self.stride());
            (at, row, column) = (at + length, row + 1, 0);
        }
    }

    #[inline(always)]
    fn stride(&self) -> usize {
        self.nest.inner_strides[self.operand]
    }

    #[inline(always)]
    fn load(&self, to: &mut [f32], memory: Memory<'_>) {
        let stride = self.stride();
        self.each(|at, length, index| {
            let to = &mut to[at..at + length];
            match memory {
                Memory::F32(cells) => load_piece(to, &cells[index..], stride, |number| number),
                Memory::Bf16(cells) => load_piece(to, &cells[index..], stride, f32_of),
            }
        });
    }

    #[inline(always)]
    fn store(&self, from: &[f32], memory: Memory<'_>) {
        let stride = self.stride();
        self.each(|at, length, index| {
            let from = &from[at..at + length];
            match memory {
                Memory::F32(cells) => store_piece(from, &cells[index..], stride, |number| number),
                Memory::Bf16(cells) => store_piece(from, &cells[index..], stride, bf16_of),
            }
        });
    }
}

#[inline(always)]
fn load_piece<E: Copy>(to: &mut [f32], cells: &[Cell<E>], stride: usize, convert: impl Fn(E) -> f32) {
    match stride {
        0 => to.fill(convert(cells[0].get())),
        1 => to.iter_mut().zip(cells).for_each(|(to, cell)| *to = convert(cell.get())),
        _ => to.iter_mut().zip(cells.iter().step_by(stride)).for_each(|(to, cell)| *to = convert(cell.get())),
    }
}

#[inline(always)]
fn store_piece<E: Copy>(from: &[f32], cells: &[Cell<E>], stride: usize, convert: impl Fn(f32) -> E) {
    match stride {
        0 | 1 => from.iter().zip(cells).for_each(|(from, cell)| cell.set(convert(*from))),
        _ => from.iter().zip(cells.iter().step_by(stride)).for_each(|(from, cell)| cell.set(convert(*from))),
    }
}
