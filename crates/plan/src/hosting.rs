//! What of the stages of a pipeline is on the host: all that is asked for, or what the memory limit asks of each stage by itself.
//!
//! The update of a stage runs once, at the end of its program, so its state comes and goes as that of any other rank. What forward leaves of a
//! micro-batch is on the host while others run, and the choice is the same for all micro-batches of a chunk. A stage's memory is that of its own program:
//! what each needs is found by itself, what all of it takes is simulated together.

use base::{Bytes, Result};
use cost::Machine;
use ir::{Graph, RankGraph};
use passes::{Pieces, Stays};

use crate::{
    axis::PICOS_PER_NANO,
    choices::Choice,
    forward::Forward,
    host_state::States,
    plan::Prediction,
    recompute::{Corrections, corrected},
    run::{Offloading, Request},
    stages::{OnHost, StagePrediction},
    stays::Ways,
};

/// How often more state is put on the host while the limit is not kept.
const TRIES: usize = 3;

/// What goes to the host where a stage holds too much.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Going {
    /// As much state as the limit asks for.
    State,
    /// As much of what forward leaves.
    Activations,
    /// All state, and then as much of what forward leaves.
    Both,
}

/// The programs of stages, settled, of which something may be on the host.
pub struct Hosting<'a> {
    request: &'a Request<'a>,
    machine: Machine<'a>,
    settled: &'a [RankGraph],
}

impl<'a> Hosting<'a> {
    /// Of settled programs.
    pub const fn new(request: &'a Request<'a>, machine: Machine<'a>, settled: &'a [RankGraph]) -> Self {
        Self { request, machine, settled }
    }

    /// What is asked for to be on the host of each stage, whatever it holds.
    pub fn asked(&self) -> Vec<OnHost> {
        let Some(offload) = self.request.offload.filter(|offload| offload.of_state()) else {
            return Vec::new();
        };
        let of_stage = |graph: &RankGraph| {
            let (pieces, taken) = States::of(graph).pieces(u64::MAX, self.room());
            let all = || self.forward(graph, taken).full(Ways::HOST);
            let all = if offload.of_activations() { all() } else { None };
            OnHost { stays: all.map_or_else(Stays::default, |choice| stays(graph, &choice)), pieces }
        };
        self.settled.iter().map(of_stage).collect()
    }

    /// What may go to the host where the limit asks for it, and is not asked for anyway.
    pub fn ways(&self) -> &'static [Going] {
        let has_link = self.machine.cluster.device.host_bandwidth.is_some();
        match self.request.offload {
            _ if self.request.memory_limit.is_none() => &[],
            None if has_link => &[Going::State, Going::Activations, Going::Both],
            Some(Offloading::Activations) => &[Going::Activations],
            None | Some(Offloading::None | Offloading::Optimizer | Offloading::Full) => &[],
        }
    }

    /// What goes to the host of each stage so that it keeps the memory limit, or comes as near as it can; none where nothing does.
    pub fn within(&self, passes: &passes::Settings, going: Going) -> Result<Option<Vec<OnHost>>> {
        let Some(limit) = self.request.memory_limit else { return Ok(None) };
        let of_stage = |graph: &RankGraph| OfStage { hosting: self, graph, passes, limit }.within(going);
        let all = self.settled.iter().map(of_stage).collect::<Result<Vec<_>>>()?;
        Ok(Some(all).filter(|all| !all.iter().all(OnHost::is_nothing)))
    }

    /// The same where pieces of state come before the update, as far as there is room for them; none where none can.
    pub fn ahead(
        &self,
        passes: &passes::Settings,
        on_host: &[OnHost],
        predicted: &[StagePrediction],
    ) -> Result<Option<Vec<OnHost>>> {
        if on_host.iter().all(|one| one.pieces.is_empty()) {
            return Ok(None);
        }
        let is_asked = self.request.offload.is_some_and(Offloading::of_state);
        let of_stage = |((graph, one), stage): ((&RankGraph, &OnHost), &StagePrediction)| {
            if one.pieces.is_empty() {
                return Ok(one.clone());
            }
            let program = passes::run_unverified(&passes::scheduled(&one.settings(passes)), graph)?;
            let peak = stage.peak_bytes;
            // Where it is there because that was asked for, no more is held for its time.
            let most = self.request.memory_limit.filter(|_| !is_asked).unwrap_or(peak);
            let states = States::of(graph);
            let pieces = states.ahead((&program, graph), &one.pieces, (peak, most), self.machine);
            Ok(OnHost { pieces, stays: one.stays.clone() })
        };
        let all = self.settled.iter().zip(on_host).zip(predicted).map(of_stage);
        let all = all.collect::<Result<Vec<_>>>()?;
        Ok(Some(all).filter(|all| all != on_host))
    }

    /// The memory of a rank's host.
    fn room(&self) -> u64 {
        self.machine.cluster.device.host_memory_bytes.unwrap_or(u64::MAX)
    }

    /// What forward leaves of a stage whose state takes so much of the host.
    fn forward(&self, graph: &Graph, taken: u64) -> Forward {
        let mut forward = Forward::of_stage(graph, self.machine);
        forward.take_on_host(taken);
        forward
    }
}

/// What a choice has on the host, by positions in which what runs again does not count.
fn stays(graph: &Graph, choice: &Choice) -> Stays {
    choice.stays.clone().counted_without_again(graph)
}

/// A stage under settings of the passes and a memory limit.
struct OfStage<'a> {
    hosting: &'a Hosting<'a>,
    graph: &'a RankGraph,
    passes: &'a passes::Settings,
    limit: u64,
}

impl OfStage<'_> {
    fn within(&self, going: Going) -> Result<OnHost> {
        let held = self.peak(&OnHost::default())?;
        match going {
            _ if held <= self.limit => Ok(OnHost::default()),
            Going::State => self.with_state(held - self.limit),
            Going::Activations => self.with_activations(Pieces::default(), 0, held),
            Going::Both => {
                let (pieces, taken) = States::of(self.graph).pieces(u64::MAX, self.hosting.room());
                let held = self.peak(&OnHost { pieces: pieces.clone(), ..OnHost::default() })?;
                self.with_activations(pieces, taken, held)
            }
        }
    }

    /// With at least so many bytes of state on the host, and more while that is not enough.
    fn with_state(&self, excess: u64) -> Result<OnHost> {
        let states = States::of(self.graph);
        let (mut wanted, mut last) = (excess, 0);
        let mut made = OnHost::default();
        for _ in 0..TRIES {
            let (pieces, taken) = states.pieces(wanted, self.hosting.room());
            if taken == last {
                break;
            }
            made.pieces = pieces;
            let over = self.peak(&made)?.saturating_sub(self.limit);
            if over == 0 {
                break;
            }
            (wanted, last) = (taken + over, taken);
        }
        Ok(made)
    }

    /// With so much of what forward leaves on the host as is needed beside these pieces of state, with which so much is held.
    fn with_activations(&self, pieces: Pieces, taken: u64, held: u64) -> Result<OnHost> {
        let state = OnHost { pieces, ..OnHost::default() };
        if held <= self.limit {
            return Ok(state);
        }
        let forward = self.hosting.forward(self.graph, taken);
        let until = (Some(self.limit), Corrections::OF_RANKS);
        let best = corrected(&forward, until, held, |choice| {
            if choice.stays.is_empty() {
                return Ok(None);
            }
            let one = OnHost { stays: stays(self.graph, choice), ..state.clone() };
            let (peak_bytes, step_ns) = (self.peak(&one)?, choice.time / PICOS_PER_NANO);
            Ok(Some((Prediction { step_ns, peak_bytes, ..Prediction::default() }, one)))
        })?;
        Ok(best.map_or(state, |(_, one)| one))
    }

    /// What the stage holds at its peak.
    fn peak(&self, on_host: &OnHost) -> Result<u64> {
        let passes = passes::scheduled(&on_host.settings(self.passes));
        let memory = memory::peak(&passes::run_unverified(&passes, self.graph)?);
        let (alive, buffers) = memory.within(Some(Bytes(self.limit)));
        let held = Prediction::default().holding(&alive, buffers);
        Ok(held.beside(memory.on_host, self.hosting.machine.cluster).peak_bytes)
    }
}
