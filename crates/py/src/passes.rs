//! Passes: a graph in, the changed graph and what was done out.

use ::passes::{Outcome, Settings, pipeline, run};
use base::{Code, Diagnostic};
use ir::Graph;
use pyo3::{prelude::*, types::PyBytes};

use crate::error::to_python;

/// The changed graph, and of each pass its name and the nodes before and after it.
type Changed<'py> = (Bound<'py, PyBytes>, Vec<(&'static str, usize, usize)>);

/// Runs the pipeline of passes by settings as MessagePack, those of a plan; what they leave out is as by default.
#[pyfunction]
#[pyo3(signature = (graph, settings=None))]
fn run_passes<'py>(py: Python<'py>, graph: &[u8], settings: Option<&[u8]>) -> PyResult<Changed<'py>> {
    let read = |bytes| {
        rmp_serde::from_slice(bytes).map_err(|error| {
            let message = format!("settings of passes that cannot be used: {error}");
            to_python(py, &Diagnostic::new(Code::BAD_TEXT, message))
        })
    };
    let settings: Settings = settings.map_or_else(|| Ok(Settings::default()), read)?;
    let work = || {
        let mut done = Vec::new();
        let observe =
            |outcome: &Outcome| done.push((outcome.pass, outcome.nodes_before, outcome.nodes_after));
        let changed = run(&pipeline(&settings), &Graph::from_bytes(graph)?, observe)?;
        Ok((changed.to_bytes(), done))
    };
    let (bytes, done) = py.detach(work).map_err(|diagnostic: Box<Diagnostic>| to_python(py, &diagnostic))?;
    Ok((PyBytes::new(py, &bytes), done))
}

/// What is equal for ranks that issue the same collectives in the same order, as 32 hexadecimal digits.
#[pyfunction]
fn issue_order(py: Python<'_>, graph: &[u8]) -> PyResult<String> {
    let graph = Graph::from_bytes(graph).map_err(|diagnostic| to_python(py, &diagnostic))?;
    Ok(::passes::issue_order(&graph).to_string())
}

/// Adds what belongs to passes to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(issue_order, module)?)?;
    module.add_function(wrap_pyfunction!(run_passes, module)?)
}
