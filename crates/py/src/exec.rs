//! The executor in Python: programs from MessagePack, tensors as capsules of `AtenTensorHandle`.
#![allow(unsafe_code, reason = "capsules hold raw tensor handles")]
#![allow(clippy::needless_pass_by_value, reason = "arguments arrive from Python by value")]

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, TryLockError},
};

use base::{Bytes, Code, Diagnostic, Nanos, Result};
use exec::{Abilities, ProgramSpec, Route};
use pyo3::{
    exceptions::PyRuntimeError,
    ffi,
    prelude::*,
    types::{PyBytes, PyList, PyTuple},
};
use timeline::{Timeline, chrome};
use torch_sys::{Device, Failure, Library, Schema, Tensor};

use crate::{
    error::to_python,
    graph::{Graph, Slower, mesh_of, rounding, run, without},
};

/// Finds the libtorch that lies in `directory` and that this process runs; `release` is PyTorch's version, for messages.
#[pyfunction]
fn load_torch(py: Python<'_>, directory: PathBuf, release: &str) -> PyResult<(u8, u8)> {
    // SAFETY: the caller is `unisono._executor`, which takes the directory from the imported torch, and schemas from it.
    let library = unsafe { Library::load(&directory, release) }.map_err(|d| to_python(py, &d))?;
    let version = library.version();
    Ok((version.major, version.minor))
}

/// How many of libtorch's functions are looked up, and which of them this release lacks.
#[pyfunction]
fn torch_functions(py: Python<'_>) -> PyResult<(usize, Vec<&'static str>)> {
    Ok(library(py)?.functions())
}

/// The C types of an operation's own function by PyTorch's rule, `None` where the executor would not call one; and whether this PyTorch has it for
/// devices of `kind`.
#[pyfunction]
fn torch_function_of(py: Python<'_>, schema: &str, kind: &str) -> PyResult<(Option<Vec<String>>, bool)> {
    let library = library(py)?;
    let schema = Schema::parse(schema).map_err(|d| to_python(py, &d))?;
    Ok((torch_sys::shim::signature(&schema), library.has_function(&schema, kind)))
}

/// How kernels run on this machine, and whether it forbids executable memory.
#[pyfunction]
fn kernel_tier(py: Python<'_>) -> PyResult<(&'static str, bool)> {
    run(py, exec::kernel_tier)
}

/// The bytes of large results in memory that is to be kept, and of what is kept for the next ones.
#[pyfunction]
fn kept_bytes() -> (u64, u64) {
    torch_sys::kept_bytes()
}

/// A context in which no memory of large results is kept, so that PyTorch's allocator sees all that a step takes.
#[pyclass(module = "unisono._native")]
struct PausedKeeping(Option<torch_sys::Paused>);

#[pymethods]
impl PausedKeeping {
    #[new]
    fn new() -> Self {
        Self(Some(torch_sys::Paused::begin()))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&mut self, _error: &Bound<'_, PyTuple>) {
        self.0 = None;
    }
}

fn device_of((kind, index): (String, Option<i32>)) -> Device {
    Device { kind, index }
}

fn library(py: Python<'_>) -> PyResult<&'static Library> {
    Library::get().ok_or_else(|| {
        let diagnostic = Diagnostic::new(Code::TORCH_NOT_LOADED, "libtorch has not been loaded");
        to_python(py, &diagnostic)
    })
}

/// An instruction of a program with its start and its duration in nanoseconds.
pub type Recorded = (u32, i64, i64);

/// The libraries of CUDA for one device, on which kernels run.
#[pyclass(frozen, module = "unisono._native")]
struct CudaDevice {
    device: Arc<cuda::Device>,
    /// PyTorch's numbers of its type and of itself.
    numbers: (i32, i32),
}

#[pymethods]
impl CudaDevice {
    /// The device of PyTorch's name and number. `compiler` is NVRTC, which rests on the libraries `before`; `architecture` is such as `sm_90`.
    #[new]
    fn new(
        py: Python<'_>,
        kind: String,
        number: i32,
        architecture: &str,
        compiler: PathBuf,
        before: Vec<PathBuf>,
        driver: PathBuf,
    ) -> PyResult<Self> {
        let (kind, _) = library(py)?
            .device_numbers(&Device { kind, index: Some(number) })
            .map_err(|failure| PyRuntimeError::new_err(failure.0))?;
        let open = || {
            // SAFETY: the caller is `unisono._cuda`, which names files of NVIDIA's by their own names.
            unsafe {
                let compiler = cuda::Compiler::load(&compiler, &before)?;
                cuda::Device::open(&driver, number, architecture, compiler)
            }
        };
        let device = py.detach(open).map_err(|d| to_python(py, &d))?;
        Ok(Self { device: Arc::new(device), numbers: (kind, number) })
    }
}

impl CudaDevice {
    /// The kernels of a program and what it draws, compiled; none where it has neither.
    fn kernels(&self, spec: &ProgramSpec, draws: &[cuda::Draw]) -> Result<Option<exec::DeviceKernels>> {
        if spec.kernels.is_empty() && draws.is_empty() {
            return Ok(None);
        }
        let module = cuda::Module::with_draws(&self.device, &spec.kernels, draws, cuda::Width::Wide)?;
        Ok(Some(exec::DeviceKernels { module: Arc::new(module), numbers: self.numbers }))
    }
}

/// The program of CUDA C of kernels in their text form, and for each why it has none.
#[pyfunction]
fn cuda_source(py: Python<'_>, kernels: Vec<String>) -> PyResult<(String, Vec<Option<String>>)> {
    run(py, || {
        let kernels = kernels.iter().map(|text| text.parse()).collect::<Result<Vec<loops::Kernel>>>()?;
        let source = cuda::Source::of(&kernels, cuda::Width::Wide)?;
        Ok((source.text, source.kernels.into_iter().map(std::result::Result::err).collect()))
    })
}

/// Compiles a program of CUDA C: for each of its functions registers, bytes spilled, and bytes of shared memory.
#[pyfunction]
fn compile_cuda(
    py: Python<'_>,
    text: &str,
    architecture: &str,
    compiler: PathBuf,
    before: Vec<PathBuf>,
) -> PyResult<Vec<(String, u32, u32, u32)>> {
    run(py, || {
        // SAFETY: as above.
        let image = unsafe { cuda::Compiler::load(&compiler, &before)? }.compile(text, architecture)?;
        let resources = image.resources.into_iter();
        Ok(resources.map(|one| (one.function, one.registers, one.spilled, one.shared)).collect())
    })
}

/// A lowered program: what `Executor` runs, and where its kernels do.
#[pyclass(frozen, module = "unisono._native")]
pub struct Program(exec::Program, Option<exec::DeviceKernels>);

#[pymethods]
impl Program {
    /// Lowers a `ProgramSpec` in MessagePack for `device`, which is a kind and perhaps an index. With `schema_of`, which gives PyTorch's schema of an
    /// operator or `None`, it is rewritten first, as graphs are.
    #[new]
    #[pyo3(signature = (spec, device, schema_of=None))]
    fn new(
        py: Python<'_>,
        spec: &[u8],
        device: (String, Option<i32>),
        schema_of: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut abilities = Abilities::of(library(py)?.version(), device_of(device));
        let spec: ProgramSpec = rmp_serde::from_slice(spec).map_err(|error| {
            let diagnostic =
                Diagnostic::new(Code::BAD_MESSAGE, "cannot decode a program").because(error.to_string());
            to_python(py, &diagnostic)
        })?;
        let Some(schema_of) = schema_of else {
            abilities.find_shims(library(py)?, &spec.schemas).map_err(|d| to_python(py, &d))?;
            let program = py.detach(|| exec::lower(&spec, &abilities));
            return program.map(|program| Self(program, None)).map_err(|d| to_python(py, &d));
        };
        Self::rewritten(py, spec, abilities, schema_of, exec::BUFFERS)
    }

    /// Lowers a graph. `groups` has the names of process groups by their symbolic names; `schema_of` gives PyTorch's
    /// schema of an operator, so that calls are made for the operators as they are. `buffer_bytes` may limit what
    /// buffers take further than the executor does. With `fuse`, groups of operations are kernels, on another device than the host where it
    /// has `cuda`, but those that `slower` names; with `match_eager` they round as eager code does. With `live`, numbers of the step are tensors of the device. `inner` has the positions of
    /// returns that only other programs get.
    #[expect(clippy::too_many_arguments, reason = "Python's keyword arguments")]
    #[staticmethod]
    fn from_graph(
        py: Python<'_>,
        graph: &Graph,
        groups: exec::Groups,
        device: (String, Option<i32>),
        schema_of: &Bound<'_, PyAny>,
        buffer_bytes: Option<u64>,
        fuse: bool,
        match_eager: bool,
        live: bool,
        cuda: Option<&CudaDevice>,
        slower: Slower,
        inner: Vec<usize>,
    ) -> PyResult<Self> {
        let mut abilities = Abilities::of(library(py)?.version(), device_of(device));
        let mut spec = py
            .detach(|| exec::spec_of(&graph.0, &groups, &abilities.device))
            .map_err(|d| to_python(py, &d))?;
        spec.keep_within(&inner);
        let rounding = rounding(match_eager);
        if fuse && abilities.device.is_host() {
            let partition = py.detach(|| without(&graph.0, rounding, &slower));
            spec = py.detach(|| exec::fuse(&spec, &graph.0, &partition));
            if !match_eager {
                spec = exec::with_attention(spec);
            }
        }
        let mut kernels = None;
        if let Some(cuda) = cuda.filter(|_| fuse) {
            let fused = py.detach(|| exec::fuse(&spec, &graph.0, &cuda::partition(&graph.0, rounding)));
            let draws = exec::draws_of(&fused).map_err(|d| to_python(py, &d))?;
            let drawn = draws.as_deref().unwrap_or_default();
            kernels = py.detach(|| cuda.kernels(&fused, drawn)).map_err(|d| to_python(py, &d))?;
            abilities.draws = draws.is_some() && kernels.is_some();
            spec = fused;
        }
        for (schema, op) in spec.schemas.iter_mut().zip(graph.0.ops.values()) {
            let found: Option<String> = schema_of.call1((&op.name,))?.extract()?;
            *schema = found.ok_or_else(|| {
                let message = format!("this PyTorch has no operation `{}`", op.name);
                let hint = "import the package that registers it before the step runs";
                to_python(py, &Diagnostic::new(Code::UNKNOWN_OPERATION, message).hint(hint))
            })?;
        }
        if live {
            let schemas = spec.schemas.iter().map(|text| Schema::parse(text)).collect::<Result<Vec<_>>>();
            spec = exec::with_live_numbers(spec, &schemas.map_err(|d| to_python(py, &d))?);
        }
        let buffers = exec::BUFFERS.min(buffer_bytes.map_or(exec::BUFFERS, Bytes));
        let program = Self::rewritten(py, spec, abilities, schema_of, buffers)?;
        Ok(Self(program.0, kernels))
    }

    /// The text form.
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    /// The JSON text for the proxy executor, or `None` where no call goes that way.
    fn proxy_document(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let any = self
            .0
            .instructions()
            .any(|instruction| matches!(&instruction.action, exec::Action::Call { route: Route::Proxy, .. }));
        if !any {
            return Ok(None);
        }
        py.detach(|| exec::proxy_document(&self.0)).map(Some).map_err(|d| to_python(py, &d))
    }

    /// The calls that go by Python, in MessagePack: a list of `{name, op, args}`.
    fn python_calls<'py>(&self, py: Python<'py>, prefix: &str) -> PyResult<Bound<'py, PyBytes>> {
        let calls = exec::python_calls(&self.0, prefix);
        let bytes =
            rmp_serde::to_vec_named(&calls).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(PyBytes::new(py, &bytes))
    }

    /// Instructions of each step by kind: views, and calls by dispatcher, proxy, a function of the operation's own and Python; then those run once.
    fn counts(&self) -> (usize, usize, usize, usize, usize, usize) {
        let by = |route| self.0.calls_by(route);
        let called = [Route::Dispatcher, Route::Proxy, Route::Shim, Route::Python].map(by);
        (self.0.views(), called[0], called[1], called[2], called[3], self.0.prologue.len())
    }

    /// The records of a step as JSON that trace viewers, and `unisono trace`, open. With the graph that the program was
    /// made of, events are of its operations; `mesh` says which ranks take part in collectives.
    #[pyo3(signature = (records, rank, graph=None, mesh=Vec::new()))]
    fn trace_json(
        &self,
        py: Python<'_>,
        records: Vec<Recorded>,
        rank: u32,
        graph: Option<&Graph>,
        mesh: Vec<(String, u32)>,
    ) -> PyResult<String> {
        let mesh = mesh_of(mesh);
        let timeline = self.timeline(records, rank, graph.map(|graph| (&graph.0, &mesh)));
        Ok(chrome::text(&timeline.map_err(|diagnostic| to_python(py, &diagnostic))?)?)
    }

    /// The bytes of memory that stays from step to step for small results.
    fn buffer_bytes(&self) -> u64 {
        self.0.buffer_bytes().0
    }

    /// The bytes of what else stays from step to step because it is the same at every step.
    fn constant_bytes(&self) -> u64 {
        self.0.constant_bytes().0
    }

    /// The position in program order of the graph's operation that each instruction of a step is, if it is one.
    fn nodes(&self) -> Vec<Option<u32>> {
        self.0.body.iter().map(|instruction| instruction.node).collect()
    }

    /// Name and place of each instruction of a step.
    fn instructions(&self) -> Vec<(String, Option<String>)> {
        let line = |i: &exec::Instruction| (self.0.name(i), self.0.place(i).map(ToString::to_string));
        self.0.body.iter().map(line).collect()
    }
}

impl Program {
    /// The timeline of one recorded step on `rank`, whose graph is `graph`.
    pub fn timeline(
        &self,
        records: Vec<Recorded>,
        rank: u32,
        graph: Option<(&ir::Graph, &ir::Mesh)>,
    ) -> Result<Timeline> {
        let record = |(instruction, start, duration)| exec::Record {
            instruction,
            start: Nanos(start),
            duration: Nanos(duration),
        };
        let records: Vec<exec::Record> = records.into_iter().map(record).collect();
        if records.iter().any(|record| record.instruction as usize >= self.0.body.len()) {
            return Err(Diagnostic::new(Code::BAD_BINDING, "records of another program"));
        }
        Ok(exec::timeline_of(&self.0, &records, rank, graph, &sim::work_of))
    }

    fn rewritten(
        py: Python<'_>,
        mut spec: ProgramSpec,
        mut abilities: Abilities,
        schema_of: &Bound<'_, PyAny>,
        buffers: Bytes,
    ) -> PyResult<Self> {
        for name in exec::wanted_schemas(&spec) {
            // Not every operation has a form with tensors or in place.
            spec.schemas.extend(schema_of.call1((name,))?.extract::<Option<String>>()?);
        }
        abilities.find_shims(library(py)?, &spec.schemas).map_err(|d| to_python(py, &d))?;
        let program = py.detach(|| exec::lower(&exec::rewrite(&spec, &abilities, buffers)?, &abilities));
        program.map(|program| Self(program, None)).map_err(|d| to_python(py, &d))
    }
}

/// A program with its tensors.
#[pyclass(frozen, module = "unisono._native")]
struct Executor {
    inner: Mutex<exec::Executor>,
    progress: exec::Progress,
    kernel_device: Option<(String, i32)>,
    /// The runner that owns the proxy executor. Declared after `inner`, so that it goes last.
    _runner: Py<PyAny>,
}

#[pymethods]
impl Executor {
    /// Links `program`; `runner` is the model runner of its proxy document, just run in this thread, or `None`.
    #[new]
    fn new(py: Python<'_>, program: &Program, prefix: &str, runner: Py<PyAny>) -> PyResult<Self> {
        // SAFETY: the runner is kept as long as the executor.
        let proxy = if runner.is_none(py) { None } else { unsafe { torch_sys::captured_proxy() } };
        let library = library(py)?;
        let inner =
            py.detach(|| exec::Executor::new(program.0.clone(), library, proxy, prefix, program.1.as_ref()));
        let inner = inner.map_err(|d| to_python(py, &d))?;
        let kernel_device =
            program.1.as_ref().map(|device| (program.0.device.kind.clone(), device.numbers.1));
        Ok(Self { progress: inner.progress(), inner: Mutex::new(inner), kernel_device, _runner: runner })
    }

    /// The position of the instruction that runs now, in whatever thread; `None` between steps.
    fn at(&self) -> Option<u32> {
        self.progress.get()
    }

    /// Binds the tensors of state, as capsules whose handles are taken over.
    fn bind_state(&self, py: Python<'_>, capsules: Vec<Bound<'_, PyAny>>) -> PyResult<()> {
        let state = tensors(&capsules)?;
        self.with(py, |executor| executor.bind_state(state))
    }

    /// Runs one step; inputs and returns are capsules whose handles are handed over. The interpreter lock is released.
    fn run<'py>(&self, py: Python<'py>, capsules: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let inputs = capsules.iter().map(|capsule| tensor(&capsule)).collect::<PyResult<_>>()?;
        let returns = self.with(py, |executor| executor.run(inputs))?;
        returns.into_iter().map(|tensor| capsule(py, tensor)).collect()
    }

    /// Runs one step and notes `(instruction, start, duration)`, both times in nanoseconds.
    #[allow(clippy::type_complexity, reason = "a pair of lists, as Python sees it")]
    fn run_recorded<'py>(
        &self,
        py: Python<'py>,
        capsules: Vec<Bound<'py, PyAny>>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<(u32, i64, i64)>)> {
        let inputs = tensors(&capsules)?;
        let mut records = Vec::new();
        let returns = self.with(py, |executor| executor.run_recorded(inputs, &mut records))?;
        let returns = returns.into_iter().map(|tensor| capsule(py, tensor)).collect::<PyResult<_>>()?;
        Ok((returns, records.iter().map(|r| (r.instruction, r.start.0, r.duration.0)).collect()))
    }

    /// Runs one step and calls `after` with the position of each instruction that has been issued. What it raises is that
    /// instruction's failure.
    fn run_watched<'py>(
        &self,
        py: Python<'py>,
        capsules: Vec<Bound<'py, PyAny>>,
        after: Py<PyAny>,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let inputs = tensors(&capsules)?;
        let mut call = |index: usize| {
            Python::attach(|py| after.call1(py, (index,)).map(drop))
                .map_err(|error| Failure(error.to_string()))
        };
        let returns = self.with(py, |executor| executor.run_watched(inputs, &mut call))?;
        returns.into_iter().map(|tensor| capsule(py, tensor)).collect()
    }

    /// The stream of CUDA that kernels run on from now on, by the driver's handle.
    fn set_stream(&self, py: Python<'_>, handle: usize) -> PyResult<()> {
        // SAFETY: the caller is `unisono._executor`, which asks PyTorch for the current one before each step.
        let stream = unsafe { cuda::Stream::of(handle) };
        self.with(py, |executor| {
            executor.set_stream(stream);
            Ok(())
        })
    }

    /// The device of CUDA on which kernels of it run, by kind and number: they need to be told the stream.
    #[getter]
    fn kernel_device(&self) -> Option<(String, i32)> {
        self.kernel_device.clone()
    }

    /// The tensors of state as capsules.
    fn state<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let state = self.with(py, |executor| executor.state())?;
        state.into_iter().map(|tensor| capsule(py, tensor)).collect()
    }

    /// Whether the host forbids executable memory, so that kernels are interpreted.
    fn refused(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |executor| Ok(executor.refused()))
    }

    /// How many tensors are held.
    fn live(&self, py: Python<'_>) -> PyResult<usize> {
        self.with(py, |executor| Ok(executor.live()))
    }
}

impl Executor {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut exec::Executor) -> base::Result<T> + Send,
    ) -> PyResult<T> {
        let result = py.detach(|| match self.inner.try_lock() {
            Ok(mut executor) => work(&mut executor),
            Err(TryLockError::Poisoned(_)) => Err(Diagnostic::bug("an earlier step has panicked")),
            Err(TryLockError::WouldBlock) => Err(Diagnostic::new(
                Code::BAD_BINDING,
                "the step is already running in another thread or in itself",
            )),
        });
        result.map_err(|diagnostic| to_python(py, &diagnostic))
    }
}

fn tensors(capsules: &[Bound<'_, PyAny>]) -> PyResult<Vec<Tensor>> {
    capsules.iter().map(tensor).collect()
}

fn tensor(capsule: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    // SAFETY: the object is alive; the call fails for what is no unnamed capsule. torch's unnamed capsules hold owned
    // tensor handles, which are taken over once.
    let tensor = unsafe { Tensor::from_raw(ffi::PyCapsule_GetPointer(capsule.as_ptr(), std::ptr::null())) };
    tensor.ok_or_else(|| PyErr::fetch(capsule.py()))
}

fn capsule(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    // SAFETY: the pointer is not null; whoever takes the capsule takes the handle over.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(tensor.into_raw(), std::ptr::null(), None)) }
}

/// Adds what belongs to the executor to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(load_torch, module)?)?;
    module.add_function(wrap_pyfunction!(torch_functions, module)?)?;
    module.add_function(wrap_pyfunction!(torch_function_of, module)?)?;
    module.add_function(wrap_pyfunction!(kernel_tier, module)?)?;
    module.add_function(wrap_pyfunction!(cuda_source, module)?)?;
    module.add_function(wrap_pyfunction!(compile_cuda, module)?)?;
    module.add_function(wrap_pyfunction!(kept_bytes, module)?)?;
    module.add_class::<PausedKeeping>()?;
    module.add_class::<CudaDevice>()?;
    module.add_class::<Program>()?;
    module.add_class::<Executor>()
}
