//! Time of operations and changes of placement, in integer picoseconds.

mod time;

pub use time::{Company, Machine, collective_time, direct_limit, local_time, operation_time, reshard_time};
