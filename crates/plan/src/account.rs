//! Where the time and memory of a plan go, as the simulator sees what ranks run: by module, by collective with what it moves and why, and what
//! is alive at the peak.

mod causes;
mod collectives;
mod modules;
mod reserved;
mod times;

use base::{Bytes, Result};
use cost::Machine;
use ir::RankGraph;
use serde::Serialize;

pub use collectives::{CauseTime, CollectiveTime};
pub use modules::{HeldByModule, ModuleTime};
pub use reserved::Reserved;

pub use causes::{changes, meant};
pub use times::{Times, busiest, millis, timed};

/// Where the time of a step goes, most first, and the memory of its worst moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Account {
    /// Operations.
    pub modules: Vec<ModuleTime>,
    /// Collectives.
    pub collectives: Vec<CollectiveTime>,
    /// Waiting in which none of the collectives that are waited for runs, in milliseconds: the last rank has not come, or another pipeline stage has not sent, yet.
    pub idle_ms: f64,
    /// What PyTorch's caching allocator holds for all that; none on a processor.
    pub reserved: Option<Reserved>,
    /// What is alive at the peak beside state, batch and what is kept, by the module whose operation makes it.
    pub held: Vec<HeldByModule>,
}

/// The account of what ranks run: one that stands for all, or one of each pipeline stage, of which the times are those of the one that is
/// busy longest, and the memory that of the one that needs most.
pub fn account(programs: &[&RankGraph], machine: Machine<'_>, limit: Option<Bytes>) -> Result<Account> {
    let times = timed(programs, machine)?;
    let peak = |graph: &&&RankGraph| memory::peak(graph).within(limit).0.total();
    let largest = programs.iter().rev().max_by_key(peak);
    let Some((number, times)) = busiest(&times) else { return Ok(Account::default()) };
    let graph = programs[number];
    Ok(Account {
        modules: modules::by_module(graph, times),
        collectives: collectives::by_collective(graph, times),
        idle_ms: millis(times.idle),
        reserved: largest.and_then(|graph| reserved::reserved(graph)),
        held: largest.map_or_else(Vec::new, |graph| modules::held_by_module(graph, limit)),
    })
}
