//! Owned tensor handles.

use std::{ffi::c_void, ptr::NonNull};

use crate::{
    Library,
    raw::{Failure, RawTensor},
    value::{Device, Dtype, Number},
};

/// One reference to a tensor, given back when dropped.
pub struct Tensor(NonNull<c_void>);

// SAFETY: a handle is a reference-counted pointer whose counts are atomic; a tensor's metadata is not changed while it is
// shared.
unsafe impl Send for Tensor {}

/// How a tensor lies in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Element type; none where it is one that Unisono does not know.
    pub dtype: Option<Dtype>,
    /// Sizes of the dimensions.
    pub sizes: Vec<i64>,
    /// Strides of the dimensions, in elements.
    pub strides: Vec<i64>,
    /// Position of the first element in its storage, in elements.
    pub offset: i64,
    /// Address of the first element; 0 where there is none.
    pub address: usize,
    /// Whether it is an ordinary strided tensor.
    pub strided: bool,
}

impl Tensor {
    /// Takes over a reference.
    ///
    /// # Safety
    /// `raw` is null or an owned `AtenTensorHandle`, and libtorch is loaded.
    pub unsafe fn from_raw(raw: *mut c_void) -> Option<Self> {
        NonNull::new(raw).map(Self)
    }

    /// The handle, borrowed.
    pub(crate) const fn raw(&self) -> RawTensor {
        self.0.as_ptr()
    }

    /// Gives the reference away.
    pub fn into_raw(self) -> *mut c_void {
        let raw = self.0.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// A tensor without dimensions that holds `number` in the type `dtype`; none for types that numbers do not take.
    pub fn scalar(library: &'static Library, number: Number, dtype: Dtype) -> Result<Self, Failure> {
        let mut raw = std::ptr::null_mut();
        let s = &library.symbols;
        // SAFETY: each function writes one new reference to `raw`.
        let status = unsafe {
            match (number, dtype) {
                (Number::Float(value), Dtype::Float32) => (s.scalar_f32)(value as f32, &raw mut raw),
                (Number::Float(value), _) => (s.scalar_f64)(value, &raw mut raw),
                (Number::Int(value), Dtype::Float32) => (s.scalar_f32)(value as f32, &raw mut raw),
                (Number::Int(value), _) => (s.scalar_i64)(value, &raw mut raw),
                (Number::Bool(value), _) => (s.scalar_bool)(value, &raw mut raw),
            }
        };
        library.check(status)?;
        // SAFETY: a successful call has written an owned handle.
        unsafe { Self::from_raw(raw) }.ok_or_else(|| Failure("no tensor was made".to_owned()))
    }

    /// An uninitialised tensor on a device by PyTorch's number of its type and its index. Panics where there is not a
    /// stride for each size.
    pub fn empty(
        library: &'static Library,
        dtype: Dtype,
        sizes: &[i64],
        strides: &[i64],
        device: (i32, i32),
    ) -> Result<Self, Failure> {
        assert_eq!(sizes.len(), strides.len(), "a stride for each size");
        let mut raw = std::ptr::null_mut();
        // SAFETY: sizes and strides have the same length, which is passed; one new reference is written to `raw`.
        let status = unsafe {
            (library.symbols.empty_strided)(
                sizes.len() as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                library.codes.dtype(dtype),
                device.0,
                device.1,
                &raw mut raw,
            )
        };
        library.check(status)?;
        // SAFETY: a successful call has written an owned handle.
        unsafe { Self::from_raw(raw) }.ok_or_else(|| Failure("no tensor was made".to_owned()))
    }

    /// How it lies in memory.
    pub fn layout(&self, library: &'static Library) -> Result<Layout, Failure> {
        // SAFETY: the handle is alive.
        unsafe { layout(library, self.0.as_ptr()) }
    }

    /// Whether its element type, sizes and strides are those of `known`.
    pub fn lies_as(&self, library: &'static Library, known: &Layout) -> Result<bool, Failure> {
        let s = &library.symbols;
        let (raw, mut dim, mut dtype, mut kind) = (self.0.as_ptr(), 0, 0, 0);
        let (mut sizes, mut strides) = (std::ptr::null_mut(), std::ptr::null_mut());
        let Some(expected) = known.dtype else { return Ok(false) };
        // SAFETY: the handle is alive and each call writes one value; the arrays have `dim` elements and live as long as the
        // tensor's metadata, which nobody changes meanwhile.
        unsafe {
            library.check((s.layout)(raw, &raw mut kind))?;
            library.check((s.dtype)(raw, &raw mut dtype))?;
            library.check((s.dim)(raw, &raw mut dim))?;
            let strided = kind == library.codes.layout(crate::value::Layout::Strided);
            if !strided || !known.strided || dtype != library.codes.dtype(expected) {
                return Ok(false);
            }
            if dim as usize != known.sizes.len() || dim == 0 {
                return Ok(dim as usize == known.sizes.len());
            }
            library.check((s.sizes)(raw, &raw mut sizes))?;
            library.check((s.strides)(raw, &raw mut strides))?;
            let there = |from: *mut i64| std::slice::from_raw_parts(from, dim as usize);
            Ok(there(sizes) == known.sizes && there(strides) == known.strides)
        }
    }

    /// Its device: PyTorch's number of the type, and the index.
    pub fn device(&self, library: &'static Library) -> Result<(i32, i32), Failure> {
        let (mut kind, mut index) = (0, 0);
        // SAFETY: the handle is alive, and each call writes one number.
        unsafe {
            library.check((library.symbols.device_type)(self.0.as_ptr(), &raw mut kind))?;
            library.check((library.symbols.device_index)(self.0.as_ptr(), &raw mut index))?;
        }
        Ok((kind, index))
    }

    /// Copies the elements of `source` into this tensor.
    pub fn copy_from(&self, library: &'static Library, source: &Self) -> Result<(), Failure> {
        // SAFETY: both handles are alive and stay the caller's.
        library.check(unsafe { (library.symbols.copy)(self.0.as_ptr(), source.0.as_ptr(), 0) })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Some(library) = Library::get() {
            // SAFETY: the handle is owned and not used after.
            unsafe { (library.symbols.delete_tensor)(self.0.as_ptr()) };
        }
    }
}

/// # Safety
/// `raw` is a live handle.
pub(crate) unsafe fn layout(library: &'static Library, raw: RawTensor) -> Result<Layout, Failure> {
    let s = &library.symbols;
    let (mut dim, mut numel, mut offset, mut dtype, mut kind) = (0, 0, 0, 0, 0);
    // SAFETY: the handle is alive and each call writes one value; the arrays have `dim` elements and live as long as the
    // tensor's metadata, which nobody changes meanwhile.
    unsafe {
        library.check((s.layout)(raw, &raw mut kind))?;
        library.check((s.dtype)(raw, &raw mut dtype))?;
        library.check((s.dim)(raw, &raw mut dim))?;
        let dtype = library.codes.dtype_of(dtype);
        if kind != library.codes.layout(crate::value::Layout::Strided) {
            return Ok(Layout {
                dtype,
                sizes: vec![],
                strides: vec![],
                offset: 0,
                address: 0,
                strided: false,
            });
        }
        library.check((s.numel)(raw, &raw mut numel))?;
        library.check((s.storage_offset)(raw, &raw mut offset))?;
        let (mut sizes, mut strides, mut address) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        library.check((s.sizes)(raw, &raw mut sizes))?;
        library.check((s.strides)(raw, &raw mut strides))?;
        library.check((s.data_ptr)(raw, &raw mut address))?;
        let copy = |from: *mut i64| match dim {
            0 => Vec::new(),
            dim => std::slice::from_raw_parts(from, dim as usize).to_vec(),
        };
        let address = if numel == 0 { 0 } else { address as usize };
        Ok(Layout { dtype, sizes: copy(sizes), strides: copy(strides), offset, address, strided: true })
    }
}

/// The number of a device for the dispatcher: type in the upper half, index in the lower.
pub(crate) fn device_word(library: &'static Library, device: &Device) -> Result<u64, Failure> {
    let (kind, index) = library.device_numbers(device)?;
    Ok((u64::from(kind as u32) << 32) | u64::from(index as u32))
}

impl Library {
    /// PyTorch's number of a device's type, and its index: -1 for the current one.
    pub fn device_numbers(&self, device: &Device) -> Result<(i32, i32), Failure> {
        let text = match device.index {
            Some(index) => format!("{}:{index}\0", device.kind),
            None => format!("{}\0", device.kind),
        };
        let (mut kind, mut index) = (0_u32, 0_i32);
        // SAFETY: the text is zero-terminated and two numbers are written.
        let status =
            unsafe { (self.symbols.parse_device)(text.as_ptr().cast(), &raw mut kind, &raw mut index) };
        self.check(status)?;
        Ok((kind as i32, index))
    }

    /// Bytes of one element.
    pub fn element_size(&self, dtype: Dtype) -> usize {
        // SAFETY: a pure function of a code of this library's.
        unsafe { (self.symbols.element_size)(self.codes.dtype(dtype)) }
    }
}
