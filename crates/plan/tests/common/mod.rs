//! What several tests of the planner share.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use ir::Graph;
use sim::{Machine, Programs, Step};

/// What the operations and collectives of a rank's graph take one after the other, in picoseconds.
pub fn total_time(graph: &Graph, machine: Machine<'_>) -> i64 {
    let programs = Programs::new(&[graph], machine).unwrap();
    let time = |step: &Step| match step {
        Step::Operation(time, _) | Step::Start { time, .. } => *time,
        Step::Wait(_) | Step::WaitCopy(_) => 0,
    };
    programs.ranks[0].steps.iter().map(time).sum()
}
