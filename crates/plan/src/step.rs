//! The way of a step: from a captured graph to its plan, and from a plan to the program of a rank.

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use indexmap::IndexMap;
use ir::{Graph, Mesh, RankGraph};
use passes::{CommonSubexpressions, DeadCode, DropAliases, MergeViews, Outcome, Pass, pipeline};
use serde::{Deserialize, Serialize};
use shard::canonical;

use crate::{
    divides::require_slices,
    effort::Effort,
    explain::explain,
    meshes::{Candidate, search_meshes},
    pins::Pins,
    plan::{Plan, mesh_of},
    run::{Recomputation, Request},
    search::search,
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
    /// Demanded placements by axis, by name pattern of inputs.
    #[serde(default)]
    pub pins: Pins,
    /// How much the search tries.
    #[serde(default)]
    pub effort: Effort,
    /// What of forward is made again in backward: nothing, all that can be, or, unless it is said, what a memory limit needs.
    #[serde(default)]
    pub recompute: Option<Recomputation>,
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
        if let Some(held) = cluster.ranks().filter(|&held| held < mesh.ranks()) {
            let message = format!("a mesh of {} ranks on a cluster of {held}", mesh.ranks());
            let hint = "describe a larger cluster, or use fewer ranks";
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint(hint));
        }
        if let Some(ranks) = self.ranks.filter(|&ranks| ranks != mesh.ranks()) {
            let message = format!("the mesh has {} ranks, not {ranks}", mesh.ranks());
            return Err(Diagnostic::new(Code::BAD_MESH, message).hint("say one of them"));
        }
        if self.ranks.is_some() && self.mesh.is_empty() && !self.pins.is_empty() {
            let message = "pins name axes, and the mesh is to be searched for";
            return Err(Diagnostic::new(Code::BAD_PIN, message).hint("give the mesh, or no pins"));
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

/// A captured graph without what nothing needs: aliases, chains of views, values computed twice, dead code. The planner sees this one.
fn cleaned(graph: &Graph, without_checkpoints: bool) -> Result<Graph> {
    let passes: [Box<dyn Pass>; 4] = [
        Box::new(DropAliases),
        Box::new(MergeViews),
        Box::new(CommonSubexpressions { without_checkpoints }),
        Box::new(DeadCode),
    ];
    passes::run(&passes, graph, |_| {})
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
    let asked = Asked { graph, cleaned, cluster, settings };
    match asked.planned(settings.micro_batches.unwrap_or(1), told) {
        Err(refused) if refused.code == Code::NO_PLAN && settings.micro_batches.is_none() => {
            asked.sliced().next().ok_or(refused)
        }
        // Slices may be faster than to run parts of forward twice.
        Ok(plan)
            if plan.prediction.recomputed_ns > 0
                && settings.recompute.is_none()
                && settings.micro_batches.is_none()
                && cleaned.order.len() <= MOST_WEIGHED =>
        {
            let plans = std::iter::once(plan).chain(asked.sliced());
            plans
                .min_by_key(|plan| plan.prediction.step_ns)
                .ok_or_else(|| Diagnostic::bug("of one plan there is none"))
        }
        other => other,
    }
}

/// How many micro-batches are tried where the whole batch at once does not keep the memory limit.
const TRIED: [u32; 4] = [2, 4, 8, 16];

/// Programs of more nodes are not tried: all slices are written out.
const MOST_NODES: usize = 1 << 17;

/// For steps of more nodes micro-batches are not weighed against running parts of forward twice: that takes several times as long.
const MOST_WEIGHED: usize = 2_000;

/// What is asked of the planner.
struct Asked<'a> {
    graph: &'a Graph,
    cleaned: &'a Graph,
    cluster: &'a Cluster,
    settings: &'a PlanSettings,
}

impl Asked<'_> {
    /// The plan with a number of micro-batches.
    fn planned(&self, micro_batches: u32, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
        let settings = self.settings;
        let mesh = settings.mesh_of(micro_batches);
        if let Some(axis) = mesh.time_axis() {
            require_slices(&canonical(self.cleaned), axis)?;
        }
        let request = Request {
            graph: self.cleaned,
            captured: self.graph,
            cluster: self.cluster,
            mesh: &mesh,
            memory_limit: settings.memory_limit(self.cluster),
            pins: &settings.pins,
            effort: settings.effort,
            recompute: settings.recompute,
        };
        match settings.ranks.filter(|_| settings.mesh.is_empty()) {
            Some(ranks) => search_meshes(&request, ranks, told),
            None => Ok(search(&request)?.plan),
        }
    }

    /// Plans with more and more micro-batches that keep the memory limit.
    fn sliced(&self) -> impl Iterator<Item = Plan> {
        let nodes = self.cleaned.order.len();
        let tried = TRIED.iter().filter(move |count| nodes * **count as usize <= MOST_NODES);
        tried.filter_map(|count| self.planned(*count, |_| {}).ok())
    }
}

/// The graph that `rank` runs under a plan for `graph`. On one rank it is the captured graph itself.
pub fn rank_graph(graph: &Graph, plan: &Plan, rank: u32) -> Result<RankGraph> {
    aten::check(graph)?;
    let canonical = canonical(&cleaned(graph, plan.passes.without_checkpoints)?);
    let local = plan.partition(&canonical, graph.fingerprint(), rank)?;
    Ok(if plan.mesh().is_trivial() { graph.clone() } else { local })
}

/// The program that `rank` runs under a plan for `graph`: its graph after the passes; `observe` hears of each.
pub fn program(graph: &Graph, plan: &Plan, rank: u32, observe: impl FnMut(&Outcome)) -> Result<RankGraph> {
    passes::run(&pipeline(&plan.passes), &rank_graph(graph, plan, rank)?, observe)
}

/// What a plan does, for people.
pub fn explain_plan(graph: &Graph, plan: &Plan) -> Result<String> {
    Ok(explain(plan, &program(graph, plan, 0, |_| {})?))
}
