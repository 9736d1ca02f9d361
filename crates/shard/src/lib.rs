//! From factor rules to a rank's graph.
//!
//! [`canonical`] rewrites a captured graph into operations that can be sharded; [`Space`] is all that each operation may do along one
//! mesh axis; [`partition`] turns a choice of one strategy for every operation into the graph that one rank runs, and [`partition_mesh`]
//! does so axis by axis.

mod canonical;
mod emit;
mod exam;
mod layout;
mod local;
mod partition;
mod realise;
mod reshard;
mod space;

pub use canonical::canonical;
pub use exam::{Exam, Question, exam};
pub use local::local_type;
pub use partition::{Assignment, partition, partition_mesh};
pub use space::{ClassId, KindId, Offer, Space};
