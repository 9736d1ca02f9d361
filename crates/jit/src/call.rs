//! Calling the code of a kernel: row by row, what does not fill a vector through memory of its own.

use std::cell::Cell;

use base::Result;
use loops::{Access, Interpreter, Memory, Nest};
use smallvec::SmallVec;

use crate::{emit::Emitted, isa::Isa};

/// A compiled kernel: `addresses` of its operands and constants, and a number of points.
type Function = unsafe extern "sysv64" fn(addresses: *const *const u8, points: usize);

/// Bytes of the largest vector of an operand.
const VECTOR: usize = 64;
/// The most operands and the constants.
const TABLE: usize = 16;

/// A kernel's code and what it needs.
pub(crate) struct Compiled {
    function: Function,
    constants: Vec<u32>,
    lanes: usize,
    nest: Nest,
}

impl Compiled {
    /// # Safety
    /// `code` is the address of `emitted`'s code for `nest` and `isa` in executable memory that outlives this, and the processor has `isa`.
    pub(crate) unsafe fn new(code: *const u8, emitted: &Emitted, nest: Nest, isa: &Isa) -> Self {
        // SAFETY: the emitter makes functions of this type.
        let function = unsafe { std::mem::transmute::<*const u8, Function>(code) };
        Self { function, constants: emitted.constants.clone(), lanes: isa.lanes, nest }
    }

    /// Runs it; `interpreter` is of the same kernel.
    pub(crate) fn run(&self, interpreter: &Interpreter, memory: &[Memory<'_>]) -> Result<()> {
        interpreter.check(memory)?;
        let (full, rest) = (self.nest.inner / self.lanes * self.lanes, self.nest.inner % self.lanes);
        let mut table = [std::ptr::null(); TABLE];
        table[memory.len()] = self.constants.as_ptr().cast();
        let mut rows = Rows::new(&self.nest);
        for _ in 0..self.nest.rows() {
            if full > 0 {
                for (entry, (memory, start)) in table.iter_mut().zip(memory.iter().zip(&rows.starts)) {
                    *entry = element(*memory, *start);
                }
                // SAFETY: `check` has shown that every index of the domain lies within its operand, and that what is written is
                // written where nothing else is read later; the code touches the first `full` points of this row, and constants.
                unsafe { (self.function)(table.as_ptr(), full) };
            }
            if rest > 0 {
                self.rest(interpreter, memory, &rows.starts, full);
            }
            rows.next();
        }
        Ok(())
    }

    /// The points of a row that do not fill a vector, from `first` on: copied into vectors and back.
    fn rest(&self, interpreter: &Interpreter, memory: &[Memory<'_>], starts: &[usize], first: usize) {
        let mut vectors = [[0_u8; VECTOR]; TABLE];
        let mut table: [*const u8; TABLE] = [std::ptr::null(); TABLE];
        table[memory.len()] = self.constants.as_ptr().cast();
        let count = self.nest.inner - first;
        let operands = &interpreter.kernel().operands;
        let place = |index: usize| starts[index] + first * self.nest.inner_strides[index];
        for (index, operand) in operands.iter().enumerate() {
            let vector = &mut vectors[index];
            if operand.access == Access::Read {
                let points = if self.nest.inner_strides[index] == 0 { 1 } else { count };
                read(memory[index], place(index), points, vector);
            }
            table[index] = vector.as_mut_ptr().cast_const();
        }
        // SAFETY: every entry has room for a vector of the widest element, and one vector is computed.
        unsafe { (self.function)(table.as_ptr(), self.lanes) };
        let written = operands.iter().enumerate().filter(|(_, operand)| operand.access == Access::Write);
        for (index, _) in written {
            write(memory[index], place(index), count, &vectors[index]);
        }
    }
}

/// The rows of a nest one after the other.
struct Rows<'a> {
    nest: &'a Nest,
    /// For each operand the index of the first element of this row.
    starts: SmallVec<[usize; TABLE]>,
    /// Where this row is along each outer loop.
    at: SmallVec<[usize; 4]>,
}

impl<'a> Rows<'a> {
    fn new(nest: &'a Nest) -> Self {
        let starts = nest.outer_strides.iter().map(|_| 0).collect();
        Self { nest, starts, at: nest.outer.iter().map(|_| 0).collect() }
    }

    /// Goes on to the next row, if there is one.
    #[inline]
    fn next(&mut self) {
        for dim in (0..self.at.len()).rev() {
            self.at[dim] += 1;
            let size = self.nest.outer[dim];
            let ends = self.at[dim] == size;
            for (start, strides) in self.starts.iter_mut().zip(&self.nest.outer_strides) {
                *start += strides[dim];
                if ends {
                    *start -= size * strides[dim];
                }
            }
            if !ends {
                return;
            }
            self.at[dim] = 0;
        }
    }
}

/// The address of an element.
fn element(memory: Memory<'_>, index: usize) -> *const u8 {
    match memory {
        Memory::F32(cells) => cells[index..].as_ptr().cast(),
        Memory::Bf16(cells) => cells[index..].as_ptr().cast(),
    }
}

/// Copies `count` elements from `start` on into a vector.
fn read(memory: Memory<'_>, start: usize, count: usize, vector: &mut [u8; VECTOR]) {
    match memory {
        Memory::F32(cells) => {
            let elements = cells[start..start + count].iter();
            vector
                .chunks_exact_mut(4)
                .zip(elements)
                .for_each(|(to, from)| to.copy_from_slice(&from.get().to_ne_bytes()));
        }
        Memory::Bf16(cells) => {
            let elements = cells[start..start + count].iter();
            vector
                .chunks_exact_mut(2)
                .zip(elements)
                .for_each(|(to, from)| to.copy_from_slice(&from.get().to_ne_bytes()));
        }
    }
}

/// Copies the first `count` elements of a vector to those from `start` on.
fn write(memory: Memory<'_>, start: usize, count: usize, vector: &[u8; VECTOR]) {
    match memory {
        Memory::F32(cells) => copy(&cells[start..start + count], vector, f32::from_ne_bytes),
        Memory::Bf16(cells) => copy(&cells[start..start + count], vector, u16::from_ne_bytes),
    }
}

fn copy<E, const BYTES: usize>(cells: &[Cell<E>], vector: &[u8; VECTOR], element: impl Fn([u8; BYTES]) -> E) {
    for (cell, bytes) in cells.iter().zip(vector.chunks_exact(BYTES)) {
        cell.set(element(bytes.try_into().expect("a chunk has this many bytes")));
    }
}
