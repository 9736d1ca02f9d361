//! The tiled interpreter: each value is computed for a tile of points at a time, which stays in the first cache.

mod functions;
mod rows;

use std::sync::OnceLock;

use base::Result;

use self::{
    functions::{Row, binary, three, unary},
    rows::run_rows,
};
use crate::{
    Bounds, Kernel, Memory, Nest, Op,
    math::{Math, Scalar},
    phases::Phases,
    tile::{Step, Stored, Tiles},
    verify::verified,
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
    /// Made when it is interpreted first: machine code needs none.
    tiles: OnceLock<Tiles>,
    by_rows: bool,
}

impl Interpreter {
    /// Prepares a kernel; fails where it is not [valid](verify).
    pub fn new(kernel: &Kernel) -> Result<Self> {
        let nest = verified(kernel)?;
        Ok(Self {
            kernel: kernel.clone(),
            bounds: Bounds::of(kernel),
            tiles: OnceLock::new(),
            by_rows: kernel.by_rows(),
            nest,
        })
    }

    fn tiles(&self) -> &Tiles {
        self.tiles.get_or_init(|| {
            let phases = Phases::of(&self.kernel, &self.nest.inner_strides, self.by_rows);
            Tiles::of(&self.kernel, &phases)
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

    /// How many elements an operand has that rows are added up in.
    pub fn sum_length(&self, operand: usize) -> usize {
        self.bounds.elements(operand)
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
    if program.by_rows { run_rows(program, memory) } else { run_points(program, memory) }
}

/// Registers of `size` points, those of constants filled.
fn registers(program: &Interpreter, size: usize) -> Vec<Vec<f32>> {
    let mut registers = vec![vec![0.0_f32; size]; program.tiles().registers];
    for (register, number) in &program.tiles().constants {
        registers[*register].fill(*number);
    }
    registers
}

#[inline(always)]
fn run_points(program: &Interpreter, memory: &[Memory<'_>]) {
    let points = program.nest.rows() * program.nest.inner;
    let size = TILE.min(points.next_multiple_of(PIECE));
    let mut registers = registers(program, size);
    for start in (0..points).step_by(size.max(1)) {
        let tile = Tile { start, count: size.min(points - start) };
        for phase in &program.tiles().phases {
            for step in &phase.points {
                compute(program, step, &mut registers, memory, tile);
            }
            for stored in &phase.stores {
                store(program, stored, &registers, memory, tile);
            }
        }
    }
}

/// `count` points from `start` on.
#[derive(Clone, Copy)]
struct Tile {
    start: usize,
    count: usize,
}

#[inline(always)]
fn store(program: &Interpreter, to: &Stored, registers: &[Vec<f32>], memory: &[Memory<'_>], tile: Tile) {
    let Tile { start, count } = tile;
    let row = Row { nest: &program.nest, operand: to.operand, offset: to.offset, start, count };
    row.store(&registers[to.from], memory[to.operand]);
}

#[inline(always)]
fn compute(
    program: &Interpreter,
    step: &Step,
    registers: &mut [Vec<f32>],
    memory: &[Memory<'_>],
    tile: Tile,
) {
    let Tile { start, count } = tile;
    let mut target = std::mem::take(&mut registers[step.target]);
    let length = count.next_multiple_of(PIECE);
    let to = &mut target[..length];
    let [a, b, c] = step.from.map(|register| registers[register].get(..length).unwrap_or_default());
    match step.op {
        Op::Load(operand, offset) => {
            let (operand, offset) = (operand.0 as usize, offset as usize);
            let rows = Row { nest: &program.nest, operand, offset, start, count };
            rows.load(to, memory[rows.operand]);
        }
        // A tile of a kernel by rows lies in one row.
        Op::Column => {
            let first = start % program.nest.inner.max(1);
            to.iter_mut().enumerate().for_each(|(index, to)| *to = (first + index) as f32);
        }
        Op::Const(_) | Op::Reduce(..) => unreachable!("constants and reductions have registers of their own"),
        Op::Unary(op, _) => unary(op, to, a),
        Op::Binary(op, ..) => binary(op, to, a, b),
        Op::Fma(..) => three(to, a, b, c, |a, b, c| Scalar.fma(a, b, c)),
        Op::Select(..) => three(to, a, b, c, |mask, yes, no| Scalar.select(mask, yes, no)),
    }
    registers[step.target] = target;
}
