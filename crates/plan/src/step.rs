//! The way of a step: from a captured graph to its plan, and from a plan to the program of a rank.

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use indexmap::IndexMap;
use ir::{Dtype, Graph, Mesh, MeshAxis, RankGraph, STAGES};
use passes::{Outcome, pipeline};
use serde::{Deserialize, Serialize};
use shard::canonical;

use crate::{
    divides::require_slices,
    effort::Effort,
    forbidden::{self, Forbid},
    kernels::with_kernels,
    meshes::{Candidate, search_meshes},
    pins::Pins,
    pipelines::{InStages, search_stages},
    plan::{Plan, Prediction, mesh_of},
    run::{Offloading, Recomputation, Request},
    search::search,
    shorter::Shorter,
    stage_counts::faster_in_stages,
    stages::{Cut, Stages},
    suits::if_it_suits,
    taken_apart::taken_apart,
    wish::{ScheduleWish, Wanted},
};

/// What is asked of the planner, as settings.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSettings {
    /// The mesh: names of its axes with their sizes, the outer axis first. Without any, it is searched for.
    #[serde(default)]
    pub mesh: IndexMap<String, u32>,
    /// How many ranks there are, where the mesh is searched for.
    #[serde(default)]
    pub ranks: Option<u32>,
    /// How many micro-batches each rank computes one after the other. Unless it is said, the whole batch at once, or the fewest with which a
    /// plan keeps the memory limit.
    #[serde(default)]
    pub micro_batches: Option<u32>,
    /// Most bytes of one rank.
    #[serde(default)]
    pub memory_limit: Option<u64>,
    /// Demanded placements by axis, by name pattern of inputs, or of modules whose outputs they are for.
    #[serde(default)]
    pub pins: Pins,
    /// Kinds of collectives that the plan does without, by axis.
    #[serde(default)]
    pub forbid: Forbid,
    /// How much the search tries.
    #[serde(default)]
    pub effort: Effort,
    /// What of forward is made again in backward: nothing, all that can be, or, unless it is said, what a memory limit needs.
    #[serde(default)]
    pub recompute: Option<Recomputation>,
    /// The element type in which gradients are summed between ranks; their own unless it is said.
    #[serde(default)]
    pub reduce_dtype: Option<Dtype>,
    /// What is on the host while the device does not need it: nothing, what a memory limit needs of what forward leaves, or all of it. Unless it is
    /// said, what a memory limit needs where the cluster has a link to the host.
    #[serde(default)]
    pub offload: Option<Offloading>,
    /// In which order pipeline stages run their micro-batches; the best one where it is not said.
    #[serde(default)]
    pub schedule: Option<ScheduleWish>,
    /// Whether groups of operations run as kernels.
    #[serde(default)]
    pub fuse: bool,
    /// How many chunks of the program each pipeline stage has; what suits the schedule where it is not said.
    #[serde(default)]
    pub chunks: Option<u32>,
    /// Where pipeline stages begin, one for each chunk but the first; where the slowest takes least if it is not said.
    #[serde(default)]
    pub cuts: Option<Vec<Cut>>,
}

impl PlanSettings {
    /// The limit that plans keep: the given one, or all memory of a device that is known from a preset or a description with a network.
    /// Where this machine was measured, other processes share its memory, and nothing is limited unless it is said.
    pub fn memory_limit(&self, cluster: &Cluster) -> Option<u64> {
        self.memory_limit.or_else(|| cluster.ranks().map(|_| cluster.device.memory_bytes))
    }

    /// Refuses a mesh that is none, or that does not suit the cluster or the number of ranks.
    fn check(&self, cluster: &Cluster) -> Result<()> {
        let mesh = self.mesh();
        mesh.check()?;
        let is_searched = self.ranks.is_some() && self.mesh.is_empty();
        forbidden::check(&self.forbid, (!is_searched).then_some(&mesh))?;
        if let Some(held) = cluster.ranks().filter(|&held| held < mesh.ranks()) {
            let message = format!("a mesh of {} ranks on a cluster of {held}", mesh.ranks());
            let hint = "describe a larger cluster, or use fewer ranks";
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
        }
        if mesh.stages() > 1 && !cluster.kinds.is_empty() {
            let message = format!("pipeline stages on several kinds of devices: {}", cluster.device.name);
            let hint = "use a mesh without stages, or describe a cluster of one kind";
            let cause = "stages are cut, and their times predicted, as if all ran on one kind";
            return Err(Diagnostic::new(Code::BAD_MESH, message).because(cause).hint(hint));
        }
        if let Some(ranks) = self.ranks.filter(|&ranks| ranks != mesh.ranks()) {
            let message = format!("the mesh has {} ranks, not {ranks}", mesh.ranks());
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint("say one of them"));
        }
        if is_searched && !self.pins.is_empty() {
            let message = "pins name axes, and the mesh is to be searched for";
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint("give the mesh, or no pins"));
        }
        let stages = mesh.stages();
        if stages == 1 && (self.schedule.is_some() || self.chunks.is_some() || self.cuts.is_some()) {
            let message = "a schedule, chunks or cuts of pipeline stages, and one stage";
            let hint = format!("give the mesh an axis `{STAGES}`, or leave them out");
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
        }
        Ok(())
    }

    /// The mesh; of one axis where it is searched for.
    pub fn mesh(&self) -> Mesh {
        self.mesh_of(self.micro_batches.unwrap_or(1))
    }

    /// The mesh with so many micro-batches.
    fn mesh_of(&self, micro_batches: u32) -> Mesh {
        match self.ranks.filter(|_| self.mesh.is_empty()) {
            Some(ranks) => mesh_of(&IndexMap::from([("ranks".to_owned(), ranks)]), micro_batches),
            None => mesh_of(&self.mesh, micro_batches),
        }
    }
}

/// A captured graph without what nothing needs. The planner sees this one.
fn cleaned(graph: &Graph, without_checkpoints: bool) -> Result<Graph> {
    passes::run(&passes::cleaned(without_checkpoints), graph, |_| {})
}

/// Plans a captured graph for a cluster.
pub fn plan_graph(graph: &Graph, cluster: &Cluster, settings: &PlanSettings) -> Result<Plan> {
    plan_telling(graph, cluster, settings, |_| {})
}

/// Plans a captured graph for a cluster; where the mesh is searched for, `told` hears what a quick search predicts for each.
pub fn plan_telling(
    graph: &Graph,
    cluster: &Cluster,
    settings: &PlanSettings,
    told: impl FnOnce(&[Candidate]),
) -> Result<Plan> {
    settings.check(cluster)?;
    aten::check(graph)?;
    let cleaned = &cleaned(graph, settings.recompute.is_some())?;
    // A search along a single axis is of the whole step.
    let is_single = settings.mesh.len() == 1 && settings.micro_batches.unwrap_or(1) == 1;
    let shorter = if is_single { None } else { Shorter::of(&canonical(cleaned)) };
    let asked = Asked { graph, cleaned, shorter: shorter.as_ref(), cluster, settings };
    let found = if settings.mesh().stages() > 1 {
        asked.in_stages()
    } else {
        let found = asked.in_one_piece(told);
        if settings.mesh.is_empty() && settings.effort == Effort::Full {
            asked.or_in_stages(found)
        } else {
            found
        }
    };
    let plan = found.map_err(|refused| asked.said_with_host(refused))?;
    if !settings.fuse {
        return Ok(plan);
    }
    let programs = programs(graph, &plan, None)?;
    with_kernels(plan, programs, cluster, settings.memory_limit(cluster))
}

/// How many micro-batches are tried where the whole batch at once does not keep the memory limit.
const TRIED: [u32; 6] = [2, 4, 8, 16, 32, 64];

/// Programs of more nodes are not tried: all slices are written out.
const MOST_NODES: usize = 1 << 17;

/// For steps of more nodes, times axes, micro-batches with which parts of forward would run again, or leave for the host, are not weighed against doing
/// that with the whole batch: to find what of it takes several times as long as all else.
const MOST_WEIGHED: usize = 2_000;

/// Micro-batches are not weighed against what takes less than one part in so many of a step.
const WORTH_WEIGHING: i64 = 50;

/// What is asked of the planner.
struct Asked<'a> {
    graph: &'a Graph,
    cleaned: &'a Graph,
    shorter: Option<&'a Shorter>,
    cluster: &'a Cluster,
    settings: &'a PlanSettings,
}

impl Asked<'_> {
    /// The plan without stages.
    fn in_one_piece(&self, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
        let PlanSettings { micro_batches, effort, recompute, .. } = self.settings;
        let found = self.planned((micro_batches.unwrap_or(1), *effort, false), told);
        if let Some(count) = micro_batches {
            return found.map_err(|refused| self.said_with_slices(refused, *count));
        }
        let found = match found {
            Err(refused) if refused.code == Code::NO_PLAN => {
                // Without anything run again first, where to find what of it takes long.
                let holding_all = if self.is_large() { self.holding_all(1)? } else { None };
                let sliced = || self.sliced((1, *effort), false).next();
                let fewest = || sliced().map_or(Err(refused), |sliced| sliced.map(|(_, plan)| plan));
                holding_all.map_or_else(fewest, Ok)
            }
            other => other,
        }?;
        // Slices may be faster than to run parts of forward twice.
        let takes_time = found.prediction.holding_less_ns() > found.prediction.step_ns / WORTH_WEIGHING;
        if takes_time && recompute.is_none() { self.weighed(found) } else { Ok(found) }
    }

    /// The error of a limit that no plan keeps, with the number of micro-batches with which all ranks can shard the batch, where this one is too large for that.
    fn said_with_slices(&self, refused: Box<Diagnostic>, micro_batches: u32) -> Box<Diagnostic> {
        let (graph, ranks) = (canonical(self.cleaned), self.settings.mesh().ranks());
        let divide = |count: u32| require_slices(&graph, &MeshAxis::micro_batches(count * ranks)).is_ok();
        if refused.code != Code::NO_PLAN || micro_batches == 1 || divide(micro_batches) {
            return refused;
        }
        let Some(fewer) = (1..micro_batches).rev().find(|count| divide(*count)) else { return refused };
        let cause = refused.cause.clone().unwrap_or_default();
        let slices = format!("{ranks} ranks cannot shard the batch in {micro_batches} slices");
        refused.because(format!("{cause}; {slices}")).hint(format!(
            "use {fewer} micro-batches, with which they can; or more ranks, a smaller batch, or a higher memory limit"
        ))
    }

    /// Whether a search for what may be held less takes long.
    fn is_large(&self) -> bool {
        self.cleaned.order.len() * self.settings.mesh().sharding_axes().count().max(1) > MOST_WEIGHED
    }

    /// The error of a limit that no plan keeps, with what would where memory of the host is all that is missing.
    fn said_with_host(&self, refused: Box<Diagnostic>) -> Box<Diagnostic> {
        let device = &self.cluster.device;
        let on_device =
            self.graph.inputs.values().any(|input| !self.graph.ty(input.value).device.kind.is_cpu());
        let is_apart = on_device || self.cluster.ranks().is_some();
        let may_help = device.host_bandwidth.is_none() || device.host_memory_bytes.is_some();
        if refused.code != Code::NO_PLAN || self.settings.offload.is_some() || !is_apart || !may_help {
            return refused;
        }
        let mut larger = self.cluster.clone();
        larger.device.host_bandwidth.get_or_insert(device.memory_bandwidth);
        larger.device.host_memory_bytes = None;
        let settings = PlanSettings { effort: Effort::Quick, ..self.settings.clone() };
        let asked = Asked { cluster: &larger, settings: &settings, ..*self };
        let in_stages = self.settings.mesh().stages() > 1;
        let found = if in_stages { asked.in_stages() } else { asked.in_one_piece(|_| {}) };
        let Ok(plan) = found else { return refused };
        let Prediction { peak_bytes, host_bytes, .. } = plan.prediction;
        let given =
            device.host_memory_bytes.map_or("none is given".to_owned(), |given| format!("{given} are given"));
        let cause = refused.cause.clone().unwrap_or_default();
        refused
            .because(format!(
                "{cause}; a plan with {host_bytes} bytes of memory of the host needs {peak_bytes} per rank, but {given}"
            ))
            .hint(
                "say what the host has in the cluster description: `host_bandwidth`, `host_latency_ns` and `host_memory_bytes` of the device; \
                 or use more ranks, a smaller batch, or a higher memory limit",
            )
    }

    /// The plan on a mesh that is searched for, or one in pipeline stages that is faster, or that keeps the limit where none does without.
    fn or_in_stages(&self, found: Result<Plan>) -> Result<Plan> {
        let settings = self.settings;
        let open = found.as_ref().map_or_else(|refused| refused.code == Code::NO_PLAN, |_| true);
        let (true, Some(ranks)) = (open && self.cluster.kinds.is_empty(), settings.ranks) else {
            return found;
        };
        let mesh = settings.mesh_of(1);
        let known = found.as_ref().ok();
        match faster_in_stages(&self.request(&mesh), ranks, settings.micro_batches, known)? {
            Some(faster) => Ok(faster),
            None => found,
        }
    }

    /// The plan with a number of micro-batches, perhaps one that holds all of what forward leaves.
    fn planned(
        &self,
        (micro_batches, effort, holds_all): (u32, Effort, bool),
        told: impl FnOnce(&[Candidate]),
    ) -> Result<Plan> {
        let settings = self.settings;
        let mesh = settings.mesh_of(micro_batches);
        if let Some(axis) = mesh.time_axis() {
            require_slices(&canonical(self.cleaned), axis)?;
        }
        let request = Request { effort, holds_all, ..self.request(&mesh) };
        match settings.ranks.filter(|_| settings.mesh.is_empty()) {
            Some(ranks) => search_meshes(&request, ranks, told),
            None => search(&request)?.plan(),
        }
    }

    fn request<'a>(&'a self, mesh: &'a Mesh) -> Request<'a> {
        Request {
            graph: self.cleaned,
            captured: self.graph,
            shorter: self.shorter,
            expected: None,
            cluster: self.cluster,
            mesh,
            memory_limit: self.settings.memory_limit(self.cluster),
            pins: &self.settings.pins,
            forbid: &self.settings.forbid,
            effort: self.settings.effort,
            recompute: self.settings.recompute,
            reduce_dtype: self.settings.reduce_dtype,
            offload: self.settings.offload,
            holds_all: false,
        }
    }

    /// The plan with pipeline stages: with the micro-batches that are asked for, or the best of once, twice and four times as many as stages,
    /// as far as the batch can be sliced so.
    fn in_stages(&self) -> Result<Plan> {
        let PlanSettings { schedule, chunks, cuts, micro_batches, .. } = self.settings;
        let wanted = Wanted {
            schedule: schedule.as_ref(),
            chunks: *chunks,
            cuts: cuts.as_deref(),
            faster_than_ns: None,
        };
        let micro_batches = match micro_batches {
            Some(count) => Some(*count),
            None => wanted.micro_batches()?,
        };
        let of = |count: u32| {
            let mesh = self.settings.mesh_of(count);
            if let Some(axis) = mesh.time_axis() {
                require_slices(&canonical(self.cleaned), axis)?;
            }
            match search_stages(&self.request(&mesh), wanted)? {
                InStages::Plan(plan) => Ok(*plan),
                InStages::Slower(_) => Err(Diagnostic::bug("a plan in stages is slower than none")),
            }
        };
        if let Some(count) = micro_batches {
            return of(count);
        }
        let stages = self.settings.mesh().stages();
        let nodes = self.cleaned.order.len();
        let tried = [1, 2, 4].map(|times| times * stages);
        let tried = tried.into_iter().filter(|count| nodes * *count as usize <= MOST_NODES);
        let mut best: Option<Plan> = None;
        for count in tried {
            let Some(plan) = if_it_suits(of(count))? else { continue };
            if best.as_ref().is_none_or(|best| plan.prediction.step_ns < best.prediction.step_ns) {
                best = Some(plan);
            }
        }
        best.map_or_else(|| of(1), Ok)
    }

    /// Plans with more and more micro-batches that keep the memory limit, from more than so many on.
    fn sliced(
        &self,
        (from, effort): (u32, Effort),
        holds_all: bool,
    ) -> impl Iterator<Item = Result<(u32, Plan)>> {
        let nodes = self.cleaned.order.len();
        let tried =
            TRIED.into_iter().filter(move |count| *count > from && nodes * *count as usize <= MOST_NODES);
        tried.filter_map(move |count| {
            let planned = if_it_suits(self.planned((count, effort, holds_all), |_| {})).transpose()?;
            Some(planned.map(|plan| (count, plan)))
        })
    }

    /// The plan with the fewest micro-batches, from more than so many on, with which a quick search finds one that holds all of what forward leaves.
    fn holding_all(&self, from: u32) -> Result<Option<Plan>> {
        let Some((count, quick)) = self.sliced((from, Effort::Quick), true).next().transpose()? else {
            return Ok(None);
        };
        let full = if_it_suits(self.planned((count, self.settings.effort, true), |_| {}))?;
        Ok(Some(faster(quick, full)))
    }

    /// A plan that runs parts of forward again, or a faster one with micro-batches: of a large step the first that holds all, of others those that are
    /// faster by a quick search, searched with all effort.
    fn weighed(&self, plan: Plan) -> Result<Plan> {
        if self.is_large() {
            let sliced = self.holding_all(plan.micro_batches)?;
            return Ok(faster(plan, sliced));
        }
        let from = (plan.micro_batches, Effort::Quick);
        let mut best = plan;
        for sliced in self.sliced(from, false) {
            let (count, sliced) = sliced?;
            // More slices than keep the limit by themselves only cost time.
            let is_enough = !sliced.prediction.holds_less();
            if sliced.prediction.step_ns < best.prediction.step_ns {
                let full = if_it_suits(self.planned((count, self.settings.effort, false), |_| {}))?;
                best = faster(sliced, full);
            }
            if is_enough {
                break;
            }
        }
        Ok(best)
    }
}

/// The faster of two plans, if there is another.
fn faster(plan: Plan, other: Option<Plan>) -> Plan {
    other.filter(|other| other.prediction.step_ns < plan.prediction.step_ns).unwrap_or(plan)
}

/// The graph that `rank` runs under a plan for `graph`. On one rank it is the captured graph itself.
pub fn rank_graph(graph: &Graph, plan: &Plan, rank: u32) -> Result<RankGraph> {
    let mesh = plan.mesh();
    if let Some(mut graphs) = stage_graphs(graph, plan, rank)? {
        let number = mesh.stage_axis().map_or(0, |(number, _)| mesh.coordinate(rank, number));
        return Ok(graphs.swap_remove(number as usize));
    }
    aten::check(graph)?;
    let canonical = canonical(&cleaned(graph, plan.passes.without_checkpoints)?);
    let local = plan.partition(&canonical, graph.fingerprint(), rank)?;
    Ok(if mesh.is_trivial() { graph.clone() } else { local })
}

/// The graphs of `rank` and of those that have its coordinates on all other stages, in the order of the stages; none for a plan without.
fn stage_graphs(graph: &Graph, plan: &Plan, rank: u32) -> Result<Option<Vec<RankGraph>>> {
    let Some(stages) = &plan.stages else { return Ok(None) };
    aten::check(graph)?;
    let canonical = canonical(&cleaned(graph, plan.passes.without_checkpoints)?);
    let schedule = stages.schedule(plan.micro_batches)?;
    let (made, staged) = Stages::of(&canonical, &stages.cuts, stages.schedule, &schedule)?;
    let whole = plan.partition(&staged.graph, graph.fingerprint(), rank)?;
    if plan.mesh().stages() != stages.count() || made.state != stages.state {
        return Err(Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
            .because("its stages hold other state than its cuts make of this step")
            .hint("plan again, or take the stages' `state` from a plan with these cuts"));
    }
    taken_apart(&whole, &stages.recompute, &staged.held, &schedule, &plan.passes).map(Some)
}

/// The program that `rank` runs under a plan for `graph`: its graph after the passes; `observe` hears of each.
pub fn program(graph: &Graph, plan: &Plan, rank: u32, observe: impl FnMut(&Outcome)) -> Result<RankGraph> {
    passes::run(&pipeline(&plan.passes_of(rank)), &rank_graph(graph, plan, rank)?, observe)
}

/// The programs that the first ranks of all stages run; none under a plan without stages.
pub fn stage_programs(graph: &Graph, plan: &Plan) -> Result<Option<Vec<RankGraph>>> {
    let Some(graphs) = stage_graphs(graph, plan, 0)? else { return Ok(None) };
    let mesh = plan.mesh();
    let apart = mesh.stage_axis().map_or(0, |(_, axis)| mesh.stride_of(&axis.name));
    let program = |(stage, graph): (u32, RankGraph)| {
        passes::run(&pipeline(&plan.passes_of(stage * apart)), &graph, |_| {})
    };
    (0..).zip(graphs).map(program).collect::<Result<_>>().map(Some)
}

/// What stands for all ranks: the programs of the first ranks of all stages, or that of one rank, which may be known.
pub fn programs(graph: &Graph, plan: &Plan, known: Option<&RankGraph>) -> Result<Vec<RankGraph>> {
    if let Some(programs) = stage_programs(graph, plan)? {
        return Ok(programs);
    }
    let one = known.cloned().map_or_else(|| program(graph, plan, 0, |_| {}), Ok);
    Ok(vec![one?])
}
