//! Tensor types: element type, sizes, strides, device.

use std::{fmt, str::FromStr};

use base::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use smallvec::SmallVec;

/// Sizes or strides, one per dimension.
pub type Dims = SmallVec<[i64; 4]>;

macro_rules! dtypes {
    ($($name:ident, $text:literal, $torch:literal, $bytes:literal;)*) => {
        /// An element type, named as in the text form.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        pub enum Dtype {
            $(
                #[doc = concat!("`torch.", $torch, "`")]
                #[serde(rename = $text)]
                $name,
            )*
        }

        impl Dtype {
            /// All element types.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The short name of the text form, such as `f32`.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// PyTorch's name without the `torch.` prefix, such as `float32`.
            pub const fn torch_name(self) -> &'static str {
                match self { $(Self::$name => $torch,)* }
            }

            /// Bytes per element.
            pub const fn bytes(self) -> u64 {
                match self { $(Self::$name => $bytes,)* }
            }
        }
    };
}

dtypes! {
    F64, "f64", "float64", 8;
    F32, "f32", "float32", 4;
    F16, "f16", "float16", 2;
    Bf16, "bf16", "bfloat16", 2;
    F8e4m3, "f8e4m3", "float8_e4m3fn", 1;
    F8e5m2, "f8e5m2", "float8_e5m2", 1;
    C64, "c64", "complex64", 8;
    C128, "c128", "complex128", 16;
    I64, "i64", "int64", 8;
    I32, "i32", "int32", 4;
    I16, "i16", "int16", 2;
    I8, "i8", "int8", 1;
    U8, "u8", "uint8", 1;
    U16, "u16", "uint16", 2;
    U32, "u32", "uint32", 4;
    U64, "u64", "uint64", 8;
    Bool, "bool", "bool", 1;
}

impl Dtype {
    /// Whether values of this type are real or complex numbers with a fraction.
    pub const fn is_floating(self) -> bool {
        use Dtype::{Bf16, C64, C128, F8e4m3, F8e5m2, F16, F32, F64};
        matches!(self, F64 | F32 | F16 | Bf16 | F8e4m3 | F8e5m2 | C64 | C128)
    }

    /// Whether values of this type are complex numbers.
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::C64 | Self::C128)
    }

    /// The element type of a short name.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|dtype| dtype.text() == text)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The most letters that the name of a kind of device has.
const KIND_LETTERS: usize = 23;

/// The kind of device that holds a tensor, by PyTorch's name: `cpu`, `cuda`, or whatever a backend calls itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKind {
    /// The name, filled up with zeros.
    name: [u8; KIND_LETTERS],
}

impl DeviceKind {
    /// Host memory.
    pub const CPU: Self = Self::of("cpu");
    /// No memory at all: shapes only.
    pub const META: Self = Self::of("meta");

    /// The kind of a name: small letters, digits and underlines, a letter first, at most 23 of them.
    pub fn named(name: &str) -> Option<Self> {
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let first = name.starts_with(|c: char| c.is_ascii_lowercase());
        (first && name.len() <= KIND_LETTERS && name.chars().all(known)).then(|| Self::of(name))
    }

    const fn of(name: &str) -> Self {
        let (bytes, mut made) = (name.as_bytes(), [0; KIND_LETTERS]);
        let mut at = 0;
        while at < bytes.len() {
            made[at] = bytes[at];
            at += 1;
        }
        Self { name: made }
    }

    /// PyTorch's name.
    pub fn name(&self) -> &str {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(KIND_LETTERS);
        std::str::from_utf8(&self.name[..length]).expect("a name is ASCII")
    }

    /// Whether it is host memory.
    pub fn is_cpu(self) -> bool {
        self == Self::CPU
    }
}

impl Default for DeviceKind {
    fn default() -> Self {
        Self::CPU
    }
}

impl fmt::Debug for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for DeviceKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DeviceKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| D::Error::custom(format!("`{name}` names no kind of device")))
    }
}

/// A device. The index is the capturing process's and is replaced by the rank's own when a program is made.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Device {
    /// The kind.
    pub kind: DeviceKind,
    /// Which of that kind; 0 for `cpu` and `meta`.
    pub index: u16,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::CPU | DeviceKind::META => f.write_str(self.kind.name()),
            kind => write!(f, "{}:{}", kind.name(), self.index),
        }
    }
}

impl FromStr for Device {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is none of cpu, meta, KIND:INDEX");
        let (name, index) = match text.split_once(':') {
            None if matches!(text, "cpu" | "meta") => (text, "0"),
            Some((name, index)) if !matches!(name, "cpu" | "meta") => (name, index),
            _ => return Err(wrong()),
        };
        let kind = DeviceKind::named(name).ok_or_else(wrong)?;
        Ok(Self { kind, index: index.parse().map_err(|_| wrong())? })
    }
}

/// What is known of a tensor without its data.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TensorType {
    /// Element type.
    pub dtype: Dtype,
    /// Size of each dimension.
    #[serde(deserialize_with = "dims")]
    pub shape: Dims,
    /// Elements between neighbours of each dimension.
    #[serde(deserialize_with = "dims")]
    pub strides: Dims,
    /// Where it is.
    #[serde(default)]
    pub device: Device,
}

impl TensorType {
    /// A tensor laid out in row-major order on the CPU.
    pub fn contiguous(dtype: Dtype, shape: impl Into<Dims>) -> Self {
        let shape = shape.into();
        let strides = contiguous_strides(&shape);
        Self { dtype, shape, strides, device: Device::default() }
    }

    /// The type of the real and imaginary parts, in a last dimension, where this is one of complex numbers.
    #[must_use]
    pub fn real_pairs(&self) -> Self {
        let mut made = self.clone();
        made.dtype = if self.dtype == Dtype::C128 { Dtype::F64 } else { Dtype::F32 };
        made.strides.iter_mut().for_each(|stride| *stride *= 2);
        made.shape.push(2);
        made.strides.push(1);
        made
    }

    /// How many dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// How many elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }

    /// Bytes of all elements (of a broadcast view: as if it were materialised).
    pub fn bytes(&self) -> Bytes {
        Bytes(self.elements() * self.dtype.bytes())
    }

    /// Whether it is laid out in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        self.shape.iter().zip(&self.strides).rev().all(|(size, stride)| {
            let fits = *size == 1 || *stride == expected;
            expected *= (*size).max(1);
            fits
        }) || self.elements() == 0
    }

    /// Whether it shows an element several times.
    pub fn repeats(&self) -> bool {
        self.shape.iter().zip(&self.strides).any(|(size, stride)| *size > 1 && *stride == 0)
    }

    /// Whether its elements lie side by side, in whatever order of its dimensions.
    pub fn is_dense(&self) -> bool {
        let mut expected = 1;
        memory_order(&self.strides).into_iter().rev().all(|dim| {
            let fits = self.shape[dim] == 1 || self.strides[dim] == expected;
            expected *= self.shape[dim].max(1);
            fits
        }) || self.elements() == 0
    }
}

impl fmt::Display for TensorType {
    /// Such as `f32[8, 4]`, with strides where they are not row-major and the device where it is not the CPU:
    /// `f32[8, 4]{1, 8} cuda:0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)?;
        if self.strides != contiguous_strides(&self.shape) {
            f.write_str("{")?;
            for (dim, stride) in self.strides.iter().enumerate() {
                write!(f, "{}{stride}", if dim == 0 { "" } else { ", " })?;
            }
            f.write_str("}")?;
        }
        if self.device != Device::default() {
            write!(f, " {}", self.device)?;
        }
        Ok(())
    }
}

/// Reads [`Dims`] through a `Vec`, which grows as entries arrive: `SmallVec` would reserve whatever length a message claims.
fn dims<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Dims, D::Error> {
    Vec::deserialize(deserializer).map(Dims::from_vec)
}

/// The dimensions from the outermost in memory to the innermost; among equal strides the earlier dimension is outer.
pub fn memory_order(strides: &[i64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..strides.len()).collect();
    order.sort_by_key(|dim| (-strides[*dim], *dim));
    order
}

/// The order of dimensions that undoes an order of them.
pub fn inverse(order: &[usize]) -> Vec<usize> {
    let mut back = vec![0; order.len()];
    for (position, dim) in order.iter().enumerate() {
        back[*dim] = position;
    }
    back
}

/// The strides of a row-major tensor of `shape`, as PyTorch computes them.
pub fn contiguous_strides(shape: &[i64]) -> Dims {
    let mut strides: Dims = SmallVec::from_elem(1, shape.len());
    for dim in (0..shape.len().saturating_sub(1)).rev() {
        strides[dim] = strides[dim + 1] * shape[dim + 1].max(1);
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_a_backend_may_have_is_a_kind_of_device() {
        for text in ["cpu", "meta", "cuda:0", "xpu:3", "privateuseone:1", "my_chip2:0"] {
            assert_eq!(text.parse::<Device>().unwrap().to_string(), text);
        }
        for text in ["", "cpu:1", "cuda", "Cuda:0", "7:0", "gpu:x", "a_name_of_more_than_23_letters:0"] {
            assert!(text.parse::<Device>().is_err(), "{text}");
        }
    }
}
