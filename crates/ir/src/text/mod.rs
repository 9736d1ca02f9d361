//! The text form of a graph: what `.text()` shows, golden tests hold and diffs compare.
//!
//! ```text
//! unisono graph 2
//!
//! op aten::mm(Tensor self, Tensor mat2) -> Tensor
//!
//! input v0: f32[8, 4] = parameter "params.w"
//! input v1: f32[2, 8] = batch "batch.0"
//!
//! v2: f32[2, 4] = aten::mm(v1, v0) @p0 m0
//!
//! return v2
//!
//! place p0 "train.py":12:5
//! module m0 "blocks.0"
//! ```
//!
//! One statement a line; `#` begins a comment. Values are numbered inputs first, then in program order. Behind `@` stand a node's
//! place, module and label. A line `part backward` begins a part of the program; before the first such line it is `forward`. An empty list says of what: `values[]`,
//! `floats[]`, `bools[]`, `strs[]`, and `[]` for integers; an absent argument is `none`, an undefined return `_`.

mod cursor;
mod literal;
mod parse;
mod print;

/// The version in the header line.
pub const TEXT_VERSION: u32 = 2;
/// The largest text that is read, in bytes.
pub const MAX_TEXT_BYTES: usize = 512 << 20;
