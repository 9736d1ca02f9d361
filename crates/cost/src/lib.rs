//! Time of operations and changes of placement, in integer picoseconds.

mod time;

pub use time::{
    Company, GraphTime, collective_time, direct_limit, graph_time, operation_time, reshard_time, step,
};
