//! Which operations of a graph become kernels: [`partition`] makes groups of them, `aten` says what each operation computes.

mod convex;
mod describe;
mod formula;
mod frame;
mod groups;
mod node;
mod partition;
mod schedule;
mod views;

pub use partition::{Group, Item, Left, Partition, partition, partition_if};
