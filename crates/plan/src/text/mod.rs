//! What a plan decides, as lines that a person can read, compare and edit: what follows from the rest is left out, and what is alike in many
//! layers is one line.

mod decode;
mod encode;
mod follow;
pub mod holders;
pub mod inputs;
mod names;
pub mod patterns;
mod strategies;

pub use decode::decoded;
pub use encode::{Decisions, encoded};
