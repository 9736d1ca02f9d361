//! Time of operations and changes of placement, in integer picoseconds; memory of a rank's graph.

mod memory;
mod time;

pub use memory::{Peak, peak};
pub use time::{
    Company, GraphTime, collective_time, direct_limit, graph_time, operation_time, reshard_time, step,
};
