//! The values that an operation's arguments can have, as plain data.

use serde::{Deserialize, Serialize};

base::define_id!(
    /// A tensor's place in [`Slots`](crate::Slots).
    Slot,
    "%"
);

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $serialized:literal, $text:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum $name {
            $(
                #[doc = concat!("`torch.", $text, "`")]
                #[serde(rename = $text)]
                $(#[$vmeta])*
                $variant,
            )*
        }

        impl $name {
            /// All values.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The value of a name, without `torch.`.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.name() == name)
            }

            /// PyTorch's name, without `torch.`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// The code in serialised graphs, which the proxy route takes.
            pub const fn serialized(self) -> i32 {
                match self { $(Self::$variant => $serialized,)* }
            }
        }
    };
}

codes! {
    /// A tensor element type.
    Dtype {
        Uint8 = 1, "uint8";
        Int8 = 2, "int8";
        Int16 = 3, "int16";
        Int32 = 4, "int32";
        Int64 = 5, "int64";
        Float16 = 6, "float16";
        Float32 = 7, "float32";
        Float64 = 8, "float64";
        Complex64 = 10, "complex64";
        Complex128 = 11, "complex128";
        Bool = 12, "bool";
        Bfloat16 = 13, "bfloat16";
        Uint16 = 28, "uint16";
        Float8E4m3fn = 29, "float8_e4m3fn";
        Float8E5m2 = 30, "float8_e5m2";
        Uint32 = 34, "uint32";
        Uint64 = 35, "uint64";
    }
}

codes! {
    /// How a tensor's elements are kept.
    Layout {
        Strided = 7, "strided";
        SparseCoo = 1, "sparse_coo";
    }
}

codes! {
    /// A preferred order of dimensions in memory.
    MemoryFormat {
        Contiguous = 1, "contiguous_format";
        ChannelsLast = 2, "channels_last";
        ChannelsLast3d = 3, "channels_last_3d";
        Preserve = 4, "preserve_format";
    }
}

impl Dtype {
    /// Whether it is a type of complex numbers.
    pub const fn is_complex(self) -> bool {
        matches!(self, Self::Complex64 | Self::Complex128)
    }

    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 | Self::Float8E4m3fn | Self::Float8E5m2 => 1,
            Self::Uint16 | Self::Int16 | Self::Float16 | Self::Bfloat16 => 2,
            Self::Uint32 | Self::Int32 | Self::Float32 => 4,
            Self::Uint64 | Self::Int64 | Self::Float64 | Self::Complex64 => 8,
            Self::Complex128 => 16,
        }
    }

    /// Whether it is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(self, Self::Float16 | Self::Float32 | Self::Float64 | Self::Bfloat16)
    }
}

/// A device: a kind such as `cpu` and an index, or none for the current one.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, `cuda`, ...
    pub kind: String,
    /// The number among the devices of its kind.
    pub index: Option<i32>,
}

impl Device {
    /// The processor, with the host's memory.
    pub fn host() -> Self {
        Self { kind: "cpu".to_owned(), index: None }
    }

    /// Whether it is the processor.
    pub fn is_host(&self) -> bool {
        self.kind == "cpu"
    }
}

/// An argument, whose type its place in the schema tells.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arg {
    /// `None`
    None,
    /// A tensor.
    Tensor(Slot),
    /// A list of tensors.
    Tensors(Vec<Slot>),
    /// A list of tensors with gaps.
    OptionalTensors(Vec<Option<Slot>>),
    /// An integer, also for a `Scalar` or a float.
    Int(i64),
    /// Integers.
    Ints(Vec<i64>),
    /// A float, also for a `Scalar`.
    Float(f64),
    /// Floats.
    Floats(Vec<f64>),
    /// A truth value, also for a `Scalar`.
    Bool(bool),
    /// Truth values.
    Bools(Vec<bool>),
    /// A string.
    Str(String),
    /// Strings.
    Strs(Vec<String>),
    /// An element type.
    Dtype(Dtype),
    /// A layout.
    Layout(Layout),
    /// A memory format.
    MemoryFormat(MemoryFormat),
    /// A device.
    Device(Device),
    /// Something that only Python can pass (a complex number, a generator, ...), by its printed form.
    Opaque(String),
}

impl Arg {
    /// The slots it reads, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        let (one, many, gaps): (Option<Slot>, &[Slot], &[Option<Slot>]) = match self {
            Self::Tensor(slot) => (Some(*slot), &[], &[]),
            Self::Tensors(slots) => (None, slots, &[]),
            Self::OptionalTensors(slots) => (None, &[], slots),
            _ => (None, &[], &[]),
        };
        one.into_iter().chain(many.iter().copied()).chain(gaps.iter().flatten().copied())
    }

    /// The same argument with every slot replaced.
    #[must_use]
    pub fn map_slots(self, mut f: impl FnMut(Slot) -> Slot) -> Self {
        match self {
            Self::Tensor(slot) => Self::Tensor(f(slot)),
            Self::Tensors(slots) => Self::Tensors(slots.into_iter().map(f).collect()),
            Self::OptionalTensors(slots) => {
                Self::OptionalTensors(slots.into_iter().map(|slot| slot.map(&mut f)).collect())
            }
            other => other,
        }
    }
}

/// A number that stands where a tensor is expected.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A float.
    Float(f64),
    /// A truth value.
    Bool(bool),
}

/// Where one return of an operation goes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Nowhere: an unused tensor, or a return that is no tensor.
    Ignored,
    /// A tensor's slot.
    Tensor(Slot),
    /// The slots of a list of tensors.
    Tensors(Vec<Option<Slot>>),
}

impl Output {
    /// The slots it fills, in order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        let (one, many): (Option<Slot>, &[Option<Slot>]) = match self {
            Self::Ignored => (None, &[]),
            Self::Tensor(slot) => (Some(*slot), &[]),
            Self::Tensors(slots) => (None, slots),
        };
        one.into_iter().chain(many.iter().flatten().copied())
    }
}
