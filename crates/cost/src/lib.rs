//! Time of operations and changes of placement, in integer picoseconds.

mod collectives;
mod groups;
mod links;
mod machine;
mod micro_batches;
mod network;
mod operation;
mod ring;
mod time;
mod wires;

pub use collectives::{Company, collective_time, direct_limit, group_time};
pub use groups::Late;
pub use machine::{Machine, call_time, host_copy_time};
pub use network::{Group, sent};
pub use operation::{Operation, bound, compute_rate, main_dtype, shares};
pub use time::{adding_up_time, local_time, operation_time, reshard_time};
pub use wires::{Wires, wires};
