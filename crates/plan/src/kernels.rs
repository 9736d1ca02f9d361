//! Programs whose groups of operations run as kernels, as they are predicted: a kernel is one launch that moves what it reads and makes, and what
//! stays within it takes no memory. The search compares plans without kernels; figures of the plan that it finds are with them.

use base::{Bytes, Result};
use cluster::Cluster;
use cost::Machine;
use ir::{Graph, RankGraph};

use crate::{plan::Plan, prediction::Prediction, step::program};

/// A rank's graph after the passes as the simulator sees it under a plan.
pub fn seen(graph: RankGraph, plan: &Plan) -> Result<RankGraph> {
    if !plan.kernels {
        return Ok(graph);
    }
    let graph = passes::for_kernels(&graph, loops::partition)?;
    Ok(loops::fused(&graph, &loops::partition(&graph)))
}

/// The plan with what it is predicted to take where groups of operations run as kernels. In pipeline stages figures stay those without.
pub fn with_kernels(mut plan: Plan, graph: &Graph, cluster: &Cluster, limit: Option<u64>) -> Result<Plan> {
    let mesh = plan.mesh();
    if mesh.stages() > 1 {
        return Ok(plan);
    }
    plan.kernels = true;
    let program = seen(program(graph, &plan, 0, |_| {})?, &plan)?;
    let found = sim::predict(&program, Machine { cluster, mesh: &mesh })?;
    plan.prediction = plan.prediction.of(&found, limit.map(Bytes), cluster);
    Ok(plan)
}

impl Prediction {
    /// The same with what a simulated rank takes under a memory limit.
    #[must_use]
    pub fn of(self, found: &sim::Prediction, limit: Option<Bytes>, cluster: &Cluster) -> Self {
        let sim::Prediction { time, memory } = found;
        let (alive, buffers) = memory.within(limit);
        let made = Self {
            step_ns: time.step.0,
            compute_ns: time.compute.0,
            communication_ns: time.communication.0,
            exposed_ns: time.exposed.0,
            collectives: time.collectives,
            exposed_copies_ns: time.exposed_copies.0,
            ..self
        };
        made.holding(&alive, buffers).beside(memory.on_host, cluster)
    }
}
