//! What a search is for and on, and what a candidate is predicted to take.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
};

use base::{Bytes, Diagnostic, Result};
use cluster::Cluster;
use cost::Machine;
use ir::{CollectiveKind, Dtype, Graph, HostCopy, Mesh, MeshAxis, Placement, RankGraph};
use passes::{Direct, DirectAxes};
use serde::{Deserialize, Serialize};
use shard::{Assignment, partition_mesh};

use crate::{
    divides::{divides, offered},
    effort::{Effort, Extent},
    forbidden::Forbid,
    intents::Intent,
    pins::Pins,
    plan::Prediction,
    shorter::Shorter,
};

/// What of forward is made again in backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Recomputation {
    /// Nothing, not even what the step's own code says.
    None,
    /// All that can be, but what crosses between segments.
    Full,
}

/// What is on the host while the device does not need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offloading {
    /// Nothing.
    None,
    /// What a memory limit asks for of what forward leaves for backward, on a cluster without a link to the host too.
    Activations,
    /// All state that only the update reads.
    Optimizer,
    /// All of both that can be.
    Full,
}

impl Offloading {
    /// Whether what forward leaves for backward may be there.
    pub const fn of_activations(self) -> bool {
        matches!(self, Self::Activations | Self::Full)
    }

    /// Whether state that only the update reads is there.
    pub const fn of_state(self) -> bool {
        matches!(self, Self::Optimizer | Self::Full)
    }
}

/// Hears, from any thread, which mesh a search turns to, and with how much effort.
pub type Telling<'a> = &'a (dyn Fn(&Mesh, Effort) + Sync);

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The captured step that the graph comes from.
    pub captured: &'a Graph,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The same with fewer of its layers, for quick searches, where there is one.
    pub shorter: Option<&'a Shorter>,
    /// What was found for that, where it is known.
    pub expected: Option<&'a [Found]>,
    /// The ranks, the outer axis first.
    pub mesh: &'a Mesh,
    /// Most bytes of one rank.
    pub memory_limit: Option<u64>,
    /// Demands.
    pub pins: &'a Pins,
    /// Collectives that it does without.
    pub forbid: &'a Forbid,
    /// How much is tried.
    pub effort: Effort,
    /// What of forward is made again in backward; what a memory limit needs unless it is said.
    pub recompute: Option<Recomputation>,
    /// The element type in which gradients are summed between ranks; their own unless it is said.
    pub reduce_dtype: Option<Dtype>,
    /// What is on the host; what a memory limit needs, where the cluster has a link to it, unless it is said.
    pub offload: Option<Offloading>,
    /// What a plan that is known takes, in nanoseconds: slower ones are of no use.
    pub known_ns: Option<i64>,
    /// The best that searches on other meshes promise so far.
    pub elsewhere: Option<Expected>,
    /// What hears where the search is.
    pub telling: Option<Telling<'a>>,
}

impl Request<'_> {
    /// Says where the search is.
    pub fn tell(&self, effort: Effort) {
        if let Some(telling) = self.telling {
            telling(self.mesh, effort);
        }
    }
}

/// What a candidate is expected to take within a memory limit.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// The time of a step, in nanoseconds.
    pub step_ns: i64,
    /// What one byte less would save it, in picoseconds.
    pub byte_price: f64,
}

/// A candidate with what it is predicted to take.
pub struct Found {
    /// The decisions along each axis.
    pub assignments: Vec<Assignment>,
    /// What its passes do.
    pub passes: passes::Settings,
    /// What it takes.
    pub prediction: Prediction,
    /// The least time of a step under any settings of the passes that were tried, whether they keep the memory limit or not.
    pub least_ns: i64,
}

impl Found {
    /// Whether it keeps a memory limit.
    pub fn fits(&self, limit: Option<u64>) -> bool {
        self.prediction.fits(limit)
    }

    /// Whether two are the same but for next to nothing.
    pub fn is_near(&self, other: &Self) -> bool {
        let (own, others) = (&self.prediction, &other.prediction);
        is_near(self.least_ns.unsigned_abs(), other.least_ns.unsigned_abs(), NEAR_TIME)
            && is_near(own.peak_bytes, others.peak_bytes, NEAR_PEAK)
    }

    /// Less is better.
    pub fn fitness(&self, limit: Option<u64>) -> (bool, i64, u64) {
        self.prediction.fitness(limit)
    }
}

/// What a search is for and on.
pub struct Run<'a> {
    /// What is asked for.
    pub request: &'a Request<'a>,
    /// Costs.
    pub machine: Machine<'a>,
    /// Up to which size collectives along each axis are faster from each rank to each.
    pub direct: DirectAxes,
    /// How much is tried.
    pub extent: Extent,
    /// What is decided already for operations of the step, by axis of the mesh.
    pub intents: &'a [Option<Intent>],
    /// The free solutions over the memory limit that were met along inner axes.
    pub met: RefCell<Vec<Met>>,
    /// The least that a candidate so far, or what is known, is expected to take within the memory limit.
    pub least_expected_ns: Cell<i64>,
    /// What the candidate that is expected to take least, on other meshes too, is expected to take.
    pub best_expected: Cell<Option<Expected>>,
    /// The part of all state that only the update reads, where it was asked for.
    pub host_share: OnceCell<f64>,
    /// How much more it is to do, where there is an end to it.
    pub work: Option<Rc<Work>>,
}

/// What a search may still do, counted so that it is the same on every machine: in cells of the solver's tables.
#[derive(Debug)]
pub struct Work {
    cells: Cell<u64>,
    /// How much is tried along inner axes.
    within: Extent,
}

impl Work {
    /// So many cells, and so much along inner axes.
    pub const fn new(cells: u64, within: Extent) -> Self {
        Self { cells: Cell::new(cells), within }
    }

    fn spend(&self, cells: u64) {
        self.cells.set(self.left().saturating_sub(cells));
    }

    /// So many cells are left.
    pub const fn left(&self) -> u64 {
        self.cells.get()
    }
}

/// What a free solution became.
#[derive(Clone, Copy, Debug)]
pub struct Met {
    /// The number of the axis that it is along, and whether demands on the batch were strict.
    pub search: (usize, bool),
    /// The time of a step, in nanoseconds.
    pub step_ns: i64,
    /// The peak, in bytes.
    pub peak_bytes: u64,
}

impl Met {
    /// Whether two are the same but for next to nothing.
    fn is_near(&self, other: &Self) -> bool {
        let step = |met: &Self| met.step_ns.unsigned_abs();
        self.search == other.search
            && is_near(step(self), step(other), NEAR_TIME)
            && is_near(self.peak_bytes, other.peak_bytes, NEAR_PEAK)
    }
}

/// Whether two numbers differ by at most one part in so many.
const fn is_near(one: u64, other: u64, parts: u64) -> bool {
    one.abs_diff(other) <= one / parts
}

/// Times are near each other where they differ by at most one part in so many.
const NEAR_TIME: u64 = 2_048;
/// The same for peaks.
const NEAR_PEAK: u64 = 256;

impl<'a> Run<'a> {
    /// The search for what is asked.
    pub fn new(request: &'a Request<'a>, extent: Extent) -> Self {
        Self {
            request,
            machine: Machine { cluster: request.cluster, mesh: request.mesh },
            direct: direct(request.cluster, request.mesh),
            extent,
            intents: &[],
            met: RefCell::default(),
            least_expected_ns: Cell::new(request.known_ns.unwrap_or(i64::MAX)),
            best_expected: Cell::new(request.elsewhere),
            host_share: OnceCell::new(),
            work: None,
        }
    }

    /// The same with another extent, which has met nothing yet.
    pub fn with(&self, extent: Extent) -> Self {
        Self { work: self.work.clone(), ..Self::new(self.request, extent) }
    }

    /// How much is tried along an axis.
    pub fn extent_along(&self, number: usize) -> Extent {
        self.work.as_ref().filter(|_| number > 0).map_or(self.extent, |work| work.within)
    }

    /// Counts what was done.
    pub fn spend(&self, cells: u64) {
        if let Some(work) = &self.work {
            work.spend(cells);
        }
    }

    /// What a search gives that may do one of so many parts of what is left to do; the rest stays.
    pub fn with_part_of_work<T>(&self, parts: u64, search: impl FnOnce(&Self) -> T) -> T {
        let Some(work) = &self.work else { return search(self) };
        let part = Rc::new(Work::new(work.left() / parts, work.within));
        let found = search(&Run { work: Some(Rc::clone(&part)), ..self.with(self.extent) });
        work.spend(work.left() / parts - part.left());
        found
    }

    /// Whether it has done all that it was to do.
    pub fn has_done_enough(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.left() == 0)
    }

    /// The plan in which every rank does everything; none where pins demand otherwise.
    pub fn replicated(&self, graph: &Graph) -> Result<Option<Found>> {
        let free = self.request.pins.values().flat_map(|axes| axes.values());
        if free.clone().any(|placement| *placement != Placement::Replicate)
            || self.request.mesh.ranks() == 1
            || self.request.mesh.micro_batches() > 1
        {
            return Ok(None);
        }
        let mut found = self.predicted(graph)?;
        found.assignments = vec![Assignment::default(); self.request.mesh.sharding_axes().count()];
        Ok(Some(found))
    }

    /// What one rank's graph takes, with the largest buckets that fit.
    pub fn predicted(&self, graph: &RankGraph) -> Result<Found> {
        let settled = self.settled(graph)?;
        self.fitting(|passes| self.scheduled(&settled, passes))
    }

    /// What is predicted under the settings of the largest buckets that fit.
    pub fn fitting(
        &self,
        mut predicted: impl FnMut(&passes::Settings) -> Result<Prediction>,
    ) -> Result<Found> {
        let mut last = None;
        let mut least_ns = i64::MAX;
        let mut rungs = self.ladder();
        let mut rung = rungs.next();
        while let Some(passes) = rung {
            let prediction = predicted(&passes)?;
            least_ns = least_ns.min(prediction.step_ns);
            let found = Found { assignments: Vec::new(), passes, prediction, least_ns };
            if found.fits(self.request.memory_limit) || found.prediction.collectives == 0 {
                return Ok(found);
            }
            let is_over = found.prediction.is_over_without_collectives(self.request.memory_limit);
            // What it holds exactly shows when it is known what runs again.
            if is_over && self.is_for_later(&found) {
                return Ok(found);
            }
            rung = if is_over { rungs.by_ref().last() } else { rungs.next() };
            last = Some(found);
        }
        last.ok_or_else(|| Diagnostic::bug("there are no settings of passes"))
    }

    /// The same, the first few with those settings of the passes under which they are fastest.
    pub fn tuned(&self, canonical: &Graph, mut found: Vec<Found>) -> Result<Vec<Found>> {
        for one in found.iter_mut().take(self.extent.tuned) {
            self.tune(canonical, one, &self.ladder().collect::<Vec<_>>())?;
        }
        Ok(found)
    }

    /// Gives a candidate the settings of the passes, of its own and some others, under which it is fastest.
    pub fn tune(&self, canonical: &Graph, one: &mut Found, others: &[passes::Settings]) -> Result<()> {
        let others: Vec<&passes::Settings> = others.iter().filter(|passes| **passes != one.passes).collect();
        if others.is_empty() || !self.may_be_tuned(one) {
            return Ok(());
        }
        let settled = self.settled(&*self.local(canonical, &one.assignments)?)?;
        for passes in others {
            let Prediction { model_ns, bound_ns, .. } = one.prediction;
            let prediction = Prediction { model_ns, bound_ns, ..self.scheduled(&settled, passes)? };
            one.least_ns = one.least_ns.min(prediction.step_ns);
            let limit = self.request.memory_limit;
            if prediction.fitness(limit) < one.fitness(limit) {
                (one.passes, one.prediction) = (passes.clone(), prediction);
            }
        }
        Ok(())
    }

    /// Whether settings of the passes change anything of a candidate that is decided now.
    pub fn may_be_tuned(&self, found: &Found) -> bool {
        found.prediction.collectives > 0 && !self.is_for_later(found)
    }

    /// Whether other settings of the passes are tried, in a large search, when it is known what of forward runs again so that a candidate keeps the
    /// memory limit.
    fn is_for_later(&self, found: &Found) -> bool {
        self.extent.is_thrifty && self.may_hold_less() && !found.fits(self.request.memory_limit)
    }

    /// The graph of rank 0 under these decisions. One rank that computes everything at once runs the graph as it was captured.
    pub fn local(&self, canonical: &Graph, assignments: &[Assignment]) -> Result<Cow<'_, RankGraph>> {
        if self.request.mesh.is_trivial() {
            return Ok(Cow::Borrowed(self.request.captured));
        }
        let mut decisions = assignments.iter();
        let next = |_: &Graph, _: &MeshAxis| Ok(decisions.next().cloned().unwrap_or_default());
        partition_mesh(canonical, self.request.mesh, 0, next).map(Cow::Owned)
    }

    /// Settings of the passes, those of the largest buckets first.
    pub fn ladder(&self) -> impl Iterator<Item = passes::Settings> {
        passes::Settings::ladder().map(|rung| passes::Settings {
            direct: self.direct.clone(),
            without_checkpoints: self.request.recompute.is_some(),
            reduce_dtype: self.request.reduce_dtype,
            ..rung
        })
    }

    /// A rank's graph after the passes that no setting of the [ladder](Self::ladder) changes.
    pub fn settled(&self, graph: &RankGraph) -> Result<RankGraph> {
        settled(graph, self.request.recompute.is_some())
    }

    /// What a rank's graph takes that has been through the passes which no setting changes.
    pub fn scheduled(&self, settled: &RankGraph, passes: &passes::Settings) -> Result<Prediction> {
        let graph = passes::run_unverified(&passes::scheduled(passes), settled)?;
        let found = sim::predict(&graph, self.machine)?;
        let (offloaded_bytes, host_state_bytes) = (offloaded(&graph), state_on_host(&graph));
        let made = Prediction { offloaded_bytes, host_state_bytes, ..Prediction::default() };
        let made = made.of(&found, self.request.memory_limit.map(Bytes), self.request.cluster);
        Ok(made.with_under_way(self.under_way()))
    }

    /// How many micro-batches what is predicted holds what forward leaves for. Of a vast program in stages, whose stages few are simulated of, as many
    /// as the first stage has begun before it ends one; of others one, and what is too much shows when they are taken apart.
    pub fn under_way(&self) -> u32 {
        let mesh = self.request.mesh;
        if self.extent.is_vast { mesh.stages().min(mesh.micro_batches()).max(1) } else { 1 }
    }

    /// Whether a solution near this one was met before along the same axis; from now on this one was.
    pub fn was_met(&self, met: Met) -> bool {
        let mut known = self.met.borrow_mut();
        let was = known.iter().any(|one| one.is_near(&met));
        known.push(met);
        was
    }

    /// By how much a peak is over the memory limit, in bytes.
    pub fn excess(&self, peak: u64) -> u64 {
        peak.saturating_sub(self.request.memory_limit.unwrap_or(u64::MAX))
    }

    /// The axes along which nothing that is mostly computation can be sharded.
    pub fn undivided(&self, graph: &Graph) -> Vec<String> {
        let axes =
            self.request.mesh.sharding_axes().filter(|axis| {
                axis.rank_count() > 1 && !divides(graph, axis, offered(self.request.mesh, axis))
            });
        axes.map(|axis| axis.name.clone()).collect()
    }
}

/// The candidates from the best on: those that fit in the order of their time, then the others in that of their memory; of equals the
/// first alone.
pub fn ranked(mut found: Vec<Found>, limit: Option<u64>) -> Vec<Found> {
    found.sort_by_key(|one| one.fitness(limit));
    let figures = |one: &Found| (one.prediction.step_ns, one.prediction.peak_bytes);
    found.dedup_by_key(|one| figures(one));
    found
}

/// A rank's graph after the passes that no setting changes but this one.
pub fn settled(graph: &RankGraph, without_checkpoints: bool) -> Result<RankGraph> {
    Ok(passes::run_unverified(&passes::settled(without_checkpoints), graph)?.into_renumbered())
}

/// What a program copies to the host in a step, in bytes.
pub fn offloaded(graph: &Graph) -> u64 {
    let copies = graph.order.iter().filter(|id| graph.host_copy(**id).is_some_and(HostCopy::is_out));
    copies.flat_map(|id| graph.nodes[*id].results()).map(|value| graph.ty(value).bytes().0).sum()
}

/// The state of a program that is on the host between steps, in bytes.
pub fn state_on_host(graph: &Graph) -> u64 {
    let state = graph.inputs_on_host().into_iter().map(|input| graph.ty(graph.inputs[input].value));
    state.map(|ty| ty.bytes().0).sum()
}

/// Along which axes, and up to which size, collectives are faster from each rank to each.
pub fn direct(cluster: &Cluster, mesh: &Mesh) -> DirectAxes {
    let machine = Machine { cluster, mesh };
    let of = |axis: &MeshAxis| {
        let limit = |kind| cost::direct_limit(machine, kind, axis);
        let direct = Direct {
            ranks: axis.size,
            all_reduce: limit(CollectiveKind::AllReduce),
            all_gather: limit(CollectiveKind::AllGather),
            reduce_scatter: limit(CollectiveKind::ReduceScatter),
        };
        let limits = [direct.all_reduce, direct.all_gather, direct.reduce_scatter];
        let is_ever = limits.iter().any(|limit| limit.0 > 0);
        is_ever.then(|| (axis.name.clone(), direct))
    };
    mesh.sharding_axes().filter(|axis| axis.rank_count() > 1).filter_map(of).collect()
}
