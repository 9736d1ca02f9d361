//! Running kernels: machine code where the processor and the host allow it, the interpreter elsewhere. Both give the same bits.
//!
//! A kernel becomes, in this order, blocks ([`blocks`]) of simple operations over vectors ([`steps`]), the same with registers ([`registers`])
//! and machine code ([`emit`]) in pages that are never writable and executable at once ([`pages`]).
//! Random numbers ([`draw`]) and attention of short sequences ([`attention`]) are compiled ahead, for each vector size.
#![allow(unsafe_code, reason = "machine code is made and called here")]

mod attention;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod call;
mod draw;
#[cfg(target_arch = "x86_64")]
mod emit;
#[cfg(target_arch = "x86_64")]
mod isa;
mod module;
#[cfg(target_arch = "x86_64")]
mod pages;
#[cfg(target_arch = "x86_64")]
mod registers;
#[cfg(target_arch = "x86_64")]
mod steps;
mod tier;

pub use attention::{attention, attention_backward};
pub use draw::draw;
pub use module::Module;
pub use tier::Tier;
