//! What a row of the operation table holds.

use base::Flops;

use crate::{Call, Factors, Seed, Strategy};

/// Everything that is known of one operation.
#[derive(Clone, Copy)]
pub struct Row {
    /// The operator's name, overload included.
    pub name: &'static str,
    /// How it may be sharded.
    pub rule: Rule,
    /// Through which operands a partial value may pass.
    pub linear: Linear,
    /// What must be localised beside the operands.
    pub sizes: Sizes,
    /// How much work it is.
    pub work: Work,
}

/// The argument that repeats a size and so must be localised.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sizes {
    /// There is none.
    None,
    /// The shape of the first result.
    Shape(usize),
    /// The first dimension of the first operand.
    Batch(usize),
}

/// How an operation may be sharded.
#[derive(Clone, Copy)]
pub enum Rule {
    /// Not at all.
    Fixed,
    /// As an einsum says, see [`crate::einsum`].
    Einsum(&'static str),
    /// As the iteration space of the call says.
    Factors(fn(&Call<'_>) -> Option<Factors>),
    /// As a function of the sharding that one operand or result is to have.
    Seeded(fn(&Call<'_>, Seed, u32) -> Option<Strategy>),
}

/// Through which operands a partial value may pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linear {
    /// Through none.
    No,
    /// Through all of them at once: addition, views.
    Jointly,
    /// Through all of them at once, and any reduction: the operation only puts elements together.
    Stacked,
    /// Through any one of these arguments, the others whole: products.
    InEach(&'static [usize]),
    /// Through these arguments at once, all of which must be tensors; the others whole.
    Together(&'static [usize]),
    /// Parts of a 2-norm through a 2-norm.
    Norms,
}

/// How much work an operation is.
#[derive(Clone, Copy)]
pub enum Work {
    /// None: the result is another look at the operand's memory.
    View,
    /// The bytes that it reads and writes.
    Traffic,
    /// Floating-point operations beside the traffic.
    Flops(fn(&Call<'_>) -> Flops),
}
