//! Graphs and plans: text and MessagePack in and out.

use base::Result;
use cluster::Cluster;
use driver::PlanSettings;
use ir::Graph;
use plan::Plan;
use pyo3::{prelude::*, types::PyBytes};

use crate::error::to_python;

/// Runs `work` without the interpreter lock and turns a diagnostic into an exception.
fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|diagnostic| to_python(py, &diagnostic))
}

/// The text form of a graph.
#[pyfunction]
fn graph_text(py: Python<'_>, graph: &[u8]) -> PyResult<String> {
    run(py, || Ok(Graph::from_bytes(graph)?.to_string()))
}

/// The fingerprint of a graph.
#[pyfunction]
fn graph_fingerprint(py: Python<'_>, graph: &[u8]) -> PyResult<String> {
    run(py, || Ok(Graph::from_bytes(graph)?.fingerprint().to_string()))
}

/// The text form of the plan of a graph on a cluster; `settings` is MessagePack of the planner's settings.
#[pyfunction]
fn plan_graph(py: Python<'_>, graph: &[u8], cluster: &str, settings: &[u8]) -> PyResult<String> {
    run(py, || {
        let graph = Graph::from_bytes(graph)?;
        let cluster = Cluster::parse(cluster, "the cluster description")?;
        let settings: PlanSettings = rmp_serde::from_slice(settings).map_err(|error| {
            base::Diagnostic::new(base::Code::BAD_PIN, format!("settings that cannot be used: {error}"))
                .hint("pins map name patterns to placements per axis: {\"params.*\": {\"a\": \"shard(0)\"}}")
        })?;
        Ok(driver::plan_graph(&graph, &cluster, &settings)?.text())
    })
}

/// What a plan does, for people.
#[pyfunction]
fn explain_plan(py: Python<'_>, graph: &[u8], plan: &str) -> PyResult<String> {
    run(py, || driver::explain_plan(&Graph::from_bytes(graph)?, &Plan::parse(plan, "the plan")?))
}

/// The graph that a rank runs under a plan.
#[pyfunction]
fn rank_graph<'py>(py: Python<'py>, graph: &[u8], plan: &str, rank: u32) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = run(py, || {
        let plan = Plan::parse(plan, "the plan")?;
        Ok(driver::rank_graph(&Graph::from_bytes(graph)?, &plan, rank)?.to_bytes())
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// The timeline of a step of a rank's graph after the passes as the simulator expects it, as JSON that trace viewers open. The rank stands
/// for all; `plan` says on which mesh it is.
#[pyfunction]
fn simulated_json(py: Python<'_>, graph: &[u8], plan: &str, cluster: &str, rank: u32) -> PyResult<String> {
    run(py, || {
        let plan = Plan::parse(plan, "the plan")?;
        let cluster = Cluster::parse(cluster, "the cluster description")?;
        let timeline = driver::simulate_rank(&Graph::from_bytes(graph)?, &plan, &cluster, rank)?;
        timeline::chrome::text(&timeline).map_err(|error| base::Diagnostic::bug(error.to_string()))
    })
}

/// What identifies a plan.
#[pyfunction]
fn plan_fingerprint(py: Python<'_>, plan: &str) -> PyResult<String> {
    run(py, || Ok(Plan::parse(plan, "the plan")?.fingerprint().to_string()))
}

/// What a plan says, as MessagePack.
#[pyfunction]
fn plan_content<'py>(py: Python<'py>, plan: &str) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = run(py, || {
        let plan = Plan::parse(plan, "the plan")?;
        rmp_serde::to_vec_named(&plan).map_err(|error| base::Diagnostic::bug(error.to_string()))
    })?;
    Ok(PyBytes::new(py, &bytes))
}

/// What [`exam`] gives: the canonical graph, the questions, and the claims with whether they are asked.
type Exam<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Vec<(String, String, bool)>);

/// Everything that the operation table claims about the operations of a graph: its canonical form, MessagePack of the questions, and
/// each claim with whether it is among them.
#[pyfunction]
fn exam<'py>(py: Python<'py>, graph: &[u8], ranks: u32) -> PyResult<Exam<'py>> {
    let (canonical, questions, claims) = run(py, || {
        let graph = Graph::from_bytes(graph)?;
        let questions = rmp_serde::to_vec_named(&driver::exam(&graph, ranks)?);
        let questions = questions.map_err(|error| base::Diagnostic::bug(error.to_string()))?;
        Ok((driver::canonical_graph(&graph).to_bytes(), questions, driver::claims(&graph, ranks)))
    })?;
    Ok((PyBytes::new(py, &canonical), PyBytes::new(py, &questions), claims))
}

/// The memory that is alive while each node of a rank's graph runs: `(operator, bytes by category)`, beside the names of categories.
#[pyfunction]
fn memory_over_time(py: Python<'_>, graph: &[u8]) -> PyResult<Memory> {
    let moments = run(py, || {
        let graph = Graph::from_bytes(graph)?;
        let moment = |moment: &memory::Moment| {
            (graph.op_name(moment.node).to_owned(), moment.alive.iter().map(|bytes| bytes.0).collect())
        };
        Ok(memory::over_time(&graph).iter().map(moment).collect())
    })?;
    Ok((memory::Category::ALL.map(memory::Category::name).to_vec(), moments))
}

/// Names of categories, and for each node its operator and the bytes of each.
type Memory = (Vec<&'static str>, Vec<(String, Vec<u64>)>);

/// What a line of the user's code issues or waits for, and the line that issues it.
#[pyfunction]
#[pyo3(signature = (graph, place=None))]
fn collective_at(
    py: Python<'_>,
    graph: &[u8],
    place: Option<&str>,
) -> PyResult<Option<(String, Option<String>)>> {
    run(py, || Ok(driver::collective_at(&Graph::from_bytes(graph)?, place)))
}

/// Adds what belongs to graphs and plans to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(graph_text, module)?)?;
    module.add_function(wrap_pyfunction!(graph_fingerprint, module)?)?;
    module.add_function(wrap_pyfunction!(plan_graph, module)?)?;
    module.add_function(wrap_pyfunction!(collective_at, module)?)?;
    module.add_function(wrap_pyfunction!(explain_plan, module)?)?;
    module.add_function(wrap_pyfunction!(rank_graph, module)?)?;
    module.add_function(wrap_pyfunction!(plan_content, module)?)?;
    module.add_function(wrap_pyfunction!(exam, module)?)?;
    module.add_function(wrap_pyfunction!(simulated_json, module)?)?;
    module.add_function(wrap_pyfunction!(memory_over_time, module)?)?;
    module.add_function(wrap_pyfunction!(plan_fingerprint, module)?)
}
