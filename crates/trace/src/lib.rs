//! Analyses of timelines, each one function from [`Frames`] to a record.
//!
//! Two modes: [`Mode::Exact`] computes in nanoseconds and knows today's kernel names; [`Mode::Hta`] gives the numbers of
//! Holistic Trace Analysis 0.5.0. Definitions and sources stand in `docs/trace/`.

pub mod align;
pub mod annotation;
mod answers;
pub mod aten;
pub mod autograd;
pub mod bandwidth;
pub mod breakdown;
pub mod causal;
pub mod collective;
pub mod counters;
pub mod critical;
pub mod dataflow;
pub mod diff;
pub mod exposed;
pub mod findings;
mod frame;
pub mod hang;
pub mod idle;
pub mod interval;
mod kind;
pub mod launch;
pub mod memory;
pub mod odd;
pub mod overlay;
pub mod prediction;
pub mod python;
pub mod query;
pub mod queue;
pub mod sequences;
pub mod source;
pub mod stack;
mod stacks;
pub mod stats;
mod steps;
pub mod straggler;
pub mod summary;
pub mod waiting;

use serde::Serialize;

pub use frame::{Frame, Frames, Iteration, Link, Selection};
pub use kind::{Kind, Kinds, is_communication};
pub use steps::{Cursor, Step, Steps};

/// By which definitions to analyse.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Integer nanoseconds, all kernel names, nothing dropped.
    #[default]
    Exact,
    /// The numbers of Holistic Trace Analysis 0.5.0, with its rounding, its names and its dropped last step.
    Hta,
}
