//! What ran beside what a cluster description says of it.
#![allow(clippy::needless_pass_by_value, reason = "arguments are converted from Python's")]

use std::path::PathBuf;

use base::Result;
use cluster::{Cluster, Fit, Rates};
use pyo3::prelude::*;
use refit::{Calls, of_timelines, said};
use serde_json::json;

use crate::{error::to_python, graph::Graph};

/// From the timelines of ranks, those of each run apart, and the graphs whose calls traces of a profiler show: a description that tells them,
/// what was wrong for people, and the same as JSON.
#[pyfunction]
fn refit_description(
    py: Python<'_>,
    description: &str,
    runs: Vec<Vec<PathBuf>>,
    graphs: Vec<PyRef<'_, Graph>>,
) -> PyResult<(String, String, String)> {
    let calls = Calls::of(graphs.iter().map(|graph| &graph.0));
    let refitted = || -> Result<_> {
        let cluster = Cluster::parse(description, "the cluster description")?;
        let load = |paths: &Vec<PathBuf>| timeline::files::load(paths, None, &|_, _| {});
        let timelines = runs.iter().map(load).collect::<Result<Vec<_>>>()?;
        let (observed, refit) = of_timelines(&cluster, &timelines, &calls)?;
        let [measured, before, now] = refit.nanos;
        let kinds = observed.seen.iter().map(|one| {
            json!({
                "what": one.what.family(), "bytes": one.what.bytes(), "calls": one.calls, "measured_ns": one.nanos,
                "predicted_ns": one.predicted(&cluster), "now_ns": one.predicted(&refit.cluster),
            })
        });
        let report = json!({
            "ranks": observed.ranks, "measured_ns": measured, "predicted_ns": before, "now_ns": now,
            "error": refit.error[0], "error_now": refit.error[1],
            "terms": refit.terms, "left_out": observed.left_out, "unknown_ns": observed.unknown,
            "kinds": kinds.collect::<Vec<_>>(),
        });
        Ok((refit.cluster.text(), said(&observed, &refit), report.to_string()))
    };
    py.detach(refitted).map_err(|diagnostic| to_python(py, &diagnostic))
}

/// Coefficients of an operator, by their names in a description, from rows of floating-point operations, bytes, tensors and nanoseconds.
/// The rates of the device: nanoseconds of an operation on hardly any data, bytes a second, floating-point operations a second in the
/// element type of the rows, if that is known, and in the slowest one.
#[pyfunction]
fn fitted(
    rows: Vec<(f64, u64, usize, f64)>,
    rates: (f64, f64, Option<f64>, f64),
) -> Vec<(&'static str, f64)> {
    let (operation_ns, bandwidth, flops, least_flops) = rates;
    let Fit { start_ns, flop_ps, byte_ps, cached_bytes, uncached_byte_ps, tensor_ps, error, .. } =
        Fit::of(rows, Rates { operation_ns, bandwidth, flops, least_flops });
    vec![
        ("start_ns", start_ns),
        ("flop_ps", flop_ps),
        ("byte_ps", byte_ps),
        ("cached_bytes", cached_bytes as f64),
        ("uncached_byte_ps", uncached_byte_ps),
        ("tensor_ps", tensor_ps),
        ("error", error),
    ]
}

/// Coefficients, none negative, with which the columns of some rows come nearest to what is wanted; as few as serve.
#[pyfunction]
fn least_squares(rows: Vec<Vec<f64>>, wanted: Vec<f64>) -> Vec<f64> {
    cluster::least_squares(&rows, &wanted).0
}

/// Adds what belongs to measured descriptions to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(refit_description, module)?)?;
    module.add_function(wrap_pyfunction!(fitted, module)?)?;
    module.add_function(wrap_pyfunction!(least_squares, module)?)
}
