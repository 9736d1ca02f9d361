//! The page of a plan.

use cluster::Cluster;
use pyo3::prelude::*;

use crate::{
    exec::{Program, Recorded},
    graph::{Graph, Plan, limit, run},
};

/// The rank that is shown.
const SHOWN: u32 = 0;

/// The page of a plan for `step`, as HTML, with a step of rank 0's graph after the passes as it is predicted and, with a program and its
/// records, as it was measured. The fields of the figures are those of `figures_json`.
#[pyfunction]
#[pyo3(signature = (step, plan, cluster, memory_limit, rank_graph, measured=None))]
fn plan_page(
    py: Python<'_>,
    step: &Graph,
    plan: &Plan,
    cluster: &str,
    memory_limit: Option<u64>,
    rank_graph: &Graph,
    measured: Option<(Py<Program>, Vec<Recorded>)>,
) -> PyResult<String> {
    run(py, || {
        let cluster = Cluster::parse(cluster, "the cluster description")?;
        let limit = limit(memory_limit, &cluster);
        let summary = plan::summary(&step.0, Some(&rank_graph.0), &plan.0, &cluster, limit)?;
        let predicted = plan::simulate_rank(&rank_graph.0, &plan.0, &cluster, SHOWN)?;
        let mesh = plan.0.mesh();
        let timeline = |(program, records): (Py<Program>, _)| {
            program.get().timeline(records, SHOWN, Some((&rank_graph.0, &mesh)))
        };
        let measured = measured.map(timeline).transpose()?;
        let pipeline = plan::pipeline(&step.0, &plan.0, &cluster)?;
        plan::page(&summary, &rank_graph.0, &predicted, measured.as_ref(), pipeline.as_ref())
    })
}

/// Adds everything to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(plan_page, module)?)
}
