//! The way of a step: from a captured graph to its plan, and from a plan to the program of a rank.

use std::cell::OnceCell;

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use ir::{Graph, RankGraph};
use passes::{EmptyParts, Outcome, pipeline};
use schedule::Schedule;
use shard::{canonical, stages::Staged};

use crate::{
    asked::Asked,
    beyond::Known,
    in_part::{Written, has_one_loop, of_whole, schedule_of},
    kernels::with_kernels,
    meshes::Candidate,
    plan::Plan,
    run::Telling,
    settings::PlanSettings,
    stages::Stages,
    taken_apart::{all_with_again, taken_apart},
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
    let plan = planned(&asked, told)?;
    if !settings.fuse {
        return Ok(plan);
    }
    let fused = |plan: Plan| -> Result<Plan> {
        let programs = programs(graph, &plan, None)?;
        let plan = Plan { kernels: true, narrow: settings.narrow.clone(), ..plan };
        with_kernels(plan, &programs, cluster, settings.memory_limit(cluster))
    };
    let Some(limit) = settings.memory_limit(cluster) else { return fused(plan) };
    let without = plan.prediction.peak_bytes;
    let mut found = fused(plan)?;
    // A kernel holds what it reads until all that it makes is there: the search leaves it that much room.
    let (mut room, most) = (limit, found.prediction.peak_bytes);
    for _ in 0..WITH_ROOM {
        let over = found.prediction.peak_bytes.saturating_sub(limit);
        if over == 0 {
            return Ok(found);
        }
        room = room.saturating_sub(over);
        let settings = PlanSettings { memory_limit: Some(room), ..settings.clone() };
        let Ok(plan) = planned(&Asked { settings: &settings, ..asked }, |_| {}) else { break };
        found = fused(plan)?;
    }
    if found.prediction.peak_bytes <= limit {
        Ok(found)
    } else {
        Err(too_small_for_kernels(limit, without, most))
    }
}

/// So often a search leaves room for what kernels hold.
const WITH_ROOM: usize = 3;

fn planned(asked: &Asked<'_>, told: impl FnOnce(&[Candidate])) -> Result<Plan> {
    asked.plan(told).map_err(|refused| asked.said_with_host(refused))
}

/// The error of a limit that a plan keeps without kernels, and none with them.
fn too_small_for_kernels(limit: u64, without: u64, with: u64) -> Box<Diagnostic> {
    let message = format!("no plan fits into {limit} bytes per rank with kernels");
    let cause = format!(
        "without them one takes {without} bytes, with them {with}: what a kernel reads is held until all that it makes is there"
    );
    Diagnostic::new(Code::NO_PLAN, message)
        .because(cause)
        .hint("do without kernels, use more ranks, a smaller batch, or a higher memory limit")
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
    let (staged, schedule) = in_stages(graph, plan, stages)?;
    let whole = plan.partition(&staged.graph, graph.fingerprint(), rank)?;
    taken_apart(&whole, &stages.recompute, &staged.held, &schedule, &plan.passes).map(Some)
}

/// A step with the chunks of its operations, and the schedule of a plan's stages for it.
fn in_stages(graph: &Graph, plan: &Plan, stages: &Stages) -> Result<(Staged, Schedule)> {
    aten::check(graph)?;
    let canonical = canonical(&cleaned(graph, plan.passes.without_checkpoints)?);
    let schedule = stages.schedule(plan.micro_batches)?;
    let (made, staged) = Stages::of(&canonical, &stages.cuts, stages.schedule, &schedule)?;
    if plan.mesh().stages() != stages.count() || made.state != stages.state {
        return Err(Diagnostic::new(Code::FOREIGN_PLAN, "the plan is for another training step")
            .because("its stages hold other state than its cuts make of this step")
            .hint("plan again, or take the stages' `state` from a plan with these cuts"));
    }
    Ok((staged, schedule))
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
    stage_graphs(graph, plan, 0)?.map(|graphs| run_passes(plan, &graphs)).transpose()
}

/// What the passes leave of the graphs of the first ranks of all stages.
fn run_passes(plan: &Plan, graphs: &[RankGraph]) -> Result<Vec<RankGraph>> {
    let mesh = plan.mesh();
    let apart = mesh.stage_axis().map_or(0, |(_, axis)| mesh.stride_of(&axis.name));
    let program = |(stage, graph): (u32, &RankGraph)| {
        passes::run(&pipeline(&plan.passes_of(stage * apart)), graph, |_| {})
    };
    (0..).zip(graphs).map(program).collect()
}

/// What stands for all ranks: the programs of the first ranks of all stages, or that of one rank, which may be known. Of a vast program of many
/// micro-batches those of a few, and of a round more.
pub fn programs(graph: &Graph, plan: &Plan, known: Option<&RankGraph>) -> Result<Known<Vec<RankGraph>>> {
    if let Some(in_part) = stage_programs_in_part(graph, plan)? {
        return Ok(in_part);
    }
    if let Some(programs) = stage_programs(graph, plan)? {
        return Ok(Known::of_all(programs));
    }
    let one = known.cloned().map_or_else(|| program(graph, plan, 0, |_| {}), Ok);
    Ok(Known::of_all(vec![one?]))
}

/// The programs of the first ranks of all stages with few of many micro-batches, and with a round more; none where all are to be written out.
fn stage_programs_in_part(graph: &Graph, plan: &Plan) -> Result<Option<Known<Vec<RankGraph>>>> {
    let Some(stages) = &plan.stages else { return Ok(None) };
    let Some(part) = stages.in_part(graph.order.len(), plan.micro_batches) else { return Ok(None) };
    let (staged, schedule) = in_stages(graph, plan, stages)?;
    let passes = passes::cleaned(plan.passes.without_checkpoints);
    let of = |micro_batches| -> Result<Option<Written>> {
        let program = plan.partition_in_part(&staged.graph, graph.fingerprint(), micro_batches)?;
        let program = program.map(|program| passes::run(&passes, &program, |_| {})).transpose()?;
        Ok(program.map(|program| Written { program, micro_batches }))
    };
    let (Some(few), Some(longer)) = (of(part.few)?, of(part.more)?) else { return Ok(None) };
    if !has_one_loop(&longer) {
        return Ok(None);
    }
    let again = of_whole(plan.micro_batches, &stages.recompute, &longer)?;
    let both = Known { longer, shorter: Some((few, part.left_out)) };
    let programs = all_with_again(&both, &again)?.map(|one| {
        let schedule = schedule_of(stages.schedule, &schedule, one.micro_batches)?;
        run_passes(plan, &shard::stages::stage_graphs(&one.program, &staged.held, &schedule)?)
    })?;
    Ok(Some(programs))
}
