//! The extension module `unisono._native`: conversions between Python and the crates, and no logic of its own.
//!
//! One file per subject; [`error`] is the only place that turns diagnostics into Python exceptions.

mod balance;
mod entries;
mod error;
mod exec;
mod explained;
mod graph;
mod page;
mod refit;
mod rows;
mod trace;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the `unisono` command line and returns its exit status.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| cli::run(arguments))
}

/// The description of a cluster of published figures, such as `h100:8x8`.
#[pyfunction]
fn preset_text(py: Python<'_>, name: &str) -> PyResult<String> {
    let preset = cluster::Cluster::preset(name);
    preset.map(|cluster| cluster.text()).map_err(|diagnostic| error::to_python(py, &diagnostic))
}

/// The names of presets with the compute capability of their devices, where these are GPUs of NVIDIA's.
#[pyfunction]
fn preset_capabilities() -> Vec<(&'static str, Option<(u32, u32)>)> {
    cluster::presets().iter().map(|(name, preset)| (name.as_str(), preset.capability)).collect()
}

/// How many ranks a cluster has, if its description, from a file of that name, says so.
#[pyfunction]
#[pyo3(signature = (description, file = "the cluster description"))]
fn cluster_ranks(py: Python<'_>, description: &str, file: &str) -> PyResult<Option<u32>> {
    let cluster = cluster::Cluster::parse(description, file);
    cluster.map(|cluster| cluster.ranks()).map_err(|diagnostic| error::to_python(py, &diagnostic))
}

/// Nanoseconds of a collective of a kind, by its name, along an axis of a mesh on a cluster.
#[pyfunction]
fn collective_ns(
    py: Python<'_>,
    description: &str,
    mesh: Vec<(String, u32)>,
    axis: &str,
    kind: &str,
    bytes: u64,
) -> PyResult<f64> {
    graph::run(py, || {
        let cluster = cluster::Cluster::parse(description, "the cluster description")?;
        let mesh = graph::mesh_of(mesh);
        let (kind, bytes) = (collective_kind(kind)?, base::Bytes(bytes));
        let collective = ir::Collective { kind, reduction: None, axis, bytes };
        let machine = cost::Machine { cluster: &cluster, mesh: &mesh };
        Ok(cost::collective_time(machine, collective) as f64 / 1e3)
    })
}

/// How many bytes a rank sends in a collective of a kind, by its name, for each of the tensor's.
#[pyfunction]
fn collective_sent(py: Python<'_>, kind: &str, ranks: u32) -> PyResult<f64> {
    graph::run(py, || Ok(cost::sent(collective_kind(kind)?, ranks)))
}

fn collective_kind(name: &str) -> base::Result<ir::CollectiveKind> {
    ir::CollectiveKind::of_text(name)
        .ok_or_else(|| base::Diagnostic::bug(format!("`{name}` is no kind of collective")))
}

/// The number of bytes that a text such as `4GiB` says.
#[pyfunction]
fn parse_bytes(py: Python<'_>, text: &str) -> PyResult<u64> {
    base::Bytes::parse(text).map(|bytes| bytes.0).map_err(|diagnostic| error::to_python(py, &diagnostic))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<entries::Entries>()?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    module.add_function(wrap_pyfunction!(parse_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(preset_text, module)?)?;
    module.add_function(wrap_pyfunction!(preset_capabilities, module)?)?;
    module.add_function(wrap_pyfunction!(cluster_ranks, module)?)?;
    module.add_function(wrap_pyfunction!(collective_ns, module)?)?;
    module.add_function(wrap_pyfunction!(collective_sent, module)?)?;
    balance::register(module)?;
    error::register(module)?;
    exec::register(module)?;
    explained::register(module)?;
    graph::register(module)?;
    page::register(module)?;
    crate::refit::register(module)?;
    rows::register(module)?;
    crate::trace::register(module)
}
