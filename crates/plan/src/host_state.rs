//! State that only the update reads, on the host between steps: how much of it, and in which pieces it comes to the device.
//!
//! As much of it as a memory limit asks for goes, in the order in which the update comes to it. The link makes what comes and what goes at once, one piece
//! behind the other; what of that the update does not hide is waited for. Pieces come before the update as far as the limit leaves
//! memory for them: backward gives free what forward has left.

use aten::Call;
use base::{Result, SecondaryMap};
use cost::Machine;
use ir::{Graph, NodeId, PartKind, RankGraph};
use passes::{Piece, Pieces, Unit, runs_again, state_units};

use crate::{
    plan::Prediction,
    run::{Found, Offloading, Run},
};

/// State comes in pieces of at least so many bytes, or in so many pieces.
const PIECE: u64 = 64 << 20;
const PIECES: u64 = 16;
/// How often more state is put on the host while the limit is not kept.
const TRIES: usize = 3;

/// State of a rank's program that may be on the host.
#[derive(Default)]
pub struct States {
    units: Vec<Unit>,
}

impl States {
    /// Of a settled graph.
    pub fn of(graph: &RankGraph) -> Self {
        Self { units: state_units(graph) }
    }

    /// All of it, in bytes.
    pub fn total(&self) -> u64 {
        self.units.iter().map(|unit| unit.bytes).sum()
    }

    /// The pieces of the first of it that have at least so many bytes, or all for which the host has room; and their bytes.
    pub fn pieces(&self, bytes: u64, room: u64) -> (Pieces, u64) {
        let size = PIECE.min(self.total() / PIECES);
        let (mut pieces, mut taken) = (Vec::new(), 0);
        let (mut units, mut of_piece) = (0, 0);
        for unit in &self.units {
            if taken >= bytes || taken + unit.bytes > room {
                break;
            }
            (units, of_piece, taken) = (units + 1, of_piece + unit.bytes, taken + unit.bytes);
            if of_piece >= size {
                pieces.push(Piece { units, from: None });
                (units, of_piece) = (0, 0);
            }
        }
        if units > 0 {
            pieces.push(Piece { units, from: None });
        }
        (Pieces(pieces), taken)
    }

    /// The bytes of each piece.
    fn sizes<'a>(&'a self, pieces: &'a Pieces) -> impl Iterator<Item = u64> + 'a {
        let mut units = self.units.iter();
        pieces
            .0
            .iter()
            .map(move |piece| units.by_ref().take(piece.units as usize).map(|unit| unit.bytes).sum())
    }

    /// The same pieces where they come before the update, for a program that holds so much at its peak and may hold so much: as late as they can be
    /// there in time, and not before there is memory for them and all before them.
    pub fn ahead(
        &self,
        (graph, settled): (&Graph, &Graph),
        pieces: &Pieces,
        (peak, most): (u64, u64),
        machine: Machine<'_>,
    ) -> Pieces {
        let before = Before::new(graph, settled, machine);
        // Beside what is alive the prediction counts what stays for small results.
        let room = before.room(most.saturating_sub(peak.saturating_sub(before.most)));
        let mut pieces = pieces.clone();
        let sizes: Vec<u64> = self.sizes(&pieces).collect();
        let (mut fetched, mut starts) = (0, Vec::new());
        for size in &sizes {
            fetched += size;
            match room.partition_point(|room| *room < fetched) {
                first if first < room.len() => starts.push(first),
                _ => break,
            }
        }
        // The last of them is there when the update begins, each before it when the next one starts.
        let mut next = before.begins.last().copied().unwrap_or(0);
        for (number, first) in starts.into_iter().enumerate().rev() {
            next -= cost::host_copy_time(machine.cluster, sizes[number]);
            let begun = before.begins.partition_point(|begin| *begin <= next).saturating_sub(1);
            pieces.0[number].from = before.settled[begun.max(first)];
        }
        pieces
    }
}

impl Run<'_> {
    /// Whether state may be on the host between steps.
    pub fn may_have_state_on_host(&self) -> bool {
        let device = &self.request.cluster.device;
        self.request.offload.map_or(device.host_bandwidth.is_some(), Offloading::of_state)
    }

    /// Whether all state has to be that can be. Of a pipeline it is put there when the program is cut into stages.
    pub fn has_state_on_host(&self) -> bool {
        self.request.offload.is_some_and(Offloading::of_state) && self.request.mesh.stages() == 1
    }

    /// Whether a candidate could keep the memory limit if state were on the host as well.
    pub fn could_fit_without_state(&self, found: &Found) -> bool {
        let Prediction { state_bytes, .. } = found.prediction;
        let units = *self.host_share.get_or_init(|| share(self.request.graph));
        let on_host = (state_bytes as f64 * units) as u64;
        self.may_have_state_on_host()
            && self.least_bytes(found).saturating_sub(on_host)
                <= self.request.memory_limit.unwrap_or(u64::MAX)
    }

    /// The pieces of all state that can be on the host.
    pub fn all_state(&self, states: &States) -> Pieces {
        states.pieces(u64::MAX, self.room_on_host()).0
    }

    /// The bytes of the host that state may take; of all stages together, which one rank stands for here.
    pub fn room_on_host(&self) -> u64 {
        let memory = self.request.cluster.device.host_memory_bytes.unwrap_or(u64::MAX);
        memory.saturating_mul(u64::from(self.request.mesh.stages()))
    }

    /// The candidate with as much state on the host as the memory limit asks for; none where it cannot, or where it takes longer than what is known.
    pub fn with_state_on_host(
        &self,
        passes: &passes::Settings,
        (settled, states): (&RankGraph, &States),
        found: &Found,
        known: Option<&Found>,
    ) -> Result<Vec<Found>> {
        let room = self.room_on_host();
        let without = self.scheduled(settled, passes)?;
        let excess = self.excess(without.peak_bytes);
        let is_enough = known.is_some_and(|known| {
            known.fits(self.request.memory_limit)
                && known.prediction.step_ns - without.step_ns <= self.worth_ns(excess)
        });
        if !self.may_have_state_on_host() || excess == 0 || is_enough {
            return Ok(Vec::new());
        }
        let mut tried: Vec<Found> = Vec::new();
        let (mut wanted, mut last) = (excess, 0);
        for _ in 0..TRIES {
            let (pieces, taken) = states.pieces(wanted, room);
            if taken == last {
                break;
            }
            let one = self.with_pieces(passes, settled, found, pieces)?;
            let over = self.excess(one.prediction.peak_bytes);
            tried.push(one);
            if over == 0 {
                break;
            }
            (wanted, last) = (taken + over, taken);
        }
        Ok(tried)
    }

    /// A candidate with these pieces on the host.
    pub fn with_pieces(
        &self,
        passes: &passes::Settings,
        settled: &RankGraph,
        found: &Found,
        pieces: Pieces,
    ) -> Result<Found> {
        let passes = passes::Settings { host_state: pieces, ..passes.clone() };
        let Prediction { model_ns, bound_ns, .. } = found.prediction;
        let prediction = Prediction { model_ns, bound_ns, ..self.scheduled(settled, &passes)? };
        let least_ns = prediction.step_ns;
        Ok(Found { assignments: found.assignments.clone(), passes, prediction, least_ns })
    }

    /// A part of the time of copies of so many bytes, in nanoseconds: where running again takes less than that, the last bytes take less than to copy them.
    fn worth_ns(&self, bytes: u64) -> i64 {
        cost::host_copy_time(self.request.cluster, bytes) / 1000 / 4
    }

    /// The candidate with pieces that come before the update, as far as the memory limit leaves room for them.
    pub fn ahead(&self, settled: &RankGraph, states: &States, found: Found) -> Result<Found> {
        let limit = self.request.memory_limit;
        if found.passes.host_state.is_empty() {
            return Ok(found);
        }
        let graph = passes::run_unverified(&passes::scheduled(&found.passes), settled)?;
        // Where all of it is there because that was asked for, no more is held for its time.
        let peak = found.prediction.peak_bytes;
        let most = limit.filter(|_| !self.has_state_on_host()).unwrap_or(peak);
        let pieces = states.ahead((&graph, settled), &found.passes.host_state, (peak, most), self.machine);
        let one = self.with_pieces(&found.passes, settled, &found, pieces)?;
        let recomputed_ns = found.prediction.recomputed_ns;
        let one = Found { prediction: Prediction { recomputed_ns, ..one.prediction }, ..one };
        Ok(if one.fitness(limit) < found.fitness(limit) { one } else { found })
    }
}

/// What of all state only the update reads, a part of 1.
fn share(graph: &Graph) -> f64 {
    let bytes = |value| graph.ty(value).bytes().0;
    let all: u64 =
        graph.inputs.values().filter(|input| input.class.is_state()).map(|input| bytes(input.value)).sum();
    States::of(graph).total() as f64 / all.max(1) as f64
}

/// What is alive before the update of a program, and when its operations begin.
struct Before {
    /// At each position, the first one of the update included.
    alive: Vec<u64>,
    /// The most at any position of the whole program.
    most: u64,
    /// When each position begins, in picoseconds, if nothing waits.
    begins: Vec<i64>,
    /// The last position of the settled program that is not behind each.
    settled: Vec<Option<u32>>,
}

impl Before {
    fn new(graph: &Graph, settled: &Graph, machine: Machine<'_>) -> Self {
        let mut positions: SecondaryMap<NodeId, Option<u32>> = SecondaryMap::with_default(None);
        // What prepares a collective of the update may have moved before it.
        let stays = |(_, id): &(u32, &NodeId)| settled.part_kind(**id) != PartKind::Update;
        let counted = settled.order.iter().filter(|id| !runs_again(settled, **id));
        (0..).zip(counted).filter(stays).for_each(|(position, id)| positions[*id] = Some(position));
        let alive = memory::bytes_held(graph);
        let mut before = Self { most: 0, alive: Vec::new(), begins: Vec::new(), settled: Vec::new() };
        before.most = alive.iter().copied().max().unwrap_or(0);
        let (mut begin, mut last) = (0, None);
        for (id, alive) in graph.order.iter().zip(alive) {
            let is_update = graph.part_kind(*id) == PartKind::Update;
            last = positions[*id].or(last);
            before.alive.push(alive);
            before.begins.push(begin);
            before.settled.push(last);
            if is_update {
                break;
            }
            if !graph.is_communication(*id) {
                begin += cost::local_time(machine, &Call::new(graph, *id));
            }
        }
        before
    }

    /// At each position, how much memory of `most` is free from there to the update.
    fn room(&self, most: u64) -> Vec<u64> {
        let mut least = u64::MAX;
        let mut room: Vec<u64> = self
            .alive
            .iter()
            .rev()
            .map(|alive| {
                least = least.min(most.saturating_sub(*alive));
                least
            })
            .collect();
        room.reverse();
        room
    }
}
