//! Which operations of a graph become kernels: [`partition`] makes groups of them, `aten` says what each operation computes.

mod alone;
mod constants;
mod convex;
mod describe;
mod eager;
mod formula;
mod frame;
mod fused;
mod groups;
mod node;
mod partition;
mod schedule;
mod views;

pub use eager::Rounding;
pub use fused::fused;
pub use partition::{Coverage, Group, Item, Left, Partition, WhyNot, partition, partition_unless};
