//! Time of operations and changes of placement, in integer picoseconds.

mod collectives;
mod groups;
mod links;
mod machine;
mod micro_batches;
mod network;
mod ring;
mod time;
mod wires;

pub use collectives::{Company, collective_time, direct_limit};
pub use machine::{Machine, host_copy_time};
pub use time::{amounts, compute_rate, local_time, main_dtype, operation_time, reshard_time, shares};
pub use wires::{Wires, wires};
