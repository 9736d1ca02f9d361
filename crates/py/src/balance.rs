//! `unisono.data`: samplers that plan ahead on a thread of their own. Settings come as JSON, arrays as little-endian bytes,
//! plans go out as MessagePack.
#![allow(clippy::needless_pass_by_value, reason = "arguments are converted from Python's")]

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, sync_channel},
    },
    time::Instant,
};

use balance::{Data, Measurement, Planner, Sampler, State, Stream, StreamPlanner, Window};
use base::{Code, Diagnostic, Result};
use pyo3::{prelude::*, types::PyBytes};
use serde::Serialize;

use crate::error::to_python;

/// Windows planned ahead of the one in use.
const AHEAD: usize = 2;

fn raise(py: Python<'_>) -> impl Fn(Box<Diagnostic>) -> PyErr {
    move |diagnostic| to_python(py, &diagnostic)
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes"))).collect()
}

fn data(lengths: &[Vec<u8>], loss_tokens: Option<&[u8]>, sources: Option<&[u8]>) -> Data {
    Data {
        lengths: lengths.iter().map(|phase| numbers(phase)).collect(),
        loss_tokens: loss_tokens.map(numbers).unwrap_or_default(),
        sources: sources.map(numbers).unwrap_or_default().into_iter().map(|source| source as u32).collect(),
    }
}

fn read<T: serde::de::DeserializeOwned>(text: &str, what: &str, code: Code) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Diagnostic::new(code, format!("cannot read {what}: {error}")))
}

fn planner(settings: &str, rank: usize) -> Result<Planner> {
    Planner::new(balance::read_settings(settings)?, rank)
}

fn message<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| Diagnostic::bug(format!("cannot encode a plan: {error}")))
}

/// A window as bytes, and the seconds that planning it took.
type Planned = Result<(Vec<u8>, f64)>;

/// A data set's sampler.
#[pyclass(module = "unisono._native")]
struct BalanceSampler {
    sampler: Sampler,
    windows: Mutex<Option<Receiver<Planned>>>,
}

#[pymethods]
impl BalanceSampler {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "one message from one place in Python")]
    fn new(
        py: Python<'_>,
        settings: &str,
        stream: &str,
        drop_last: bool,
        rank: usize,
        lengths: Vec<Vec<u8>>,
        loss_tokens: Option<Vec<u8>>,
        sources: Option<Vec<u8>>,
    ) -> PyResult<Self> {
        let make = || {
            let stream: Stream = read(stream, "the settings of a stream", Code::BAD_PROBLEM)?;
            let data = Arc::new(data(&lengths, loss_tokens.as_deref(), sources.as_deref()));
            Sampler::new(data, planner(settings, rank)?, stream, drop_last)
        };
        let sampler = py.detach(make).map_err(raise(py))?;
        Ok(Self { sampler, windows: Mutex::new(None) })
    }

    /// Where the next window starts, as JSON.
    fn state(&self) -> String {
        serde_json::to_string(self.sampler.state()).expect("a state holds numbers only")
    }

    /// Another sampler of the same data, where this one stands.
    fn fork(&self) -> Self {
        Self { sampler: self.sampler.clone(), windows: Mutex::new(None) }
    }

    fn steps_per_epoch(&self) -> u64 {
        self.sampler.steps_per_epoch()
    }

    fn set_epoch(&mut self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.stop();
        py.detach(|| self.sampler.set_epoch(epoch)).map_err(raise(py))
    }

    /// Goes to a state that `state` gave, on any number of ranks.
    fn resume(&mut self, py: Python<'_>, state: &str) -> PyResult<()> {
        let state: State = read(state, "the resume state", Code::FOREIGN_STATE).map_err(raise(py))?;
        self.stop();
        py.detach(|| self.sampler.resume(state)).map_err(raise(py))
    }

    /// The next window and the seconds that planning it took. Planned ahead, on another thread.
    fn next_window<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, f64)> {
        let planned = py.detach(|| {
            let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
            let receiver = windows.get_or_insert_with(|| plan_ahead(self.sampler.clone()));
            receiver.recv().unwrap_or_else(|_| Err(Diagnostic::bug("the planning thread ended early")))
        });
        let (bytes, seconds) = planned.map_err(raise(py))?;
        Ok((PyBytes::new(py, &bytes), seconds))
    }
}

impl BalanceSampler {
    /// Forgets what was planned ahead; the thread ends when it next tries to hand over a window.
    fn stop(&self) {
        *self.windows.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Plans windows until one is empty, one fails, or nobody takes them.
fn plan_ahead(mut sampler: Sampler) -> Receiver<Planned> {
    let (sender, receiver) = sync_channel(AHEAD);
    std::thread::spawn(move || {
        loop {
            let start = Instant::now();
            let window: Result<Window> = sampler.next_window();
            let seconds = start.elapsed().as_secs_f64();
            let last = window.as_ref().map_or(true, |window| window.steps.is_empty());
            let planned = window.and_then(|window| Ok((message(&window)?, seconds)));
            if sender.send(planned).is_err() || last {
                break;
            }
        }
    });
    receiver
}

/// A stream's planner: samples become known window by window.
#[pyclass(module = "unisono._native")]
struct BalanceStream(StreamPlanner);

#[pymethods]
impl BalanceStream {
    #[new]
    fn new(py: Python<'_>, settings: &str, stream: &str, rank: usize) -> PyResult<Self> {
        let make = || {
            let stream: Stream = read(stream, "the settings of a stream", Code::BAD_PROBLEM)?;
            StreamPlanner::new(planner(settings, rank)?, stream)
        };
        make().map(Self).map_err(raise(py))
    }

    /// Takes in samples and returns the planned steps that come out.
    fn push<'py>(
        &mut self,
        py: Python<'py>,
        lengths: Vec<Vec<u8>>,
        loss_tokens: Option<Vec<u8>>,
        sources: Option<Vec<u8>>,
        last: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let plan = || {
            let fresh = data(&lengths, loss_tokens.as_deref(), sources.as_deref());
            message(&self.0.push(&fresh, last)?)
        };
        let bytes = py.detach(plan).map_err(raise(py))?;
        Ok(PyBytes::new(py, &bytes))
    }
}

/// Solves one problem, as the command does: JSON in, JSON out.
#[pyfunction]
fn balance_solve(py: Python<'_>, problem: &str) -> PyResult<String> {
    let solve = || {
        let problem = balance::read_problem(problem, "problem")?;
        let start = Instant::now();
        let plan = balance::solve(&problem)?;
        Ok(balance::plan_json(&plan, start.elapsed().as_secs_f64() * 1e3))
    };
    py.detach(solve).map_err(raise(py))
}

/// Fits seconds to (tokens, squares, samples, seconds) rows: (linear, quadratic, constant, share of variance explained).
#[pyfunction]
fn balance_fit(py: Python<'_>, rows: Vec<(f64, f64, f64, f64)>) -> PyResult<(f64, f64, f64, f64)> {
    let rows = rows.into_iter();
    let rows: Vec<Measurement> = rows
        .map(|(tokens, squares, samples, seconds)| Measurement { tokens, squares, samples, seconds })
        .collect();
    let fit = balance::fit(&rows).map_err(raise(py))?;
    Ok((fit.linear, fit.quadratic, fit.constant, fit.r_squared))
}

/// Adds what belongs to data loading to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<BalanceSampler>()?;
    module.add_class::<BalanceStream>()?;
    module.add_function(wrap_pyfunction!(balance_solve, module)?)?;
    module.add_function(wrap_pyfunction!(balance_fit, module)?)
}
