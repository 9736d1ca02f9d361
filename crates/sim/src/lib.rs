//! The simulator: from ranks' graphs after the passes to a predicted timeline, and to what is read off it.
//!
//! A rank has a stream for its operations, which run in program order, and one for the collectives of each group, which run in the
//! order in which they are started. A collective begins when all ranks of its group have started it and its stream is free; where a cluster
//! says how late ranks come, the last one has started it later than those that are simulated, by a part of the time since they last met;
//! `wait_tensor` stops the rank until it is done. While a collective and an operation of one rank run beside each other, both are slower
//! by the cluster's factor. While collectives of several groups of a rank want more of a wire than there is, all that use it are slower by as
//! much. Timelines are of programs; what the host does around them is added to them as a whole. Times are integer picoseconds inside; what comes out is in nanoseconds.
//!
//! [`predict`] gives the figures alone, for a search that asks often; [`simulate`] the whole timeline. Both come from the same run.

mod prices;
mod program;
mod record;
mod streams;

use base::{Nanos, Result};
use ir::Graph;
use memory::Peak;
use timeline::{Timeline, step::Figures};

pub use cost::{Late, Machine, Wires};
pub use prices::work_of;
pub use program::{Group, Program, Programs, Step};
pub use record::{figures, observe};
pub use streams::{Factors, Interval, Observer, Stuck, run};

/// What one rank is expected to take.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Prediction {
    /// Time of its program.
    pub time: Figures,
    /// Time on the host around it, in which the device does nothing.
    pub call: Nanos,
    /// Memory.
    pub memory: Peak,
}

/// What a rank takes that stands for all: the other ranks start each collective when it does.
pub fn predict(graph: &Graph, machine: Machine<'_>) -> Result<Prediction> {
    let programs = Programs::new(&[graph], machine)?;
    let time = figures(&programs, Factors::of(machine.cluster))?;
    Ok(prediction(graph, time.into_iter().next().unwrap_or_default(), machine))
}

/// What each pipeline stage takes, from the graph of one rank of each: until its last operation, and what it waits for the others.
pub fn predict_stages(graphs: &[&Graph], machine: Machine<'_>) -> Result<Vec<Prediction>> {
    let programs = Programs::of_stages(graphs, machine)?;
    let times = figures(&programs, Factors::of(machine.cluster))?;
    Ok(times.into_iter().zip(graphs).map(|(time, graph)| prediction(graph, time, machine)).collect())
}

fn prediction(graph: &Graph, time: Figures, machine: Machine<'_>) -> Prediction {
    Prediction { time, call: cost::call_time(machine.cluster, graph), memory: memory::peak(graph) }
}

/// The timeline of one rank of each pipeline stage.
pub fn simulate_stages(graphs: &[&Graph], machine: Machine<'_>) -> Result<Timeline> {
    let programs = Programs::of_stages(graphs, machine)?;
    record::timeline(graphs, 0, &programs, Factors::of(machine.cluster))
}

/// The timeline of a step: of all ranks of the mesh, in their order, or of one that stands for all.
pub fn simulate(graphs: &[&Graph], machine: Machine<'_>) -> Result<Timeline> {
    let programs = Programs::new(graphs, machine)?;
    record::timeline(graphs, 0, &programs, Factors::of(machine.cluster))
}

/// The timeline of `rank`, which stands for all.
pub fn simulate_one(graph: &Graph, rank: u32, machine: Machine<'_>) -> Result<Timeline> {
    let programs = Programs::new(&[graph], machine)?;
    record::timeline(&[graph], rank, &programs, Factors::of(machine.cluster))
}
