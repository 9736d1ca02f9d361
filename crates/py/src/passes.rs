//! Passes: a graph in, the changed graph and what was done out.

use ::passes::{Direct, Outcome, Settings, pipeline, run};
use base::Bytes;
use ir::Graph;
use pyo3::{prelude::*, types::PyBytes};

use crate::error::to_python;

/// The changed graph, and of each pass its name and the nodes before and after it.
type Changed<'py> = (Bound<'py, PyBytes>, Vec<(&'static str, usize, usize)>);

/// Which collectives are direct, as a plan's text has it.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct PyDirect {
    ranks: u32,
    all_reduce: u64,
    all_gather: u64,
    reduce_scatter: u64,
}

impl From<PyDirect> for Direct {
    fn from(direct: PyDirect) -> Self {
        Self {
            ranks: direct.ranks,
            all_reduce: Bytes(direct.all_reduce),
            all_gather: Bytes(direct.all_gather),
            reduce_scatter: Bytes(direct.reduce_scatter),
        }
    }
}

/// Runs the pipeline of passes; limits are in bytes.
#[pyfunction]
#[pyo3(signature = (graph, bucket_limit=None, prefetch_limit=None, regather_from=None, direct=None))]
fn run_passes<'py>(
    py: Python<'py>,
    graph: &[u8],
    bucket_limit: Option<u64>,
    prefetch_limit: Option<u64>,
    regather_from: Option<u64>,
    direct: Option<PyDirect>,
) -> PyResult<Changed<'py>> {
    let default = Settings::default();
    let settings = Settings {
        bucket_limit: bucket_limit.map_or(default.bucket_limit, Bytes),
        prefetch_limit: prefetch_limit.map_or(default.prefetch_limit, Bytes),
        regather_from: regather_from.map(Bytes),
        direct: direct.map(Direct::from),
    };
    let work = || {
        let mut done = Vec::new();
        let observe =
            |outcome: &Outcome| done.push((outcome.pass, outcome.nodes_before, outcome.nodes_after));
        let changed = run(&pipeline(settings), &Graph::from_bytes(graph)?, observe)?;
        Ok((changed.to_bytes(), done))
    };
    let (bytes, done) =
        py.detach(work).map_err(|diagnostic: Box<base::Diagnostic>| to_python(py, &diagnostic))?;
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
