//! Which operations of a graph become kernels: [`partition`] makes groups of them, [`lowerings`] has what each operation is as loops.

mod convex;
mod groups;
mod lowerings;
mod node;
mod partition;
mod schedule;

pub use partition::{Group, Item, Left, Partition, partition};
