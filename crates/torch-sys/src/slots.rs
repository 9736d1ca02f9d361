//! The table of numbered tensors that a program runs over.

use smallvec::SmallVec;

use crate::{
    Library, Slot, Tensor,
    raw::{Failure, RawTensor},
    tensor::{self, Layout},
};

/// Tensors by slot; a slot is empty until something is put there, and empty again when it is released.
pub struct Slots {
    handles: Vec<RawTensor>,
    pub(crate) library: &'static Library,
}

// SAFETY: handles are reference-counted pointers with atomic counts, owned by this table.
unsafe impl Send for Slots {}

/// A view by metadata alone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct View {
    /// What it is a view of.
    pub source: Slot,
    /// Where it goes.
    pub target: Slot,
    /// Position of its first element after the source's first one, in elements.
    pub advance: i64,
    /// Sizes of the dimensions, then strides in elements; up to four dimensions lie in the instruction itself.
    geometry: SmallVec<[i64; 8]>,
}

impl View {
    /// The view with these sizes and strides of the tensor in `source`.
    pub fn new(source: Slot, target: Slot, sizes: &[i64], strides: &[i64], advance: i64) -> Self {
        assert_eq!(sizes.len(), strides.len(), "a stride for each size");
        Self { source, target, advance, geometry: sizes.iter().chain(strides).copied().collect() }
    }
}

#[cold]
fn empty(slot: Slot) -> Failure {
    Failure(format!("slot {slot} is empty"))
}

impl Slots {
    /// `count` empty slots.
    pub fn new(library: &'static Library, count: usize) -> Self {
        Self { handles: vec![std::ptr::null_mut(); count], library }
    }

    /// The library that its tensors belong to.
    pub const fn library(&self) -> &'static Library {
        self.library
    }

    /// The handle in `slot`, borrowed; never null.
    #[inline]
    pub(crate) fn raw(&self, slot: Slot) -> Result<RawTensor, Failure> {
        let raw = self.handles[slot.0 as usize];
        if raw.is_null() { Err(empty(slot)) } else { Ok(raw) }
    }

    /// Takes the handle out of `slot`; never null.
    #[inline]
    pub(crate) fn take_raw(&mut self, slot: Slot) -> Result<RawTensor, Failure> {
        let raw = std::mem::replace(&mut self.handles[slot.0 as usize], std::ptr::null_mut());
        if raw.is_null() { Err(empty(slot)) } else { Ok(raw) }
    }

    /// Puts an owned handle into `slot`.
    ///
    /// # Safety
    /// `raw` is null or an owned handle.
    #[inline]
    pub(crate) unsafe fn put_raw(&mut self, slot: Slot, raw: RawTensor) {
        let before = std::mem::replace(&mut self.handles[slot.0 as usize], raw);
        if !before.is_null() {
            // SAFETY: the table owned it.
            unsafe { (self.library.symbols.delete_tensor)(before) };
        }
    }

    /// Puts `tensor` into `slot`, releasing what was there.
    pub fn put(&mut self, slot: Slot, tensor: Tensor) {
        // SAFETY: a tensor is an owned handle.
        unsafe { self.put_raw(slot, tensor.into_raw()) }
    }

    /// Takes the tensor out of `slot`.
    pub fn take(&mut self, slot: Slot) -> Option<Tensor> {
        let raw = std::mem::replace(&mut self.handles[slot.0 as usize], std::ptr::null_mut());
        // SAFETY: the table owned it and has given it up.
        unsafe { Tensor::from_raw(raw) }
    }

    /// Another handle of the tensor in `slot`, owned by the caller.
    #[inline]
    pub(crate) fn share_raw(&self, slot: Slot) -> Result<RawTensor, Failure> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the handle is alive; one new reference is written to `raw`.
        let status = unsafe { (self.library.symbols.new_handle)(self.raw(slot)?, &raw mut raw) };
        self.library.check(status)?;
        Ok(raw)
    }

    /// Another reference to the tensor in `slot`.
    pub fn share(&self, slot: Slot) -> Result<Tensor, Failure> {
        // SAFETY: an owned handle.
        unsafe { Tensor::from_raw(self.share_raw(slot)?) }.ok_or_else(|| empty(slot))
    }

    /// Empties `slot`.
    #[inline]
    pub fn release(&mut self, slot: Slot) {
        // SAFETY: null is allowed.
        unsafe { self.put_raw(slot, std::ptr::null_mut()) }
    }

    /// Whether `slot` is empty.
    pub fn is_empty(&self, slot: Slot) -> bool {
        self.handles[slot.0 as usize].is_null()
    }

    /// How many slots are not empty.
    pub fn live(&self) -> usize {
        self.handles.iter().filter(|raw| !raw.is_null()).count()
    }

    /// How many slots there are.
    pub fn count(&self) -> usize {
        self.handles.len()
    }

    /// How the tensor in `slot` lies in memory; none where an operation has left it undefined.
    pub fn layout(&self, slot: Slot) -> Result<Option<Layout>, Failure> {
        let raw = self.raw(slot)?;
        let mut defined = false;
        // SAFETY: the handle is alive.
        unsafe {
            self.library.check((self.library.symbols.is_defined)(raw, &raw mut defined))?;
            if defined { tensor::layout(self.library, raw).map(Some) } else { Ok(None) }
        }
    }

    /// Makes a view without any computation.
    #[inline]
    pub fn view(&mut self, view: &View) -> Result<(), Failure> {
        let (sizes, strides) = view.geometry.split_at(view.geometry.len() / 2);
        let mut raw = std::ptr::null_mut();
        // SAFETY: the source is alive; sizes and strides have the length that is passed; one new reference is written to
        // `raw`, which the table then owns.
        unsafe {
            let status = (self.library.symbols.reinterpret)(
                self.raw(view.source)?,
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                view.advance,
                &raw mut raw,
            );
            self.library.check(status)?;
            self.put_raw(view.target, raw);
        }
        Ok(())
    }

    /// Copies the elements of the tensor in `source` into the one in `target`.
    pub fn copy(&mut self, target: Slot, source: Slot) -> Result<(), Failure> {
        // SAFETY: both handles are alive and stay the table's.
        let status = unsafe { (self.library.symbols.copy)(self.raw(target)?, self.raw(source)?, 0) };
        self.library.check(status)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in 0..self.handles.len() {
            self.release(Slot(slot as u32));
        }
    }
}
