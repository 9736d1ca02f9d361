//! The way of a step: from a captured graph to its plan, and from a plan to the program of a rank.

use std::cell::OnceCell;

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use ir::{Graph, RankGraph};
use passes::{EmptyParts, Outcome, pipeline};
use shard::canonical;

use crate::{
    asked::Asked, kernels::with_kernels, meshes::Candidate, plan::Plan, run::Telling, settings::PlanSettings,
    stages::Stages, taken_apart::taken_apart,
};

/// A captured graph without what nothing needs. The planner sees this one.
fn cleaned(graph: &Graph, without_checkpoints: bool) -> Result<Graph> {
    passes::run(&passes::cleaned(without_checkpoints), graph, |_| {})
}

/// Plans a captured graph for a cluster.
pub fn plan_graph(graph: &Graph, cluster: &Cluster, settings: &PlanSettings) -> Result<Plan> {
    plan_telling(graph, cluster, settings, None, |_| {})
}

/// Plans a captured graph for a cluster; `telling` hears where the search is, and where the mesh is searched for, `told` what a quick search
/// predicts for each.
pub fn plan_telling(
    graph: &Graph,
    cluster: &Cluster,
    settings: &PlanSettings,
    telling: Option<Telling<'_>>,
    told: impl FnOnce(&[Candidate]),
) -> Result<Plan> {
    settings.check(cluster)?;
    aten::check(graph)?;
    let cleaned = &cleaned(graph, settings.recompute.is_some())?;
    let asked = Asked { graph, cleaned, cluster, settings, shorter: &OnceCell::new(), telling };
    let plan = asked.plan(told).map_err(|refused| asked.said_with_host(refused))?;
    if !settings.fuse {
        return Ok(plan);
    }
    let programs = programs(graph, &plan, None)?;
    let plan = Plan { kernels: true, narrow: settings.narrow.clone(), ..plan };
    with_kernels(plan, programs, cluster, settings.memory_limit(cluster))
}

/// The graph of `rank` under a plan for `graph`, in which all ranks are alike but for the sizes of their parts. On one rank it is the captured graph itself.
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
    let program = passes::run(&pipeline(&plan.passes_of(rank)), &rank_graph(graph, plan, rank)?, observe)?;
    without_empty_parts(graph, program)
}

/// What a rank runs of a step, without operations on parts of nothing, which the program of a rank has none of; operators that the
/// step itself gives empty tensors to stay.
pub fn without_empty_parts(graph: &Graph, local: RankGraph) -> Result<RankGraph> {
    let without = EmptyParts::beside(graph);
    if without.is_needed(&local) { passes::run(&[Box::new(without)], &local, |_| {}) } else { Ok(local) }
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
