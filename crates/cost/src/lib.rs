//! Time of operations and changes of placement, in integer picoseconds.

mod time;

pub use time::{
    Company, GraphTime, Machine, collective_time, direct_limit, graph_time, local_time, operation_time,
    reshard_time,
};
