//! Calling the code of a kernel, for as many rows at once as lie evenly in memory.

use std::{cell::Cell, mem::MaybeUninit};

use base::Result;
use loops::{
    Interpreter, Memory, Nest,
    phases::sums,
    sums::{Totals, rows_of_a_sum},
};
use smallvec::SmallVec;

use crate::emit::Emitted;

/// A compiled kernel: `addresses` of its operands, and a number of rows.
type Function = unsafe extern "sysv64" fn(addresses: *const *const u8, rows: usize);

/// The most operands, with what is kept.
const TABLE: usize = 12;
/// Numbers of the largest vector: sums of rows are written a vector at a time.
const VECTOR: usize = 16;

/// A kernel's code and what it needs.
pub(crate) struct Compiled {
    function: Function,
    nest: Nest,
    /// Operands that rows are added up in.
    sums: Vec<usize>,
    /// How many numbers its loops keep for later ones.
    kept: usize,
}

impl Compiled {
    /// # Safety
    /// `code` is the address of `emitted`'s code for `interpreter`'s kernel in executable memory that outlives this, and the processor has the
    /// instructions it was made of.
    pub(crate) unsafe fn new(code: *const u8, emitted: &Emitted, interpreter: &Interpreter) -> Self {
        // SAFETY: the emitter makes functions of this type, which begin there.
        let function = unsafe { std::mem::transmute::<*const u8, Function>(code.add(emitted.entry)) };
        let sums = sums(interpreter.kernel()).collect();
        Self { function, nest: interpreter.nest().clone(), sums, kept: emitted.kept }
    }

    /// Runs it; `interpreter` is of the same kernel.
    pub(crate) fn run(&self, interpreter: &Interpreter, memory: &[Memory<'_>]) -> Result<()> {
        interpreter.check(memory)?;
        if self.sums.is_empty() {
            self.rows(memory, &[], 0..self.nest.rows());
        } else {
            self.sum(interpreter, memory);
        }
        Ok(())
    }

    /// Runs all rows in groups, and adds up what these add up.
    fn sum(&self, interpreter: &Interpreter, memory: &[Memory<'_>]) {
        let lengths = self.sums.iter().map(|operand| interpreter.sum_length(*operand));
        let mut totals: Vec<Totals> = lengths.clone().map(Totals::new).collect();
        let parts: Vec<Vec<Cell<f32>>> =
            lengths.map(|length| vec![Cell::new(0.0); length + VECTOR]).collect();
        let rows = self.nest.rows();
        let count = rows_of_a_sum(rows, self.nest.inner);
        for first in (0..rows).step_by(count) {
            // One after the other, so that each is one call that fills memory.
            for part in &parts {
                for cell in part {
                    cell.set(0.0);
                }
            }
            self.rows(memory, &parts, first..rows.min(first + count));
            totals.iter_mut().zip(&parts).for_each(|(total, part)| add(total, part));
        }
        self.sums.iter().zip(totals).for_each(|(operand, total)| memory[*operand].write(total.finish()));
    }

    /// Runs some rows; `parts` are the memory of operands that rows are added up in.
    fn rows(&self, memory: &[Memory<'_>], parts: &[Vec<Cell<f32>>], mut rows: std::ops::Range<usize>) {
        let mut kept: Vec<MaybeUninit<f32>> =
            Vec::with_capacity(if self.kept > 0 { self.kept + VECTOR } else { 0 });
        // Vectors that lie across two lines of a cache take longer.
        let kept = kept.spare_capacity_mut().as_mut_ptr().cast::<u8>();
        let kept = kept.wrapping_add(kept.align_offset(4 * VECTOR) % (4 * VECTOR)).cast_const();
        let along = self.nest.outer.last().copied().unwrap_or(1);
        while rows.start < rows.end {
            let count = (along - rows.start % along).min(rows.end - rows.start);
            let mut table: SmallVec<[*const u8; TABLE]> = SmallVec::new();
            for (operand, memory) in memory.iter().enumerate() {
                table.push(element(*memory, self.nest.start(operand, rows.start)));
            }
            for (operand, part) in self.sums.iter().zip(parts) {
                table[*operand] = part.as_ptr().cast();
            }
            if self.kept > 0 {
                table.push(kept);
            }
            // SAFETY: `check` has shown that every index of the domain lies within its operand, and that what is written is written where
            // nothing else is read later; the code touches the elements of these rows, parts, which have room for a vector more, and what it
            // keeps, which it writes before it reads.
            unsafe { (self.function)(table.as_ptr(), count) };
            rows.start += count;
        }
    }
}

/// Adds the sums of a group of rows, by long vectors where the processor has them.
fn add(total: &mut Totals, group: &[Cell<f32>]) {
    #[cfg(target_arch = "x86_64")]
    if crate::tier::has_avx2() {
        // SAFETY: the processor has these instructions, as was just asked.
        return unsafe { add_avx2(total, group) };
    }
    total.add(group);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn add_avx2(total: &mut Totals, group: &[Cell<f32>]) {
    total.add(group);
}

/// The address of an element; of no element, where there are none.
fn element(memory: Memory<'_>, index: usize) -> *const u8 {
    match memory {
        Memory::F32(cells) => cells.get(index..).unwrap_or_default().as_ptr().cast(),
        Memory::Bf16(cells) | Memory::F16(cells) => cells.get(index..).unwrap_or_default().as_ptr().cast(),
        Memory::Bool(cells) => cells.get(index..).unwrap_or_default().as_ptr().cast(),
        Memory::I64(cells) => cells.get(index..).unwrap_or_default().as_ptr().cast(),
    }
}
