//! Rules of operations that an einsum cannot describe, by family.

#![allow(clippy::unnecessary_wraps, reason = "all rules have the signature that the table wants")]

pub mod attention;
pub mod collective;
pub mod index;
pub mod join;
pub mod matmul;
pub mod normalise;
pub mod optimizer;
pub mod pointwise;
pub mod recurrent;
pub mod reduce;
pub mod ring;
pub mod spatial;
pub mod views;
pub mod windows;
