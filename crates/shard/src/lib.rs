//! From factor rules to a rank's graph.
//!
//! [`canonical`] rewrites a captured graph into operations that can be sharded; [`Space`] is all that each operation may do along one
//! mesh axis; [`partition`] turns a choice of one strategy for every operation into the graph that one rank runs, [`divided`] does so along
//! an axis of micro-batches too, and [`partition_mesh`] axis by axis.

mod canonical;
mod draws;
mod emit;
mod exam;
mod follower;
mod groups;
mod layout;
mod local;
mod loops;
mod operation;
mod partition;
mod realise;
mod reshard;
mod ring;
mod rows;
mod samples;
mod space;
pub mod stages;
mod uneven;
mod unroll;
mod users;

pub use canonical::canonical;
pub use exam::{Drawn, Exam, Question, drawn, exam};
pub use local::local_type;
pub use partition::{Assignment, Gathers, partition, partition_counted};
pub use space::{ClassId, KindId, Offered, Space};
pub use unroll::{divided, first_iterations, partition_mesh, partition_mesh_in_part};
