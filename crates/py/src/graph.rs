//! Graphs and plans: handles on what is decoded once, with what can be asked of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use aten::{Call, Random, RunTimeSizes};
use base::{Code, Diagnostic, Fingerprint, Result};
use cluster::Cluster;
use cost::Operation;
use ir::{Dtype, Placement};
use keep::{Kept, Measured};
use loops::Rounding;
use passes::{Outcome, Settings, pipeline};
use plan::PlanSettings;
use pyo3::{prelude::*, sync::PyOnceLock, types::PyBytes};
use serde::de::DeserializeOwned;

use crate::error::to_python;

/// Runs `work` without the interpreter lock and turns a diagnostic into an exception.
pub fn run<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    py.detach(work).map_err(|diagnostic| to_python(py, &diagnostic))
}

/// A graph, of a whole step or of one rank.
#[pyclass(frozen, module = "unisono._native")]
pub struct Graph(pub ir::Graph);

/// What Python makes of a pattern for these types.
fn made_of(types: &[ir::TensorType], make: &Bound<'_, PyAny>) -> PyResult<Option<passes::Replacement>> {
    let ty = |ty: &ir::TensorType| {
        let (shape, strides) = (ty.shape.to_vec(), ty.strides.to_vec());
        (ty.dtype.torch_name(), shape, strides, ty.device.kind.name().to_owned())
    };
    let types: Vec<_> = types.iter().map(ty).collect();
    let made = make.call1((types,))?;
    if made.is_none() {
        return Ok(None);
    }
    let (search, replace): (PyRef<'_, Graph>, PyRef<'_, Graph>) = made.extract()?;
    Ok(Some(passes::Replacement { search: search.0.clone(), replace: replace.0.clone() }))
}

/// Why groups stay PyTorch's operations, by their names.
pub type Slower = BTreeMap<String, String>;

/// When kernels round, by Python's setting.
pub const fn rounding(match_eager: bool) -> Rounding {
    if match_eager { Rounding::AsEager } else { Rounding::AtStores }
}

/// The kernels of a graph, without the groups that there is a reason against.
pub fn without(graph: &ir::Graph, rounding: Rounding, slower: &Slower) -> loops::Partition {
    if slower.is_empty() {
        return loops::partition(graph, rounding);
    }
    loops::partition_unless(graph, rounding, &|group| slower.get(&group.name(graph)).cloned())
}

/// The name of each pass with the number of nodes before and after it.
type Done = Vec<(&'static str, usize, usize)>;

/// Kind, axis, bytes, positions.
type TimedCollective = (&'static str, String, u64, Vec<usize>);

fn collectives(graph: &ir::Graph) -> Option<Vec<TimedCollective>> {
    if !RunTimeSizes::of(graph).is_empty() {
        return None;
    }
    let (mut found, mut started): (Vec<TimedCollective>, BTreeMap<ir::ValueId, usize>) = Default::default();
    for (position, id) in graph.order.iter().enumerate() {
        let node = &graph.nodes[*id];
        if let Some(collective) = graph.collective(*id) {
            started.extend(node.results().map(|result| (result, found.len())));
            found.push((
                collective.kind.text(),
                collective.axis.to_owned(),
                collective.bytes.0,
                vec![position],
            ));
        } else if graph.is_communication(*id) {
            let waited = node.operands().find_map(|operand| started.get(&operand));
            if let Some(number) = waited {
                found[*number].3.push(position);
            }
        }
    }
    Some(found)
}

/// Operator, element type, floating-point operations, bytes, tensors.
type OperationAmounts = (String, &'static str, f64, u64, usize);

fn amounts(call: &Call<'_>) -> Option<OperationAmounts> {
    aten::row(call.name()).filter(|_| !call.graph.is_communication(call.id))?;
    let Operation { name, dtype, amounts, .. } = Operation::of(call)?;
    Some((name.to_owned(), dtype.text(), amounts.flops, amounts.bytes, amounts.tensors))
}

fn note(done: &mut Done) -> impl FnMut(&Outcome) {
    |outcome| done.push((outcome.pass, outcome.nodes_before, outcome.nodes_after))
}

#[pymethods]
impl Graph {
    /// Decodes and verifies a message.
    #[new]
    fn new(py: Python<'_>, message: &[u8]) -> PyResult<Self> {
        run(py, || ir::Graph::from_bytes(message)).map(Self)
    }

    /// Reads the file of a captured step, a text or a message.
    #[staticmethod]
    fn read(py: Python<'_>, file: PathBuf) -> PyResult<Self> {
        run(py, move || cli::graph(&file)).map(Self)
    }

    /// The graph as MessagePack.
    fn message<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.0.to_bytes()))
    }

    /// The text form.
    fn text(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.to_string())
    }

    /// What identifies the graph.
    fn fingerprint(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.fingerprint().to_string())
    }

    /// The names of its operators, each once.
    fn operators(&self) -> Vec<&str> {
        self.0.ops.values().map(|op| op.name.as_str()).collect()
    }

    /// Whether one of these operators, which may draw random numbers, does so: attention that drops nothing does not.
    #[expect(clippy::needless_pass_by_value, reason = "made of Python's set")]
    fn draws(&self, random: BTreeSet<String>) -> bool {
        self.0.order.iter().any(|id| {
            let node = &self.0.nodes[*id];
            let op = &self.0.ops[node.op];
            let drops = || match ir::Schema::parse(&op.schema).map(|schema| aten::random(&op.name, &schema)) {
                Some(known @ Random::Unless0(_)) => known.draws(&node.args),
                _ => true,
            };
            random.contains(&op.name) && drops()
        })
    }

    /// The plan of a step on a cluster; `settings` is MessagePack of the planner's settings. With a `folder` it is taken from there, if it was
    /// made before, and else kept there. `say` hears, from any thread, a line of what a long search is at
    /// every so many seconds.
    #[pyo3(signature = (cluster, settings, folder=None, say=None, every=None))]
    #[expect(clippy::needless_pass_by_value, reason = "as Python gives them")]
    fn plan(
        &self,
        py: Python<'_>,
        cluster: &str,
        settings: &[u8],
        folder: Option<PathBuf>,
        say: Option<Py<PyAny>>,
        every: Option<f64>,
    ) -> PyResult<Plan> {
        let planner = planner(py)?;
        let progress = plan::Progress::new(
            every.and_then(|seconds| std::time::Duration::try_from_secs_f64(seconds).ok()),
        );
        let telling = |mesh: &ir::Mesh, effort| {
            if let Some((say, line)) = say.as_ref().zip(progress.line(mesh, effort)) {
                // What cannot be said is no reason not to plan.
                drop(Python::attach(|py| say.call1(py, (line,))));
            }
        };
        run(py, || {
            let cluster = Cluster::parse(cluster, "the cluster description")?;
            let settings = settings_of(settings)?;
            match folder.zip(planner) {
                Some((folder, planner)) => {
                    Kept { folder }.plan(planner, &self.0, &cluster, &settings, Some(&telling))
                }
                None => plan::plan_telling(&self.0, &cluster, &settings, Some(&telling), |_| {}),
            }
        })
        .map(Plan)
    }

    /// What a plan for the graph does, for people; with a cluster also where time and memory go on it.
    #[pyo3(signature = (plan, cluster=None, memory_limit=None))]
    fn explain(
        &self,
        py: Python<'_>,
        plan: &Plan,
        cluster: Option<&str>,
        memory_limit: Option<u64>,
    ) -> PyResult<String> {
        run(py, || {
            let cluster = cluster.map(|text| Cluster::parse(text, "the cluster description")).transpose()?;
            let limit = cluster.as_ref().and_then(|cluster| limit(memory_limit, cluster));
            plan::explain_plan(&self.0, &plan.0, cluster.as_ref(), limit)
        })
    }

    /// The figures of a plan for the graph on a cluster, as JSON: the fields of `unisono plan --json`.
    fn figures_json(
        &self,
        py: Python<'_>,
        plan: &Plan,
        cluster: &str,
        memory_limit: Option<u64>,
    ) -> PyResult<String> {
        run(py, || {
            let cluster = Cluster::parse(cluster, "the cluster description")?;
            let summary = plan::summary(&self.0, None, &plan.0, &cluster, limit(memory_limit, &cluster))?;
            serde_json::to_string(&summary).map_err(|error| Diagnostic::bug(error.to_string()))
        })
    }

    /// The graph of a rank under a plan, before the passes.
    fn rank_graph(&self, py: Python<'_>, plan: &Plan, rank: u32) -> PyResult<Self> {
        run(py, || plan::rank_graph(&self.0, &plan.0, rank)).map(Self)
    }

    /// What a rank runs of this step, without operations on parts of nothing.
    fn without_empty_parts(&self, py: Python<'_>, local: &Self) -> PyResult<Self> {
        run(py, || plan::without_empty_parts(&self.0, local.0.clone())).map(Self)
    }

    /// The graph that a rank runs under a plan: after the passes, and what they did.
    fn program(&self, py: Python<'_>, plan: &Plan, rank: u32) -> PyResult<(Self, Done)> {
        let mut done = Done::new();
        let graph = run(py, || plan::program(&self.0, &plan.0, rank, note(&mut done)))?;
        Ok((Self(graph), done))
    }

    /// The graph after the passes, and what they did, by settings as MessagePack; what these leave out is as by default.
    #[pyo3(signature = (settings=None))]
    fn run_passes(&self, py: Python<'_>, settings: Option<&[u8]>) -> PyResult<(Self, Done)> {
        let mut done = Done::new();
        let graph = run(py, || {
            let settings: Option<Settings> =
                settings.map(|bytes| unpacked(bytes, Code::BAD_TEXT)).transpose()?;
            passes::run(&pipeline(&settings.unwrap_or_default()), &self.0, note(&mut done))
        })?;
        Ok((Self(graph), done))
    }

    /// The graph with random operations that draw by a counter, the key being its last input; `None` where nothing draws.
    fn drawing_by_counter(&self, py: Python<'_>) -> PyResult<Option<Self>> {
        run(py, || {
            let keyed = passes::with_key(&self.0);
            let drawn = passes::run(&[Box::new(passes::DrawByCounter)], &keyed, |_| {})?;
            let key = drawn.inputs.values().find(|input| input.name == passes::KEY).map(|input| input.value);
            let reads = |id: &ir::NodeId| drawn.nodes[*id].operands().any(|value| Some(value) == key);
            Ok(drawn.order.iter().any(reads).then_some(Self(drawn)))
        })
    }

    /// The graph with dropouts as masks that are drawn, and products.
    fn split_dropout(&self, py: Python<'_>) -> PyResult<Self> {
        run(py, || passes::run(&[Box::new(passes::SplitDropout)], &self.0, |_| {})).map(Self)
    }

    /// The graph of a function that is called by itself without what nothing needs.
    fn cleaned_function(&self, py: Python<'_>) -> PyResult<Self> {
        run(py, || passes::cleaned_function(&self.0)).map(Self)
    }

    /// The graph as it pays where groups of operations are kernels.
    #[pyo3(signature = (*, cuda=false))]
    fn for_kernels(&self, py: Python<'_>, cuda: bool) -> PyResult<Self> {
        let partition: passes::Partitioner = if cuda {
            |graph| cuda::partition(graph, Rounding::AtStores)
        } else {
            |graph| loops::partition(graph, Rounding::AtStores)
        };
        run(py, || passes::for_kernels(&self.0, partition)).map(Self)
    }

    /// The graph with products of these element types on the host computed in `f32`.
    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    fn with_wide_products(&self, py: Python<'_>, narrow: Vec<String>) -> PyResult<Self> {
        run(py, || {
            let narrow = narrow.iter().filter_map(|name| Dtype::from_text(name)).collect();
            passes::run(&[Box::new(passes::WideProducts { narrow })], &self.0, |_| {})
        })
        .map(Self)
    }

    /// The graph with operations like those of `searches` replaced, and how often. `make` gives for the types of what they read (element type,
    /// sizes, strides, kind of device) what to look for exactly and what stands for it, or `None`.
    fn replaced(
        &self,
        py: Python<'_>,
        searches: Vec<PyRef<'_, Self>>,
        make: &Bound<'_, PyAny>,
    ) -> PyResult<(Self, usize)> {
        let searches: Vec<ir::Graph> = searches.into_iter().map(|search| search.0.clone()).collect();
        let mut raised = None;
        let made = passes::replaced(&self.0, &searches, |types| {
            made_of(types, make).map_err(|error| {
                raised = Some(error);
                Diagnostic::bug("a pattern raises")
            })
        });
        match (made, raised) {
            (_, Some(error)) => Err(error),
            (Ok((graph, count)), None) => Ok((Self(graph), count)),
            (Err(diagnostic), None) => Err(to_python(py, &diagnostic)),
        }
    }

    /// What a rank computes by itself: the graph with numbers in the place of what others send.
    fn without_collectives(&self, py: Python<'_>) -> PyResult<Self> {
        run(py, || passes::run(&[Box::new(passes::WithoutCollectives)], &self.0, |_| {})).map(Self)
    }

    /// The graph with each collective waited for where it starts.
    fn waiting_at_once(&self, py: Python<'_>) -> PyResult<Self> {
        run(py, || passes::run(&[Box::new(passes::WaitAtOnce)], &self.0, |_| {})).map(Self)
    }

    /// The collectives in program order: kind, axis, bytes, and the positions of the node that starts it and of those that wait for it; `None`
    /// where some have sizes that are known at run time only.
    fn collectives(&self, py: Python<'_>) -> Option<Vec<TimedCollective>> {
        py.detach(|| collectives(&self.0))
    }

    /// What each operation does, in program order: its operator, its main element type, its floating-point operations, and the bytes and
    /// tensors that it reads and writes; `None` for what takes no time, or is no operation of the rank alone.
    fn amounts(&self, py: Python<'_>) -> Vec<Option<OperationAmounts>> {
        py.detach(|| self.0.order.iter().map(|id| amounts(&Call::new(&self.0, *id))).collect())
    }

    /// Which operations become kernels, what that saves, and why all others stay as they are, for people. `slower` has the reasons against
    /// groups, by their names; with `match_eager` kernels round as eager code does.
    #[pyo3(signature = (slower=None, *, match_eager=false))]
    fn kernels(&self, py: Python<'_>, slower: Option<Slower>, match_eager: bool) -> String {
        let slower = slower.unwrap_or_default();
        py.detach(|| {
            let kernels = without(&self.0, rounding(match_eager), &slower).describe(&self.0);
            match passes::widened(&self.0) {
                0 => kernels,
                products => format!(
                    "{products} products of 16 bits are computed in f32, which this processor has instructions for (wide_products)\n{kernels}"
                ),
            }
        })
    }

    /// The groups of operations that can be kernels, each once: its name, and its operations as a graph whose inputs are what it reads.
    #[pyo3(signature = (*, match_eager=false))]
    fn groups(&self, py: Python<'_>, match_eager: bool) -> Vec<(String, Self)> {
        py.detach(|| {
            let groups = loops::partition(&self.0, rounding(match_eager)).groups;
            let named = groups.iter().map(|group| (group.name(&self.0), Self(group.alone(&self.0))));
            named.collect::<BTreeMap<_, _>>().into_iter().collect()
        })
    }

    /// The kernels that groups of operations become, on processors or with CUDA, each once, in their text form.
    #[pyo3(signature = (*, cuda=false, match_eager=false))]
    fn kernel_texts(&self, py: Python<'_>, cuda: bool, match_eager: bool) -> Vec<String> {
        let partition = if cuda { cuda::partition } else { loops::partition };
        let groups = py.detach(|| partition(&self.0, rounding(match_eager)).groups);
        let mut texts: Vec<String> = Vec::new();
        for text in groups.iter().map(|group| group.kernel.to_string()) {
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        texts
    }

    /// What is equal for ranks that issue the same collectives in the same order, as 32 hexadecimal digits: of each group, and under no name
    /// of all without their sizes.
    fn issue_order(&self) -> BTreeMap<String, String> {
        passes::issue_order(&self.0).into_iter().map(|(group, print)| (group, print.to_string())).collect()
    }

    /// The names of the state of a rank's program that is on the host between steps.
    fn on_host(&self) -> Vec<&str> {
        self.0.inputs_on_host().into_iter().map(|input| self.0.inputs[input].name.as_str()).collect()
    }

    /// Between which pipeline stages a rank's graph sends or receives: from which to which.
    fn routes(&self) -> Vec<(u32, u32)> {
        let groups = self.0.order.iter().filter_map(|id| self.0.group_name(*id));
        groups.filter_map(ir::transfer_stages).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The timeline of a step of a rank under a plan for this graph as the simulator expects it, as JSON that trace viewers open.
    fn simulated_json(&self, py: Python<'_>, plan: &Plan, cluster: &str, rank: u32) -> PyResult<String> {
        run(py, || {
            let cluster = Cluster::parse(cluster, "the cluster description")?;
            let timeline = plan::simulate_one(&self.0, &plan.0, &cluster, rank)?;
            timeline::chrome::text(&timeline).map_err(|error| Diagnostic::bug(error.to_string()))
        })
    }

    /// The nanoseconds of a step under a plan for this graph on a cluster that it need not have been made for.
    fn simulated_ns(&self, py: Python<'_>, plan: &Plan, cluster: &str) -> PyResult<i64> {
        run(py, || {
            let cluster = Cluster::parse(cluster, "the cluster description")?;
            Ok(plan::simulated_step(&self.0, &plan.0, &cluster)?.0)
        })
    }

    /// What a line of the user's code issues or waits for, and the line that issues it.
    #[pyo3(signature = (place=None))]
    fn collective_at(&self, py: Python<'_>, place: Option<&str>) -> Option<(String, Option<String>)> {
        py.detach(|| exec::collective_at(&self.0, place))
    }

    /// The element types that a device must have to run it, each with the place of an operation that makes one, if one does.
    fn element_types(&self) -> Vec<(&'static str, Option<String>)> {
        exec::element_types(&self.0)
    }

    /// Of the operation at a position in program order: its part of the program, its micro-batch, and the collective that it issues or waits for.
    fn standing_at(&self, position: usize) -> Option<(&'static str, Option<u32>, Option<String>)> {
        let id = *self.0.order.get(position)?;
        let part = self.0.parts[self.0.nodes[id].part];
        Some((part.kind.text(), part.micro_batch, exec::collective_of(&self.0, id)))
    }

    /// Everything that the operation table claims about the operations of a graph: its canonical form, MessagePack of the questions, and
    /// each claim with whether it is among them.
    fn exam<'py>(&self, py: Python<'py>, ranks: u32) -> PyResult<(Self, Bound<'py, PyBytes>, Claims)> {
        let (exam, questions) = run(py, || {
            let exam = shard::exam(&self.0, ranks)?;
            let questions = packed(&exam.questions.iter().map(Question::of).collect::<Vec<_>>())?;
            Ok((exam, questions))
        })?;
        Ok((Self(exam.canonical), PyBytes::new(py, &questions), exam.claims))
    }

    #[expect(clippy::needless_pass_by_value, reason = "what Python gives is owned")]
    /// The graphs of all ranks of a mesh under strategies that numbers draw, and the placements of inputs along each axis; for a proof.
    fn drawn(
        &self,
        py: Python<'_>,
        mesh: Vec<(String, u32)>,
        numbers: Vec<u64>,
    ) -> PyResult<(Vec<Vec<String>>, Vec<Self>)> {
        let drawn = run(py, || shard::drawn(&self.0, &mesh_of(mesh), &numbers))?;
        let along_all = |placements: &Vec<Placement>| placements.iter().map(ToString::to_string).collect();
        Ok((drawn.inputs.iter().map(along_all).collect(), drawn.graphs.into_iter().map(Self).collect()))
    }
}

/// The planner's settings of a message.
pub fn settings_of(message: &[u8]) -> Result<PlanSettings> {
    unpacked(message, Code::BAD_PIN).map_err(|refused: Box<Diagnostic>| {
        refused.hint("pins map name patterns to placements per axis: {\"params.*\": {\"a\": \"shard(0)\"}}")
    })
}

/// A mesh by the names of its axes, from the outermost on, with their sizes.
pub fn mesh_of(axes: Vec<(String, u32)>) -> ir::Mesh {
    ir::Mesh { axes: axes.into_iter().map(|(name, size)| ir::MeshAxis::ranks(name, size)).collect() }
}

/// The memory limit that a plan keeps where this one was asked for.
pub fn limit(memory_limit: Option<u64>, cluster: &Cluster) -> Option<u64> {
    PlanSettings { memory_limit, ..PlanSettings::default() }.memory_limit(cluster)
}

/// One operation under one strategy, as a message.
#[derive(serde::Serialize)]
struct Question<'a> {
    /// The operation, by its number in the canonical graph.
    node: u32,
    operands: &'a [Placement],
    results: &'a [Placement],
    /// Each rank's graph, as a message.
    graphs: Vec<serde_bytes::ByteBuf>,
}

impl<'a> Question<'a> {
    fn of(question: &'a shard::Question) -> Self {
        Self {
            node: question.node.0,
            operands: &question.strategy.operands,
            results: &question.strategy.results,
            graphs: question
                .graphs
                .iter()
                .map(|graph| serde_bytes::ByteBuf::from(graph.to_bytes()))
                .collect(),
        }
    }
}

/// Operator, claim, and whether it is asked.
type Claims = Vec<(String, String, bool)>;

/// A plan.
#[pyclass(frozen, module = "unisono._native")]
pub struct Plan(pub plan::Plan);

#[pymethods]
impl Plan {
    /// Reads the text form.
    #[new]
    fn new(py: Python<'_>, text: &str) -> PyResult<Self> {
        run(py, || plan::Plan::parse(text, "the plan")).map(Self)
    }

    /// The text form.
    fn text(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.text())
    }

    /// What identifies the plan.
    fn fingerprint(&self, py: Python<'_>) -> String {
        py.detach(|| self.0.fingerprint().to_string())
    }

    /// What each pipeline stage does, as torch writes it; `None` without stages.
    fn actions(&self, py: Python<'_>) -> PyResult<Option<Vec<String>>> {
        let lines = |stages: &plan::Stages| Ok(stages.schedule(self.0.micro_batches)?.lines());
        run(py, || self.0.stages.as_ref().map(lines).transpose())
    }

    /// What the plan says, as MessagePack.
    fn content<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &run(py, || packed(&self.0))?))
    }
}

/// The message of the capture with this key that is kept in a folder, or `None`.
#[pyfunction]
fn kept_capture<'py>(py: Python<'py>, folder: PathBuf, key: &str) -> Option<Bound<'py, PyBytes>> {
    py.detach(|| Kept { folder }.capture(key)).map(|message| PyBytes::new(py, &message))
}

/// Keeps the message of a capture in a folder.
#[pyfunction]
fn keep_capture(py: Python<'_>, folder: PathBuf, key: &str, message: &[u8]) {
    py.detach(|| Kept { folder }.keep_capture(key, message));
}

/// The message of what groups of operations take that is kept in a folder, or `None`. `compiler` is the file of this module.
#[pyfunction]
fn kept_times(
    py: Python<'_>,
    folder: PathBuf,
    compiler: PathBuf,
    measured: (u32, u32, String),
) -> Option<Bound<'_, PyBytes>> {
    py.detach(move || Kept { folder }.times(&compiler, &of(measured)))
        .map(|message| PyBytes::new(py, &message))
}

/// Keeps what groups of operations take in a folder.
#[pyfunction]
fn keep_times(
    py: Python<'_>,
    folder: PathBuf,
    compiler: PathBuf,
    measured: (u32, u32, String),
    message: &[u8],
) {
    py.detach(move || Kept { folder }.keep_times(&compiler, &of(measured), message));
}

/// The description of a machine that is kept in a folder, or `None`; `measured` is with how many ranks, threads of each, and on what.
#[pyfunction]
fn kept_machine(py: Python<'_>, folder: PathBuf, measured: (u32, u32, String)) -> Option<String> {
    py.detach(|| Kept { folder }.machine(&of(measured)))
}

/// Keeps the description of a machine in a folder.
#[pyfunction]
fn keep_machine(py: Python<'_>, folder: PathBuf, measured: (u32, u32, String), description: &str) {
    py.detach(|| Kept { folder }.keep_machine(&of(measured), description));
}

fn of((ranks, threads, identity): (u32, u32, String)) -> Measured {
    Measured { ranks, threads, identity }
}

/// What identifies the program that plans, which is this module; its file is read once.
fn planner(py: Python<'_>) -> PyResult<Option<Fingerprint>> {
    static KNOWN: PyOnceLock<Option<Fingerprint>> = PyOnceLock::new();
    let read = || -> PyResult<_> {
        let file: PathBuf = py.import("unisono._native")?.filename()?.extract()?;
        Ok(py.detach(|| keep::program(&file)))
    };
    KNOWN.get_or_try_init(py, read).copied()
}

/// Settings from MessagePack.
pub fn unpacked<T: DeserializeOwned>(bytes: &[u8], code: Code) -> Result<T> {
    rmp_serde::from_slice(bytes)
        .map_err(|error| Diagnostic::new(code, format!("settings that cannot be used: {error}")))
}

fn packed(value: &impl serde::Serialize) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| Diagnostic::bug(error.to_string()))
}

/// Adds what belongs to graphs and plans to the module.
pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(kept_capture, module)?)?;
    module.add_function(wrap_pyfunction!(keep_capture, module)?)?;
    module.add_function(wrap_pyfunction!(kept_times, module)?)?;
    module.add_function(wrap_pyfunction!(keep_times, module)?)?;
    module.add_function(wrap_pyfunction!(kept_machine, module)?)?;
    module.add_function(wrap_pyfunction!(keep_machine, module)?)?;
    module.add_class::<Graph>()?;
    module.add_class::<Plan>()
}
