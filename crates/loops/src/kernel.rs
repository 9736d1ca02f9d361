//! The loop IR: values over an iteration domain, operands with affine index maps.

use base::define_id;
use serde::{Deserialize, Serialize};

define_id!(/** A value of a kernel: one number for each point of the domain, or one for each row of it. */ Value, "%");
define_id!(/** A tensor in memory that a kernel reads or writes. */ OperandId, "a");

/// The element type of an operand. Values are always `f32`; what is no floating-point number is only read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Element {
    /// `torch.float32`
    F32,
    /// `torch.bfloat16`
    Bf16,
    /// `torch.float16`
    F16,
    /// `torch.bool`, read as 0 and 1.
    Bool,
    /// `torch.int64`, read as the nearest number; one for each row.
    I64,
}

impl Element {
    /// All element types, with their names in the text form.
    pub const NAMES: [(Self, &str); 5] = [
        (Self::F32, "f32"),
        (Self::Bf16, "bf16"),
        (Self::F16, "f16"),
        (Self::Bool, "bool"),
        (Self::I64, "i64"),
    ];

    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Bool => 1,
            Self::I64 => 8,
        }
    }

    /// Whether kernels write it.
    pub const fn is_written(self) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::F16)
    }
}

/// What a kernel does with an operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Only loads name it.
    Read,
    /// Only stores name it.
    Write,
    /// Only stores name it, and what the rows store there is added up.
    Add,
}

impl Access {
    /// All, with their names in the text form.
    pub const NAMES: [(Self, &str); 3] = [(Self::Read, "read"), (Self::Write, "write"), (Self::Add, "add")];
}

/// A tensor in memory, addressed from its first element by a stride for each dimension of the domain: 0 where it is broadcast.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Operand {
    /// What is done with it.
    pub access: Access,
    /// Its element type.
    pub element: Element,
    /// Elements between neighbours along each dimension of the domain.
    pub strides: Vec<i64>,
}

/// A function of one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unary {
    /// The negative.
    Neg,
    /// The absolute value.
    Abs,
    /// The square root.
    Sqrt,
    /// The exponential.
    Exp,
    /// The natural logarithm.
    Log,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`
    Sigmoid,
    /// The error function.
    Erf,
    /// Rounded to the nearest `bf16`, ties to even.
    RoundBf16,
    /// Rounded to the nearest `f16`, ties to even.
    RoundF16,
}

impl Unary {
    /// All functions, with their names in the text form.
    pub const NAMES: [(Self, &str); 10] = [
        (Self::Neg, "neg"),
        (Self::Abs, "abs"),
        (Self::Sqrt, "sqrt"),
        (Self::Exp, "exp"),
        (Self::Log, "log"),
        (Self::Tanh, "tanh"),
        (Self::Sigmoid, "sigmoid"),
        (Self::Erf, "erf"),
        (Self::RoundBf16, "round_bf16"),
        (Self::RoundF16, "round_f16"),
    ];
}

/// A function of two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binary {
    /// The sum.
    Add,
    /// The difference.
    Sub,
    /// The product.
    Mul,
    /// The quotient.
    Div,
    /// The larger one; NaN where one is NaN.
    Max,
    /// The smaller one; NaN where one is NaN.
    Min,
    /// A mask: whether the first is less.
    Less,
    /// A mask: whether the first is less or equal.
    LessEqual,
    /// A mask: whether both are equal.
    Equal,
}

impl Binary {
    /// All functions, with their names in the text form.
    pub const NAMES: [(Self, &str); 9] = [
        (Self::Add, "add"),
        (Self::Sub, "sub"),
        (Self::Mul, "mul"),
        (Self::Div, "div"),
        (Self::Max, "max"),
        (Self::Min, "min"),
        (Self::Less, "lt"),
        (Self::LessEqual, "le"),
        (Self::Equal, "eq"),
    ];

    /// Whether it gives a mask, which only `select` takes.
    pub const fn is_mask(self) -> bool {
        matches!(self, Self::Less | Self::LessEqual | Self::Equal)
    }

    /// Whether its operands may change places: then equal values are found in either order.
    pub(crate) const fn commutes(self) -> bool {
        matches!(self, Self::Add | Self::Mul | Self::Equal)
    }
}

/// What becomes of the points of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest one; NaN where one is NaN.
    Max,
    /// The smallest one; NaN where one is NaN.
    Min,
}

impl Reduction {
    /// All, with their names in the text form.
    pub const NAMES: [(Self, &str); 3] =
        [(Self::Sum, "row_sum"), (Self::Max, "row_max"), (Self::Min, "row_min")];

    /// The result for a row without points.
    pub const fn start(self) -> f32 {
        match self {
            Self::Sum => 0.0,
            Self::Max => f32::NEG_INFINITY,
            Self::Min => f32::INFINITY,
        }
    }

    /// What joins two results.
    pub const fn binary(self) -> Binary {
        match self {
            Self::Sum => Binary::Add,
            Self::Max => Binary::Max,
            Self::Min => Binary::Min,
        }
    }
}

/// How a value comes to be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// The element of an operand that lies so many elements behind that of the point.
    Load(OperandId, u32),
    /// The position of the point in its row.
    Column,
    /// A number, by its bits.
    Const(u32),
    /// A function of one value.
    Unary(Unary, Value),
    /// A function of two values.
    Binary(Binary, Value, Value),
    /// `a * b + c`, rounded once.
    Fma(Value, Value, Value),
    /// The second value where the mask holds, else the third.
    Select(Value, Value, Value),
    /// One number for each row of the domain, which is all of its last dimension.
    Reduce(Reduction, Value),
}

impl Op {
    /// The values that it takes.
    pub fn operands(&self) -> impl Iterator<Item = Value> + use<> {
        let three = match *self {
            Self::Load(..) | Self::Column | Self::Const(_) => [None; 3],
            Self::Unary(_, a) | Self::Reduce(_, a) => [Some(a), None, None],
            Self::Binary(_, a, b) => [Some(a), Some(b), None],
            Self::Fma(a, b, c) | Self::Select(a, b, c) => [Some(a), Some(b), Some(c)],
        };
        three.into_iter().flatten()
    }

    /// The same with other values.
    fn map(self, value: impl Fn(Value) -> Value) -> Self {
        match self {
            Self::Load(..) | Self::Column | Self::Const(_) => self,
            Self::Unary(unary, a) => Self::Unary(unary, value(a)),
            Self::Reduce(reduction, a) => Self::Reduce(reduction, value(a)),
            Self::Binary(binary, a, b) => Self::Binary(binary, value(a), value(b)),
            Self::Fma(a, b, c) => Self::Fma(value(a), value(b), value(c)),
            Self::Select(a, b, c) => Self::Select(value(a), value(b), value(c)),
        }
    }

    /// Whether it gives a mask.
    pub const fn is_mask(&self) -> bool {
        matches!(self, Self::Binary(binary, ..) if binary.is_mask())
    }
}

/// Writes a value to an operand, so many elements behind that of the point.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Store {
    /// Where to.
    pub operand: OperandId,
    /// How many elements behind that of the point.
    pub offset: u32,
    /// What.
    pub value: Value,
}

/// A kernel. At each point of the domain all loads come before all stores, and at each row all reductions before those, so that a written
/// operand may lie exactly where a read one does.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Kernel {
    /// The sizes of the iteration domain, the outermost dimension first.
    pub domain: Vec<i64>,
    /// Tensors in memory.
    pub operands: Vec<Operand>,
    /// Values, definitions before uses.
    pub body: Vec<Op>,
    /// What is written.
    pub stores: Vec<Store>,
}

impl Kernel {
    /// How many points the domain has.
    pub fn points(&self) -> u64 {
        self.domain.iter().map(|size| *size as u64).product()
    }

    /// How a value comes to be.
    pub fn op(&self, value: Value) -> Op {
        self.body[value.0 as usize]
    }

    /// Whether the last dimension of the domain is a row: something is reduced along it, or written once for all of it.
    pub fn by_rows(&self) -> bool {
        let once = |operand: &Operand| {
            operand.access == Access::Add || operand.access == Access::Write && self.is_of_rows(operand)
        };
        self.body.iter().any(|op| matches!(op, Op::Reduce(..) | Op::Column)) || self.operands.iter().any(once)
    }

    /// Whether an operand has one element for each row, which several points share.
    pub fn is_of_rows(&self, operand: &Operand) -> bool {
        operand.strides.last() == Some(&0) && self.domain.last() != Some(&1)
    }

    /// How far behind the element of a point its loads and stores name one of an operand, each distance once and the least first.
    pub fn offsets(&self, operand: OperandId) -> Vec<u32> {
        let loads = self.body.iter().filter_map(|op| match op {
            Op::Load(loaded, offset) if *loaded == operand => Some(*offset),
            _ => None,
        });
        let stores = self.stores.iter().filter(|store| store.operand == operand).map(|store| store.offset);
        let mut offsets: Vec<u32> = loads.chain(stores).collect();
        offsets.sort_unstable();
        offsets.dedup();
        offsets
    }

    /// The greatest of these distances, 0 where there are none.
    pub fn last_offset(&self, operand: OperandId) -> u32 {
        let loads = self.body.iter().filter_map(|op| match op {
            Op::Load(loaded, offset) if *loaded == operand => Some(*offset),
            _ => None,
        });
        let stores = self.stores.iter().filter(|store| store.operand == operand).map(|store| store.offset);
        loads.chain(stores).max().unwrap_or(0)
    }

    /// Whether a written operand may lie exactly where a read one does: each point then reads, of what is written, only what it writes itself.
    pub fn may_lie_alike(&self, written: OperandId, read: OperandId) -> bool {
        let (to, from) = (&self.operands[written.0 as usize], &self.operands[read.0 as usize]);
        let alike = to.element == from.element && to.strides == from.strides;
        let is_stored =
            |offset| self.stores.iter().any(|store| store.operand == written && store.offset == offset);
        alike
            && (to.access, from.access) == (Access::Write, Access::Read)
            && self.body.iter().all(|op| match op {
                Op::Load(loaded, offset) if *loaded == read => is_stored(*offset),
                _ => true,
            })
    }

    pub(crate) fn without_dead(mut self) -> Self {
        let mut now: Vec<Option<Value>> = vec![None; self.body.len()];
        for store in &self.stores {
            now[store.value.0 as usize] = Some(store.value);
        }
        for index in (0..self.body.len()).rev() {
            if now[index].is_some() {
                self.body[index].operands().for_each(|value| now[value.0 as usize] = Some(value));
            }
        }
        let mut kept = Vec::new();
        for (index, op) in self.body.iter().enumerate() {
            if now[index].is_some() {
                now[index] = Some(Value(kept.len() as u32));
                kept.push(op.map(|value| now[value.0 as usize].unwrap_or(value)));
            }
        }
        for store in &mut self.stores {
            store.value = now[store.value.0 as usize].unwrap_or(store.value);
        }
        Self { body: kept, ..self }
    }

    /// The same kernel over an operand that it reads and that lies differently: `moved` has the new distance for each that elements had.
    /// None where it has none for one.
    #[must_use]
    pub fn with_moved(mut self, read: OperandId, moved: impl Fn(i64) -> Option<i64>) -> Option<Self> {
        for stride in &mut self.operands[read.0 as usize].strides {
            *stride = moved(*stride)?;
        }
        for op in &mut self.body {
            if let Op::Load(operand, offset) = op
                && *operand == read
            {
                *offset = u32::try_from(moved(i64::from(*offset))?).ok()?;
            }
        }
        Some(self)
    }
}
