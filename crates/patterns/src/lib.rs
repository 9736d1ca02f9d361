//! Patterns: a few operations of a program as data, and where they stand in it.
//!
//! A [`Pattern`] is a text of operations with names for what they read from elsewhere. [`find`] looks for patterns in whatever is a
//! [`Program`]: a graph of PyTorch's operations, the values of a kernel. What becomes of a [`Match`] is the caller's.

mod matching;
mod pattern;
mod program;
mod text;

pub use matching::{Match, find};
pub use pattern::{Pattern, Step, Term};
pub use program::{Argument, Program};
