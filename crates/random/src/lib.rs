//! Counter-based random numbers: each follows from a key and its position alone, so that any part of a tensor can be drawn by itself.
//!
//! Words come from Philox4x32-10 (Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*, SC 2011). Everything else is `f32` arithmetic in steps
//! that are rounded one by one, so that all processors give the same bits.

#![allow(clippy::inline_always, reason = "what a caller compiles for longer vectors is inlined into it")]

mod distribution;
mod fill;
mod philox;

pub use distribution::{Distribution, per_log, threshold};
pub use fill::{Out, fill};
pub use philox::{GROUP, Stream, philox};
