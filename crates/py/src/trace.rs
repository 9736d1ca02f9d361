//! `unisono.trace`: analyses of traces. Options come as JSON, results go out as JSON.
#![allow(clippy::needless_pass_by_value, reason = "arguments are converted from Python's")]

use std::path::PathBuf;

use base::{Code, Diagnostic, Result};
use pyo3::prelude::*;
use serde_json::json;
use timeline::pickle;
use trace::{
    Frames, Mode, Selection, causal,
    diff::{self, Device},
    hang,
    summary::{self, Analysis, Options},
};

use crate::error::to_python;

/// The traces of all ranks.
#[pyclass(module = "unisono._native")]
struct Timeline {
    timeline: timeline::Timeline,
}

fn read<T: serde::de::DeserializeOwned>(text: &str, what: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| Diagnostic::new(Code::UNKNOWN_KEY, format!("cannot read {what}: {error}")))
}

impl Timeline {
    fn frames(&self, compat: bool, include_last_step: bool) -> Frames<'_> {
        let mode = if compat { Mode::Hta } else { Mode::Exact };
        Frames::new(&self.timeline, mode, Selection { include_last_step })
    }

    fn analysed(
        &self,
        analyses: &str,
        options: &str,
        compat: bool,
        include_last_step: bool,
    ) -> Result<String> {
        let analyses: Vec<Analysis> = read(analyses, "the names of analyses")?;
        let options: Options = read(options, "the options")?;
        let object = summary::run(&self.frames(compat, include_last_step), &analyses, &options);
        Ok(json!(object).to_string())
    }

    fn changed(&self, changes: &[String], annotation: &str, instance: usize) -> Result<String> {
        let frames = self.frames(false, false);
        let graph = causal::build(&frames, annotation, instance).ok_or_else(|| {
            Diagnostic::new(Code::TRACE_LACKS, format!("there is no event {instance} called `{annotation}`"))
        })?;
        Ok(json!(causal::what_if(&frames, &graph, changes)?).to_string())
    }
}

#[pymethods]
impl Timeline {
    #[new]
    fn new(py: Python<'_>, paths: Vec<PathBuf>, cache: Option<PathBuf>) -> PyResult<Self> {
        let timeline = py.detach(|| timeline::files::load(&paths, cache.as_deref(), &|_, _| {}));
        timeline.map(|timeline| Self { timeline }).map_err(|diagnostic| to_python(py, &diagnostic))
    }

    fn ranks(&self) -> Vec<u32> {
        self.timeline.ranks.iter().map(|rank| rank.rank).collect()
    }

    fn events(&self) -> usize {
        self.timeline.events()
    }

    fn notes(&self) -> Vec<String> {
        summary::notes(&self.frames(false, false)).iter().map(ToString::to_string).collect()
    }

    fn analyse(
        &self,
        py: Python<'_>,
        analyses: &str,
        options: &str,
        compat: bool,
        include_last_step: bool,
    ) -> PyResult<String> {
        py.detach(|| self.analysed(analyses, options, compat, include_last_step))
            .map_err(|diagnostic| to_python(py, &diagnostic))
    }

    fn what_if(
        &self,
        py: Python<'_>,
        changes: Vec<String>,
        annotation: &str,
        instance: usize,
    ) -> PyResult<String> {
        py.detach(|| self.changed(&changes, annotation, instance))
            .map_err(|diagnostic| to_python(py, &diagnostic))
    }

    fn diff(&self, py: Python<'_>, other: &Self) -> String {
        py.detach(|| {
            let (before, after) = (self.frames(false, false), other.frames(false, false));
            json!(diff::regression(&before, &after)).to_string()
        })
    }

    fn compare(&self, py: Python<'_>, other: &Self, device: &str) -> String {
        let device = match device {
            "CPU" => Device::Cpu,
            "GPU" => Device::Gpu,
            _ => Device::All,
        };
        py.detach(|| json!(diff::compare(&self.timeline, &other.timeline, device)).to_string())
    }
}

/// Compares flight recorders, each a rank and its dump: a pickle of plain data, or JSON.
#[pyfunction]
fn diagnose_hang(py: Python<'_>, dumps: Vec<(u32, Vec<u8>)>) -> PyResult<String> {
    let read = |(rank, data): &(u32, Vec<u8>)| {
        let source = format!("dump of rank {rank}");
        let content = match serde_json::from_slice(data) {
            Ok(content) => content,
            Err(_) => pickle::read(data, &source)?,
        };
        Ok(hang::Dump { rank: *rank, source, content })
    };
    let dumps = dumps
        .iter()
        .map(read)
        .collect::<Result<Vec<_>>>()
        .map_err(|diagnostic| to_python(py, &diagnostic))?;
    Ok(json!(hang::diagnose(&dumps)).to_string())
}

/// Adds what belongs to traces to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Timeline>()?;
    module.add_function(wrap_pyfunction!(diagnose_hang, module)?)
}
