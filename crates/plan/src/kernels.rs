//! Programs whose groups of operations run as kernels, as they are predicted: a kernel is one launch that moves what it reads and makes, and what
//! stays within it takes no memory. The search compares plans without kernels; figures of the plan that it finds are with them.

use base::{Bytes, Result};
use cluster::Cluster;
use cost::Machine;
use ir::RankGraph;

use crate::plan::Plan;

/// A rank's graph after the passes as the simulator sees it under a plan.
pub fn seen(graph: RankGraph, plan: &Plan) -> Result<RankGraph> {
    if !plan.kernels {
        return Ok(graph);
    }
    let graph = passes::for_kernels(&graph, loops::partition)?;
    Ok(loops::fused(&graph, &loops::partition(&graph)))
}

/// The plan with what it is predicted to take where groups of operations run as kernels; `program` is what a rank runs under it, which stands for all.
pub fn with_kernels(
    mut plan: Plan,
    program: RankGraph,
    cluster: &Cluster,
    limit: Option<u64>,
) -> Result<Plan> {
    let mesh = plan.mesh();
    plan.kernels = true;
    let program = seen(program, &plan)?;
    let found = sim::predict(&program, Machine { cluster, mesh: &mesh })?;
    plan.prediction = plan.prediction.of(&found, limit.map(Bytes), cluster);
    Ok(plan)
}
