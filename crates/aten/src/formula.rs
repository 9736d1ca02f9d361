//! What operations compute, as kernels do it.

use ir::Dtype;

/// What each element of a result is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Formula {
    /// An expression of the arguments by their names, as `loops` evaluates it: numbers, `+ - * /`, functions, and definitions before it.
    pub text: &'static str,
    /// Whether PyTorch takes longer for it than memory does, so that it is worth a kernel of its own.
    pub slow: bool,
    /// Whether PyTorch's kernels of accelerators read rows twice, or have few threads for them.
    pub slow_rows: bool,
    /// How a kernel computes it with the very bits of PyTorch's kernel on processors, if it can.
    pub eager: Option<Eager>,
}

impl Formula {
    /// An expression that PyTorch is as fast at as memory is.
    pub(crate) const fn of(text: &'static str) -> Self {
        Self { text, slow: false, slow_rows: false, eager: None }
    }
}

/// What each element of a result is, rounded as PyTorch's kernels on processors with AVX2 round it: every number that is not NaN has their bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Eager {
    /// The expression, in which `rounded(x)` is `x` in the type of the result, and `factor(x)` a number that in 16 bits must be 1 or -1: PyTorch rounds
    /// products with others at the end of a tensor, but not before.
    pub text: &'static str,
    /// The only type of the result for which that holds, unless it does for all. Functions with another last bit in `f32` have the bits of `bf16`, as
    /// trying all operands shows; what has other steps in `bf16`, or others at the end of a tensor than before, has those of `f32`.
    pub only: Option<Dtype>,
}
