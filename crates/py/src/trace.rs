//! `unisono.trace`: analyses of traces. Options come as JSON, results go out as JSON.
#![allow(clippy::needless_pass_by_value, reason = "arguments are converted from Python's")]

use std::{
    io::{BufWriter, Write},
    path::PathBuf,
};

use base::{Code, Diagnostic, Result};
use pyo3::prelude::*;
use serde_json::json;
use timeline::{
    chrome::{Extras, Filter, copy},
    pickle,
};
use trace::{
    Frames, Mode, Selection, causal,
    diff::{self, Device, Part, Spelling},
    hang, memory, overlay,
    query::{self, Query},
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

    /// A table of records that are too many for a summary, as JSON.
    fn table(
        &self,
        py: Python<'_>,
        what: &str,
        query: &str,
        index: u32,
        compat: bool,
        include_last_step: bool,
    ) -> PyResult<String> {
        let table = || -> Result<String> {
            let query: Query = read(query, "the query")?;
            let frames = self.frames(compat, include_last_step);
            Ok(match what {
                "events" => json!(query::events(&frames, &query)).to_string(),
                "stack" => json!(query::stack(&frames, query.rank, index)).to_string(),
                "queue_length" => json!(query::queue_lengths(&frames)).to_string(),
                "memory_bw" => json!(query::bandwidths(&frames)).to_string(),
                other => return Err(Diagnostic::bug(format!("there is no table `{other}`"))),
            })
        };
        py.detach(table).map_err(|diagnostic| to_python(py, &diagnostic))
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

    /// `control` and `test` are rank and iteration.
    fn compare(
        &self,
        py: Python<'_>,
        other: &Self,
        device: &str,
        control: (Option<u32>, Option<i64>),
        test: (Option<u32>, Option<i64>),
        short_names: bool,
    ) -> String {
        let part = |(rank, iteration)| Part { rank, iteration };
        let (control, test) = (part(control), part(test));
        let spelling = if short_names { Spelling::Short } else { Spelling::Whole };
        let device = match device {
            "CPU" => Device::Cpu,
            "GPU" => Device::Gpu,
            _ => Device::All,
        };
        py.detach(|| {
            let table = diff::compare((&self.timeline, control), (&other.timeline, test), device, spelling);
            json!({"ops": diff::ops_diff(&table), "table": table}).to_string()
        })
    }

    /// Writes a part of the traces for a trace viewer, with what `draw` names over the events.
    #[pyo3(signature = (file, rank, window, name, counters, path))]
    #[allow(clippy::too_many_arguments, reason = "the border to Python")]
    fn export(
        &self,
        py: Python<'_>,
        file: PathBuf,
        rank: Option<u32>,
        window: Option<(f64, f64)>,
        name: String,
        counters: bool,
        path: Option<(String, usize)>,
    ) -> PyResult<()> {
        let export = || {
            let frames = self.frames(false, false);
            let nanos = |micros: f64| frames.origin.saturating_add((micros * 1000.0).round() as i64);
            let filter = Filter { rank, window: window.map(|(from, to)| (nanos(from), nanos(to))), name };
            let mut extras = Extras::default();
            if counters {
                extras.counters = overlay::counters(&frames);
            }
            if let Some((annotation, instance)) = path {
                overlay::add_path(&frames, &annotation, instance, &mut extras);
            }
            let written = std::fs::File::create(&file).map(BufWriter::new).and_then(|mut out| {
                copy(&mut out, &self.timeline, &filter, &extras)?;
                out.flush()
            });
            written.map_err(|error| {
                Diagnostic::new(Code::UNREADABLE_FILE, "the trace cannot be written")
                    .at_line(file.display().to_string(), 0, 0)
                    .because(error.to_string())
            })
        };
        py.detach(export).map_err(|diagnostic| to_python(py, &diagnostic))
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

/// Sums up the profiler's memory timeline by category.
#[pyfunction]
fn memory_timeline(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    let read = || -> Result<String> {
        let bad = |why: String| {
            Diagnostic::new(Code::NOT_A_TRACE, "this is no memory timeline")
                .at_line(path.display().to_string(), 0, 0)
                .because(why)
        };
        let source = std::io::BufReader::new(timeline::files::open(&path)?);
        let raw = serde_json::from_reader(source).map_err(|error| bad(error.to_string()))?;
        let curve = memory::categories(&raw)
            .ok_or_else(|| bad("an entry is not `[time, action, bytes, category]`".to_owned()))?;
        Ok(json!(curve).to_string())
    };
    py.detach(read).map_err(|diagnostic| to_python(py, &diagnostic))
}

/// Adds what belongs to traces to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Timeline>()?;
    module.add_function(wrap_pyfunction!(memory_timeline, module)?)?;
    module.add_function(wrap_pyfunction!(diagnose_hang, module)?)
}
