//! Kernels as loops: many operations of a graph as one pass over memory.
//!
//! A [`Kernel`] is a list of SSA values over one iteration domain, with operands in memory that are addressed by strides; a value may be a
//! sum, or another [`Reduction`], over the last dimension. It computes in
//! `f32`, reads and writes `f32`, `bf16` and `f16`, has a text form that is read back, and is [verified](verify) before anything runs: every
//! index is proved to lie within its operand. [`math`] defines each function once, for every way of running; the
//! [`Interpreter`] is the portable one. [`attention`] of short sequences is no such kernel, but loops of its own.
//! [`partition`] says which operations of a graph become kernels.

#![allow(
    clippy::inline_always,
    reason = "the loops around these functions must be compiled for the instruction set of their caller"
)]

pub mod attention;
mod builder;
mod element;
mod fuse;
mod interpret;
mod kernel;
pub mod math;
mod memory;
mod nest;
pub mod phases;
pub mod sums;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod tile;
mod verify;

pub use builder::Builder;
pub use element::{bf16_of, f32_of, f32_of_half, half_of};
pub use fuse::{
    Coverage, Group, Item, Left, Partition, Rounding, WhyNot, fused, partition, partition_unless,
};
pub use interpret::Interpreter;
pub use kernel::{Access, Binary, Element, Kernel, Op, Operand, OperandId, Reduction, Store, Unary, Value};
pub use memory::{Bounds, Lies, Memory};
pub use nest::Nest;
pub use verify::verify;
