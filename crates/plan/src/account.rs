//! Where the time and memory of a plan go, as the simulator sees what ranks run: by module, by collective with what it moves and why, and what
//! is alive at the peak.

mod causes;
mod collectives;
mod grown;
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

use crate::beyond::{Beyond, Known};
use grown::{all_beyond, millis_beyond};

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

/// Of rounds of micro-batches.
impl Beyond for Account {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        Self {
            modules: all_beyond(self.modules, &shorter.modules, rounds),
            collectives: all_beyond(self.collectives, &shorter.collectives, rounds),
            idle_ms: millis_beyond(self.idle_ms, shorter.idle_ms, rounds),
            ..self
        }
    }
}

/// The account of what ranks run: one that stands for all, or one of each pipeline stage, of which the times are those of the one that is
/// busy longest, and the memory that of the one that needs most.
pub fn account(
    programs: &Known<Vec<RankGraph>>,
    machine: Machine<'_>,
    limit: Option<Bytes>,
) -> Result<Account> {
    let times = programs.map(|programs| timed(&programs.iter().collect::<Vec<_>>(), machine))?;
    let longer = &programs.longer;
    let peak = |number: &usize| memory::peak(&longer[*number]).within(limit).0.total();
    let Some(largest) = (0..longer.len()).rev().max_by_key(peak) else { return Ok(Account::default()) };
    let busiest = busiest(&times.longer).map_or(0, |(number, _)| number);
    let of = |programs: &[RankGraph], times: &[Times]| {
        let (graph, times, largest) = (&programs[busiest], &times[busiest], &programs[largest]);
        Account {
            modules: modules::by_module(graph, times),
            collectives: collectives::by_collective(graph, times),
            idle_ms: millis(times.idle),
            reserved: reserved::reserved(largest),
            held: modules::held_by_module(largest, limit),
        }
    };
    Ok(programs.with(&times, |programs, times| of(programs, times)).whole())
}
