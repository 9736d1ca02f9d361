//! Memory of large tensors that is kept when they end, for the next ones.
//!
//! The C library gives such blocks back to the system whenever they are freed, and the next one costs a page fault for each page. Here
//! a tensor that ends leaves its memory to the next one that it is large enough for. When it ends, its reference counts say, whoever has it.

use std::{
    ffi::c_void,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::{
    Library, Tensor,
    raw::Failure,
    value::{Dtype, Layout},
};

/// From so many bytes on memory is kept: glibc keeps smaller blocks itself.
pub const LARGE: u64 = 32 << 20;

/// Memory that is larger by up to one part in so many is about as large.
const WASTE: u64 = 8;

static KEPT: Mutex<Kept<Block>> = Mutex::new(Kept::new());

/// While it exists, memory of large tensors is kept; when the last one is dropped, what is kept is freed.
pub struct Keeping(());

impl Keeping {
    /// Begins to keep memory.
    pub fn begin() -> Self {
        kept().keepers += 1;
        Self(())
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let mut kept = kept();
        kept.keepers -= 1;
        let freed = if kept.keepers == 0 { kept.forget() } else { Vec::new() };
        drop(kept);
        drop(freed);
    }
}

/// While it exists, no memory is kept: all comes from PyTorch's allocator and goes back to it at once, as whoever measures has to see it.
pub struct Paused(());

impl Paused {
    /// Frees what is kept and begins to keep nothing.
    pub fn begin() -> Self {
        let mut kept = kept();
        kept.pauses += 1;
        let freed = kept.forget();
        drop(kept);
        drop(freed);
        Self(())
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        kept().pauses -= 1;
    }
}

/// The bytes of tensors in memory that is to be kept, and of what is kept for the next ones.
pub fn kept_bytes() -> (u64, u64) {
    let kept = kept();
    (kept.used, kept.free.iter().map(|(bytes, _)| bytes).sum())
}

fn kept() -> MutexGuard<'static, Kept<Block>> {
    // Each change of it is whole before anything else is called.
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Memory from PyTorch's allocator: a tensor of bytes, and where they are.
struct Block {
    tensor: Tensor,
    address: usize,
}

/// What a tensor needs to give its memory back.
struct Loan {
    bytes: u64,
    block: Block,
}

/// Blocks of memory in use and free ones.
struct Kept<B> {
    /// Free blocks with their bytes, those that have been free for longest first.
    free: Vec<(u64, B)>,
    /// The bytes of blocks in use.
    used: u64,
    /// The most bytes that were in use at once: no more is held, in use or free.
    most: u64,
    keepers: usize,
    pauses: usize,
}

impl<B> Kept<B> {
    const fn new() -> Self {
        Self { free: Vec::new(), used: 0, most: 0, keepers: 0, pauses: 0 }
    }

    /// A free block for so many bytes, which is in use from now on; else the blocks to free before another one is made. It is one of about
    /// that size, or a larger one where another one would take more than was ever in use.
    fn take(&mut self, bytes: u64) -> Result<(u64, B), Vec<B>> {
        let smallest = |most: u64| {
            let serves = |(_, (size, _)): &(usize, &(u64, B))| (bytes..=most).contains(size);
            self.free.iter().enumerate().filter(serves).min_by_key(|(_, (size, _))| *size).map(|(at, _)| at)
        };
        let held = self.used + bytes + self.free.iter().map(|(size, _)| size).sum::<u64>();
        let over = held.saturating_sub(self.most.max(self.used + bytes));
        let found = smallest(bytes + bytes / WASTE).or_else(|| smallest(u64::MAX).filter(|_| over > 0));
        if let Some(position) = found {
            let block = self.free.remove(position);
            self.used(block.0);
            return Ok(block);
        }
        self.used(bytes);
        let mut left = over;
        let freed = self.free.iter().take_while(|(size, _)| {
            let more = left > 0;
            left = left.saturating_sub(*size);
            more
        });
        let count = freed.count();
        Err(self.free.drain(..count).map(|(_, block)| block).collect())
    }

    fn used(&mut self, bytes: u64) {
        self.used += bytes;
        self.most = self.most.max(self.used);
    }

    /// Takes back a block that nothing uses any more; gives it on where it is not to be kept.
    fn give(&mut self, bytes: u64, block: B) -> Option<B> {
        self.used -= bytes;
        if self.keepers == 0 || self.pauses > 0 {
            return Some(block);
        }
        self.free.push((bytes, block));
        None
    }

    /// Gives away all that is free.
    fn forget(&mut self) -> Vec<B> {
        self.most = self.used;
        self.free.drain(..).map(|(_, block)| block).collect()
    }
}

impl Tensor {
    /// An uninitialised tensor on the host, [`LARGE`] or larger, in memory that is kept while anybody is [`Keeping`]. Panics where there is not a
    /// stride for each size. It is like any other, but that its storage cannot be made larger.
    pub fn kept(
        library: &'static Library,
        dtype: Dtype,
        sizes: &[i64],
        strides: &[i64],
        device: (i32, i32),
    ) -> Result<Self, Failure> {
        assert_eq!(sizes.len(), strides.len(), "a stride for each size");
        let last: i64 = sizes.iter().zip(strides).map(|(size, stride)| (size - 1) * stride).sum();
        let bytes = (last + 1).max(0) as u64 * dtype.bytes();
        let Some(from_blob) = library.symbols.from_blob.filter(|_| !sizes.contains(&0) && kept().pauses == 0)
        else {
            return Self::empty(library, dtype, sizes, strides, device);
        };
        let taken = kept().take(bytes);
        let (bytes, block) = match taken {
            Ok(block) => block,
            Err(freed) => {
                drop(freed);
                match Block::new(library, bytes, device) {
                    Ok(block) => (bytes, block),
                    Err(failure) => {
                        kept().used -= bytes;
                        return Err(failure);
                    }
                }
            }
        };
        let mut raw = std::ptr::null_mut();
        let address = block.address as *mut c_void;
        let loan = Box::into_raw(Box::new(Loan { bytes, block }));
        // SAFETY: the block holds all elements and lives until `end` is called, which the tensor's storage does once, with the loan; sizes and
        // strides have the length that is passed; one new reference is written to `raw`.
        let status = unsafe {
            from_blob(
                address,
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                0,
                library.codes.dtype(dtype),
                device.0,
                device.1,
                &raw mut raw,
                library.codes.layout(Layout::Strided),
                std::ptr::null(),
                0,
                Some(end),
                loan.cast(),
            )
        };
        // Where it fails nobody can tell whether the loan has been given back: then its memory is lost.
        library.check(status)?;
        // SAFETY: a successful call has written an owned handle.
        unsafe { Self::from_raw(raw) }.ok_or_else(|| Failure("no tensor was made".to_owned()))
    }
}

impl Block {
    fn new(library: &'static Library, bytes: u64, device: (i32, i32)) -> Result<Self, Failure> {
        let tensor = Tensor::empty(library, Dtype::Uint8, &[bytes as i64], &[1], device)?;
        let address = tensor.layout(library)?.address;
        Ok(Self { tensor, address })
    }
}

/// Takes the memory of a tensor back when its storage ends.
///
/// # Safety
/// `loan` is a loan of [`Tensor::kept`] that has not been given back.
unsafe extern "C" fn end(_: *mut c_void, loan: *mut c_void) {
    // SAFETY: says the caller.
    let Loan { bytes, block } = *unsafe { Box::from_raw(loan.cast::<Loan>()) };
    let gone = kept().give(bytes, block);
    drop(gone.map(|block| block.tensor));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeping() -> Kept<&'static str> {
        Kept { keepers: 1, ..Kept::new() }
    }

    #[test]
    fn what_ends_serves_the_next_that_needs_about_as_much() {
        let mut kept = keeping();
        assert_eq!((kept.take(100), kept.take(90), kept.take(50)), (Err(vec![]), Err(vec![]), Err(vec![])));
        assert_eq!((kept.give(100, "a"), kept.give(90, "b")), (None, None));
        assert_eq!(kept.take(88), Ok((90, "b")));
        assert_eq!(kept.take(60), Ok((100, "a")));
        assert_eq!((kept.used, kept.most), (240, 240));
    }

    #[test]
    fn what_is_much_smaller_gets_memory_of_its_own_as_long_as_no_more_is_held_than_was_in_use() {
        let mut kept = keeping();
        assert_eq!((kept.take(100), kept.take(60)), (Err(vec![]), Err(vec![])));
        assert_eq!((kept.give(100, "a"), kept.give(60, "b")), (None, None));
        assert_eq!(kept.take(60), Ok((60, "b")));
        assert_eq!(kept.take(100), Ok((100, "a")));
        assert_eq!((kept.give(100, "a"), kept.used), (None, 60));
        assert_eq!(kept.take(50), Ok((100, "a")));
    }

    #[test]
    fn no_more_is_held_than_was_in_use_at_once() {
        let mut kept = keeping();
        for (bytes, block, freed) in [(10, "a", vec![]), (20, "b", vec!["a"]), (30, "c", vec!["b"])] {
            assert_eq!(kept.take(bytes), Err(freed));
            assert_eq!(kept.give(bytes, block), None);
        }
        assert_eq!((kept.most, kept.used), (30, 0));
        assert_eq!(kept.free, [(30, "c")]);
    }

    #[test]
    fn nothing_is_kept_where_nobody_keeps_or_somebody_measures() {
        let mut kept = keeping();
        assert_eq!(kept.take(10), Err(vec![]));
        assert_eq!(kept.give(10, "a"), None);
        assert_eq!(kept.forget(), ["a"]);
        assert_eq!(kept.take(10), Err(vec![]));
        kept.pauses = 1;
        assert_eq!(kept.give(10, "b"), Some("b"));
        kept.pauses = 0;
        assert_eq!(kept.take(10), Err(vec![]));
        kept.keepers = 0;
        assert_eq!(kept.give(10, "c"), Some("c"));
        assert_eq!(kept.used, 0);
    }
}
