//! Executable memory.

use memmap2::{Mmap, MmapMut};

/// Code in memory that can be run and no longer written.
pub(crate) struct Pages(Mmap);

/// Functions begin at multiples of this.
const ALIGNED: usize = 64;

impl Pages {
    /// Puts functions into memory, and says where each begins; none where the host does not allow it. Memory is writable first and
    /// executable afterwards, never both.
    pub(crate) fn of(functions: &[&[u8]]) -> Option<(Self, Vec<usize>)> {
        let mut starts = Vec::with_capacity(functions.len());
        let mut end = 0_usize;
        for function in functions {
            starts.push(end.next_multiple_of(ALIGNED));
            end = end.next_multiple_of(ALIGNED) + function.len();
        }
        let mut memory = MmapMut::map_anon(end.max(1)).ok()?;
        for (function, start) in functions.iter().zip(&starts) {
            memory[*start..start + function.len()].copy_from_slice(function);
        }
        Some((Self(memory.make_exec().ok()?), starts))
    }

    /// The address of what begins at `start`.
    pub(crate) fn address(&self, start: usize) -> *const u8 {
        self.0[start..].as_ptr()
    }
}
