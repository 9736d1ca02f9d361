//! The elements of tensors in the CPU's memory.

use std::{cell::Cell, ffi::c_void};

use crate::{
    Library, Slot, Slots, Tensor,
    raw::{Failure, RawTensor},
    value::{Dtype, Layout},
};

/// Elements in memory. Other tensors may share them, so that they are cells.
#[derive(Clone, Copy, Debug)]
pub enum Cells<'a> {
    /// `torch.float32`
    Float32(&'a [Cell<f32>]),
    /// `torch.bfloat16`, by its bits.
    Bfloat16(&'a [Cell<u16>]),
    /// `torch.int64`
    Int64(&'a [Cell<i64>]),
    /// `torch.bool`, 0 or 1.
    Bool(&'a [Cell<u8>]),
}

/// A tensor's elements and how it lies in memory.
#[derive(Clone, Copy, Debug)]
pub struct Elements<'a> {
    /// From its first element to its last one, with what lies between.
    pub cells: Cells<'a>,
    /// Sizes of the dimensions.
    pub sizes: &'a [i64],
    /// Strides of the dimensions, in elements.
    pub strides: &'a [i64],
}

/// A tensor's elements in the memory of a device, which only a kernel of the device may touch. Only [`Slots`] makes it, so that they are there.
#[derive(Clone, Copy, Debug)]
pub struct OnDevice<'a> {
    found: Found<'a>,
}

impl OnDevice<'_> {
    /// The address of the first element.
    pub fn address(&self) -> usize {
        self.found.address as usize
    }

    /// The element type, where it is known.
    pub const fn dtype(&self) -> Option<Dtype> {
        self.found.dtype
    }

    /// How many elements lie from the first to the last one.
    pub const fn count(&self) -> usize {
        self.found.count
    }

    /// Sizes of the dimensions.
    pub const fn sizes(&self) -> &[i64] {
        self.found.sizes
    }

    /// Strides of the dimensions, in elements.
    pub const fn strides(&self) -> &[i64] {
        self.found.strides
    }
}

/// What a tensor says of itself.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    address: *mut c_void,
    dtype: Option<Dtype>,
    count: usize,
    sizes: &'a [i64],
    strides: &'a [i64],
    device: (i32, i32),
}

impl Slots {
    /// The elements of the tensor in `slot`. Fails for tensors that are not on the CPU, not strided or of other element types.
    #[inline]
    pub fn elements(&self, slot: Slot) -> Result<Elements<'_>, Failure> {
        let Found { address, dtype, count, sizes, strides, device } = self.found(slot)?;
        if device.0 != CPU {
            return Err(Failure(format!("{slot} has no elements in the CPU's memory")));
        }
        // SAFETY: a tensor's elements lie within its storage, which it keeps alive, and this table the tensor; all access is by cells,
        // in the thread that runs the program.
        let cells = unsafe {
            match dtype {
                Some(Dtype::Float32) => Cells::Float32(elements(address.cast(), count)),
                Some(Dtype::Bfloat16) => Cells::Bfloat16(elements(address.cast(), count)),
                Some(Dtype::Int64) => Cells::Int64(elements(address.cast(), count)),
                Some(Dtype::Bool) => Cells::Bool(elements(address.cast(), count)),
                other => return Err(Failure(format!("{slot} has elements of {other:?}"))),
            }
        };
        Ok(Elements { cells, sizes, strides })
    }

    /// The number of a tensor of `f32` or `f64` without dimensions, in the CPU's memory.
    pub fn number(&self, slot: Slot) -> Result<f64, Failure> {
        let Found { address, dtype, count, device, .. } = self.found(slot)?;
        if device.0 != CPU || count != 1 {
            return Err(Failure(format!("{slot} is no number in the CPU's memory")));
        }
        // SAFETY: the tensor has one element of this type, and this table keeps it alive.
        unsafe {
            match dtype {
                Some(Dtype::Float32) => Ok(f64::from(address.cast::<f32>().read())),
                Some(Dtype::Float64) => Ok(address.cast::<f64>().read()),
                other => Err(Failure(format!("{slot} is a number of {other:?}"))),
            }
        }
    }

    /// The elements of the tensor in `slot` on a device, by PyTorch's number of its type and its index. Fails for tensors elsewhere.
    pub fn on_device(&self, slot: Slot, device: (i32, i32)) -> Result<OnDevice<'_>, Failure> {
        Self::there(self.found(slot)?, device, &slot.to_string())
    }

    /// The same of a tensor that is in no slot.
    pub fn borrowed<'a>(&self, tensor: &'a Tensor, device: (i32, i32)) -> Result<OnDevice<'a>, Failure> {
        // SAFETY: the handle is alive as long as the tensor, whose metadata nobody changes.
        Self::there(unsafe { found(self.library(), tensor.raw())? }, device, "a tensor")
    }

    fn there<'a>(found: Found<'a>, device: (i32, i32), what: &str) -> Result<OnDevice<'a>, Failure> {
        if found.device != device {
            return Err(Failure(format!("{what} is on another device than the kernel that takes it")));
        }
        Ok(OnDevice { found })
    }

    #[inline]
    fn found(&self, slot: Slot) -> Result<Found<'_>, Failure> {
        // SAFETY: the table keeps the handle alive, and nobody changes the tensor's metadata while it holds it.
        unsafe { found(self.library(), self.raw(slot)?) }
    }
}

/// # Safety
/// The handle, and the tensor's metadata as it is, live as long as `'a`.
#[inline]
unsafe fn found<'a>(library: &Library, raw: RawTensor) -> Result<Found<'a>, Failure> {
    let s = &library.symbols;
    let (mut dim, mut dtype, mut kind, mut device) = (0, 0, 0, (0, 0));
    let (mut sizes, mut strides, mut address) =
        (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the handle is alive, and each call writes one value.
    unsafe {
        library.check((s.layout)(raw, &raw mut kind))?;
        library.check((s.device_type)(raw, &raw mut device.0))?;
        library.check((s.device_index)(raw, &raw mut device.1))?;
        if kind != library.codes.layout(Layout::Strided) {
            return Err(Failure("a tensor has no elements that lie by strides".to_owned()));
        }
        library.check((s.dtype)(raw, &raw mut dtype))?;
        library.check((s.dim)(raw, &raw mut dim))?;
        library.check((s.sizes)(raw, &raw mut sizes))?;
        library.check((s.strides)(raw, &raw mut strides))?;
        library.check((s.data_ptr)(raw, &raw mut address))?;
    }
    // SAFETY: both arrays have `dim` numbers, and live as long as the tensor's metadata, which nobody changes while this table holds it.
    let (sizes, strides) = unsafe { (numbers(sizes, dim), numbers(strides, dim)) };
    let count = extent(sizes, strides).ok_or_else(|| Failure("a tensor has negative strides".to_owned()))?;
    Ok(Found { address, dtype: library.codes.dtype_of(dtype), count, sizes, strides, device })
}

/// PyTorch's number of the CPU.
const CPU: i32 = 0;

/// How many elements lie from the first to the last one.
fn extent(sizes: &[i64], strides: &[i64]) -> Option<usize> {
    if sizes.contains(&0) {
        return Some(0);
    }
    let last = sizes.iter().zip(strides).try_fold(0_i64, |last, (size, stride)| {
        last.checked_add((size - 1).checked_mul(*stride)?).filter(|_| *stride >= 0)
    });
    last.map(|last| last as usize + 1)
}

/// # Safety
/// `from` has `count` numbers that live as long as `'a`, or `count` is 0.
unsafe fn numbers<'a>(from: *const i64, count: i64) -> &'a [i64] {
    match usize::try_from(count) {
        // SAFETY: as the caller says.
        Ok(count) if count > 0 => unsafe { std::slice::from_raw_parts(from, count) },
        _ => &[],
    }
}

/// # Safety
/// `from` has `count` elements that live as long as `'a` and are accessed by cells only, or `count` is 0.
unsafe fn elements<'a, E>(from: *const Cell<E>, count: usize) -> &'a [Cell<E>] {
    if count == 0 {
        return &[];
    }
    // SAFETY: as the caller says.
    unsafe { std::slice::from_raw_parts(from, count) }
}
