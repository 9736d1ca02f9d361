//! What a plan's programs are expected to do, as a timeline.

use base::{Nanos, Result};
use cluster::Cluster;
use ir::{Graph, RankGraph};
use sim::Machine;
use timeline::{Timeline, step::Figures};

use crate::{
    kernels::seen,
    plan::Plan,
    step::{program, stage_programs},
};

/// The timeline of a step of the program that `rank` runs under `plan`, its graph after the passes, where the rank stands for all.
pub fn simulate_rank(graph: &RankGraph, plan: &Plan, cluster: &Cluster, rank: u32) -> Result<Timeline> {
    sim::simulate_one(&seen(graph.clone(), plan)?, rank, Machine { cluster, mesh: &plan.mesh() })
}

/// Which ranks are simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ranks {
    /// One, which stands for all: the others start each collective when it does.
    One(u32),
    /// All together: who is late keeps the others waiting.
    All,
}

/// A step of one rank of each pipeline stage.
pub struct Pipeline {
    /// What the ranks run: their graphs after the passes.
    pub programs: Vec<RankGraph>,
    /// When they are expected to, all together.
    pub timeline: Timeline,
}

/// A step of the first rank of each stage under a plan with stages; none for a plan without.
pub fn pipeline(graph: &Graph, plan: &Plan, cluster: &Cluster) -> Result<Option<Pipeline>> {
    let Some(programs) = stage_programs(graph, plan)? else { return Ok(None) };
    let programs = programs.into_iter().map(|program| seen(program, plan)).collect::<Result<Vec<_>>>()?;
    let mesh = plan.mesh();
    let machine = Machine { cluster, mesh: &mesh };
    let timeline = sim::simulate_stages(&programs.iter().collect::<Vec<_>>(), machine)?;
    Ok(Some(Pipeline { programs, timeline }))
}

impl Pipeline {
    /// The timeline of `rank` alone, whose stage is `stage`.
    fn of_rank(self, stage: usize, rank: u32) -> Timeline {
        let Timeline { names, mut ranks, notes } = self.timeline;
        let mut shown = ranks.swap_remove(stage);
        shown.rank = rank;
        Timeline { names, ranks: vec![shown], notes }
    }
}

/// The timeline of a step of `rank` under a plan for `graph`: as one that stands for all, or with stages beside one of each other stage.
pub fn simulate_one(graph: &Graph, plan: &Plan, cluster: &Cluster, rank: u32) -> Result<Timeline> {
    let mesh = plan.mesh();
    let local = program(graph, plan, rank, |_| {})?;
    match (pipeline(graph, plan, cluster)?, mesh.stage_axis()) {
        (Some(pipeline), Some((number, _))) => {
            Ok(pipeline.of_rank(mesh.coordinate(rank, number) as usize, rank))
        }
        _ => simulate_rank(&local, plan, cluster, rank),
    }
}

/// What a step takes under a plan on a cluster that it need not have been made for.
pub fn simulated_step(graph: &Graph, plan: &Plan, cluster: &Cluster) -> Result<Nanos> {
    let timeline = match pipeline(graph, plan, cluster)? {
        Some(pipeline) => pipeline.timeline,
        None => simulate_one(graph, plan, cluster, 0)?,
    };
    let steps = timeline.ranks.iter().map(|rank| Figures::of(&timeline, rank).step);
    Ok(steps.max().unwrap_or_default())
}

/// The timeline of a step of `graph` under `plan`, by the programs that the ranks run.
pub fn simulate_plan(graph: &Graph, plan: &Plan, cluster: &Cluster, ranks: Ranks) -> Result<Timeline> {
    let of_rank = |rank| seen(program(graph, plan, rank, |_| {})?, plan);
    let mesh = plan.mesh();
    let machine = Machine { cluster, mesh: &mesh };
    match ranks {
        Ranks::One(rank) => simulate_one(graph, plan, cluster, rank),
        Ranks::All => {
            let graphs = (0..mesh.ranks()).map(of_rank).collect::<Result<Vec<RankGraph>>>()?;
            sim::simulate(&graphs.iter().collect::<Vec<_>>(), machine)
        }
    }
}
