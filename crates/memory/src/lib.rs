//! Lifetimes of memory, in one place: the executor runs by them, and the predicted peak is read off them.
//!
//! [`Steps`] is a program as far as memory goes: what each step reads and makes, and whose memory that is. From it follow, in this
//! order, which steps write [in place](in_place), which small results lie in [buffers](buffers) that stay from step to step, which results
//! are the [same at every step](once), and how much is [alive](curve) after each step. [`peak`] and [`held`] say so of a graph.

mod alive;
mod buffers;
mod graph;
mod inplace;
mod lifetimes;
mod once;
mod peak;
mod reserved;
mod steps;

pub use alive::{Curve, Span, curve};
pub use buffers::{BUFFERS, Buffers, buffers};
pub use graph::steps_of;
pub use inplace::in_place;
pub use lifetimes::Lifetimes;
pub use once::{Once, once};
pub use peak::{ByCategory, Category, Held, Peak, at_peak, bytes_held, held, peak};
pub use reserved::reserved;
pub use steps::{Effect, Info, Step, Steps};
