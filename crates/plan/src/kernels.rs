//! Programs whose groups of operations run as kernels, as they are predicted: a kernel is one launch that moves what it reads and makes, and what
//! stays within it takes no memory. The search compares plans without kernels; figures of the plan that it finds are with them.

use base::{Bytes, Result};
use cluster::Cluster;
use cost::Machine;
use ir::RankGraph;
use loops::Rounding;
use passes::WideProducts;

use crate::{
    beyond::Known,
    plan::{Plan, Prediction},
    taken_apart::predicted_of,
};

/// A rank's graph after the passes as the simulator sees it under a plan.
pub fn seen(graph: RankGraph, plan: &Plan) -> Result<RankGraph> {
    if !plan.kernels {
        return Ok(graph);
    }
    let partition = |graph: &_| loops::partition(graph, Rounding::AtStores);
    let graph = passes::for_kernels(&graph, partition)?;
    let graph = passes::run(&[Box::new(WideProducts { narrow: plan.narrow.clone() })], &graph, |_| {})?;
    Ok(loops::fused(&graph, &partition(&graph)))
}

/// The same of several.
pub fn all_seen(graphs: &[RankGraph], plan: &Plan) -> Result<Vec<RankGraph>> {
    graphs.iter().map(|graph| seen(graph.clone(), plan)).collect()
}

/// The plan with what it is predicted to take where groups of operations run as kernels; `programs` are what the first ranks of its stages run, or what
/// one rank does that stands for all.
pub fn with_kernels(
    mut plan: Plan,
    programs: &Known<Vec<RankGraph>>,
    cluster: &Cluster,
    limit: Option<u64>,
) -> Result<Plan> {
    let mesh = plan.mesh();
    let machine = Machine { cluster, mesh: &mesh };
    let programs = programs.map(|of| all_seen(of, &plan))?;
    if let Some(stages) = &mut plan.stages {
        let (with_kernels, of_each) = predicted_of(&programs, machine, limit)?;
        let Prediction { recomputed_ns, model_ns, bound_ns, .. } = plan.prediction;
        plan.prediction = Prediction { recomputed_ns, model_ns, bound_ns, ..with_kernels };
        stages.predicted = of_each;
    } else if let [program] = &programs.longer[..] {
        plan.prediction = plan.prediction.of(&sim::predict(program, machine)?, limit.map(Bytes), cluster);
    }
    Ok(plan)
}
