//! Questions about a plan that are answered by planning again.

use std::convert::Infallible;

use base::{Code, Diagnostic, Result};
use cluster::Cluster;
use plan::{Alternative, PlanSettings};
use pyo3::prelude::*;

use crate::graph::{Graph, Plan, run, settings_of, unpacked};

/// Why a plan is not another one, for people and as JSON; `settings` and `pins` are MessagePack. The other one is what `other` names, or what
/// keeps `pins`.
#[pyfunction]
#[pyo3(signature = (step, plan, cluster, settings, other, pins=None))]
fn why_not(
    py: Python<'_>,
    step: &Graph,
    plan: &Plan,
    cluster: &str,
    settings: &[u8],
    other: &str,
    pins: Option<&[u8]>,
) -> PyResult<(String, String)> {
    run(py, || {
        let (cluster, settings) = planner(cluster, settings)?;
        let alternative = match pins {
            Some(pins) => Alternative::Pins(unpacked(pins, Code::BAD_PIN)?),
            None => other.parse().unwrap_or_else(|never: Infallible| match never {}),
        };
        let answer = plan::why_not(&step.0, &plan.0, &cluster, &settings, &alternative)?;
        Ok((answer.to_string(), json(&answer)?))
    })
}

/// What more memory, faster links and a faster device would give, as JSON.
#[pyfunction]
fn sensitivity_json(
    py: Python<'_>,
    step: &Graph,
    plan: &Plan,
    cluster: &str,
    settings: &[u8],
) -> PyResult<String> {
    run(py, || {
        let (cluster, settings) = planner(cluster, settings)?;
        json(&plan::sensitivities(&step.0, &plan.0, &cluster, &settings)?)
    })
}

fn planner(cluster: &str, settings: &[u8]) -> Result<(Cluster, PlanSettings)> {
    Ok((Cluster::parse(cluster, "the cluster description")?, settings_of(settings)?))
}

fn json(of: &impl serde::Serialize) -> Result<String> {
    serde_json::to_string(of).map_err(|error| Diagnostic::bug(error.to_string()))
}

/// Adds everything to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(why_not, module)?)?;
    module.add_function(wrap_pyfunction!(sensitivity_json, module)?)
}
