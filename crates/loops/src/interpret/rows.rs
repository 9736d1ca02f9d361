//! Kernels by rows: for each row its numbers, and loops over its points.

use std::cell::Cell;

use smallvec::SmallVec;

use super::{Interpreter, PIECE, TILE, Tile, compute, functions::binary, registers, store};
use crate::{
    Access, Memory, Op, Reduction, bf16_of, f32_of, f32_of_half, half_of,
    math::{self, Scalar},
    phases::{MOST_LANES, lanes, span, sums},
    sums::{Totals, rows_of_a_sum},
    tile::{Stored, TilePhase},
};

type Lanes = [f32; MOST_LANES];

/// Runs a kernel by rows. Rows are added up in groups, and then [groups](Totals).
#[inline(always)]
pub(super) fn run_rows(program: &Interpreter, memory: &[Memory<'_>]) {
    let size = TILE.min(program.nest.inner.next_multiple_of(PIECE)).max(PIECE);
    let mut registers = registers(program, size);
    let operands: Vec<usize> = sums(&program.kernel).collect();
    let lengths = operands.iter().map(|operand| program.sum_length(*operand));
    let mut totals: Vec<Totals> = lengths.clone().map(Totals::new).collect();
    let parts: Vec<Vec<Cell<f32>>> = lengths.map(|length| vec![Cell::new(0.0); length]).collect();
    let mut own: SmallVec<[Memory<'_>; 16]> = memory.into();
    for (operand, part) in operands.iter().zip(&parts) {
        own[*operand] = Memory::F32(part);
    }
    let rows = program.nest.rows();
    let count = rows_of_a_sum(rows, program.nest.inner);
    for first in (0..rows).step_by(count) {
        parts.iter().flatten().for_each(|cell| cell.set(0.0));
        for row in first..rows.min(first + count) {
            run_row(program, &mut registers, &own, row);
        }
        totals.iter_mut().zip(&parts).for_each(|(total, part)| total.add(part));
    }
    operands.iter().zip(totals).for_each(|(operand, total)| memory[*operand].write(total.finish()));
}

#[inline(always)]
fn run_row(program: &Interpreter, registers: &mut [Vec<f32>], memory: &[Memory<'_>], row: usize) {
    let (inner, size) = (program.nest.inner, registers.first().map_or(PIECE, Vec::len));
    let whole = Tile { start: row * inner, count: size.min(inner) };
    for phase in &program.tiles().phases {
        // One number fills a register, so that it is computed as points are.
        for step in &phase.row {
            match step.op {
                Op::Load(operand, offset) => {
                    let number = first_of(program, (operand.0 as usize, offset as usize), memory, row);
                    registers[step.target].fill(number);
                }
                _ => compute(program, step, registers, memory, Tile { start: 0, count: size }),
            }
        }
        let count = lanes(inner);
        let lanes = run_loop(program, phase, registers, memory, whole);
        for (reduce, lanes) in phase.reductions.iter().zip(lanes) {
            registers[reduce.target].fill(joined(reduce.reduction, lanes, count));
        }
    }
    for &Stored { operand, offset, from } in &program.tiles().row_stores {
        let index = program.nest.start(operand, row) + offset;
        let number = registers[from][0];
        match memory[operand] {
            Memory::F32(cells) if program.kernel.operands[operand].access == Access::Add => {
                cells[index].set(cells[index].get() + number);
            }
            Memory::F32(cells) => cells[index].set(number),
            Memory::Bf16(cells) => cells[index].set(bf16_of(number)),
            Memory::F16(cells) => cells[index].set(half_of(number)),
            Memory::Bool(_) | Memory::I64(_) => unreachable!("the verifier lets no kernel write these"),
        }
    }
}

fn first_of(
    program: &Interpreter,
    (operand, offset): (usize, usize),
    memory: &[Memory<'_>],
    row: usize,
) -> f32 {
    let index = program.nest.start(operand, row) + offset;
    match memory[operand] {
        Memory::F32(cells) => cells[index].get(),
        Memory::Bf16(cells) => f32_of(cells[index].get()),
        Memory::F16(cells) => f32_of_half(cells[index].get()),
        Memory::Bool(cells) => f32::from(cells[index].get()),
        Memory::I64(cells) => cells[index].get() as f32,
    }
}

/// Runs the loop of a phase over a row, which begins where `whole` does, and gives what its reductions gathered.
#[inline(always)]
fn run_loop(
    program: &Interpreter,
    phase: &TilePhase,
    registers: &mut [Vec<f32>],
    memory: &[Memory<'_>],
    whole: Tile,
) -> SmallVec<[Lanes; 4]> {
    let start = || phase.reductions.iter().map(|reduce| [reduce.reduction.start(); MOST_LANES]);
    let mut joined: SmallVec<[Lanes; 4]> = start().collect();
    let inner = program.nest.inner;
    for first in (0..inner).step_by(span(inner)) {
        let mut gathered: SmallVec<[Lanes; 4]> = start().collect();
        let end = inner.min(first + span(inner));
        for at in (first..end).step_by(whole.count.max(1)) {
            let tile = Tile { start: whole.start + at, count: whole.count.min(end - at) };
            run_tile(program, phase, registers, memory, tile, &mut gathered);
        }
        for ((reduce, joined), lanes) in phase.reductions.iter().zip(&mut joined).zip(&gathered) {
            let before = *joined;
            binary(reduce.reduction.binary(), joined, &before, lanes);
        }
    }
    joined
}

/// Runs the loop over a tile, and gathers what its reductions take.
#[inline(always)]
fn run_tile(
    program: &Interpreter,
    phase: &TilePhase,
    registers: &mut [Vec<f32>],
    memory: &[Memory<'_>],
    tile: Tile,
    gathered: &mut [Lanes],
) {
    let count = lanes(program.nest.inner);
    for step in &phase.points {
        compute(program, step, registers, memory, tile);
    }
    for (reduce, lanes) in phase.reductions.iter().zip(gathered) {
        for points in registers[reduce.from][..tile.count].chunks(count) {
            let before = *lanes;
            let lanes = &mut lanes[..points.len()];
            binary(reduce.reduction.binary(), lanes, &before[..points.len()], points);
        }
    }
    for stored in &phase.stores {
        if program.kernel.operands[stored.operand].access == Access::Add {
            add_tile(program, stored, registers, memory, tile);
        } else {
            store(program, stored, registers, memory, tile);
        }
    }
}

/// Adds a tile of a row to what the rows before have stored.
#[inline(always)]
fn add_tile(program: &Interpreter, to: &Stored, registers: &[Vec<f32>], memory: &[Memory<'_>], tile: Tile) {
    let stride = program.nest.inner_strides[to.operand];
    let first = tile.start % program.nest.inner.max(1) * stride + to.offset;
    if let Memory::F32(cells) = memory[to.operand] {
        let cells = cells[first..].iter().step_by(stride.max(1));
        cells.zip(&registers[to.from][..tile.count]).for_each(|(cell, number)| cell.set(cell.get() + number));
    }
}

/// The results of all lanes as one: each half with the other.
#[inline(always)]
fn joined(reduction: Reduction, mut lanes: Lanes, count: usize) -> f32 {
    let mut half = count / 2;
    while half > 0 {
        for lane in 0..half {
            let (low, high) = (lanes[lane], lanes[lane + half]);
            lanes[lane] = match reduction {
                Reduction::Sum => low + high,
                Reduction::Max => math::maximum(&mut Scalar, low, high),
                Reduction::Min => math::minimum(&mut Scalar, low, high),
            };
        }
        half /= 2;
    }
    lanes[0]
}
