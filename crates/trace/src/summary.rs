//! All analyses under their names: what the command and the Python package answer with.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::answers::{Answers, Options};
use crate::{
    Frames, Mode, annotation, aten, autograd, bandwidth, breakdown, counters, critical, dataflow, findings,
    idle, launch, odd, python, queue, sequences, stack, straggler,
};

/// One analysis.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "each is documented where it is implemented")]
pub enum Analysis {
    Findings,
    TemporalBreakdown,
    KernelBreakdown,
    CommCompOverlap,
    IdleTimeBreakdown,
    Queue,
    MemoryBandwidth,
    LaunchStats,
    UserAnnotations,
    Operators,
    CallGraph,
    Counters,
    ProfilerSteps,
    PotentialStragglers,
    CriticalPath,
    Collectives,
    Exposed,
    Memory,
    ForwardBackward,
    DataFlow,
    Python,
}

impl Analysis {
    /// All analyses.
    pub const ALL: &[Self] = &[
        Self::Findings,
        Self::TemporalBreakdown,
        Self::KernelBreakdown,
        Self::CommCompOverlap,
        Self::IdleTimeBreakdown,
        Self::Queue,
        Self::MemoryBandwidth,
        Self::LaunchStats,
        Self::UserAnnotations,
        Self::Operators,
        Self::CallGraph,
        Self::Counters,
        Self::ProfilerSteps,
        Self::PotentialStragglers,
        Self::CriticalPath,
        Self::Collectives,
        Self::Exposed,
        Self::Memory,
        Self::ForwardBackward,
        Self::DataFlow,
        Self::Python,
    ];

    /// Puts its results into `object`, each under its name.
    fn run(self, answers: &Answers<'_, '_>, object: &mut Map<String, Value>) {
        let (frames, options) = (answers.frames, answers.options);
        let mut put = |key: &str, value: Value| {
            object.insert(key.to_owned(), value);
        };
        match self {
            Self::TemporalBreakdown => put("temporal_breakdown", json(&breakdown::temporal(frames))),
            Self::KernelBreakdown => {
                let tables = breakdown::kernels(frames, options.limits(), options.include_memory_kernels);
                put("kernel_breakdown", json(&tables));
            }
            Self::CommCompOverlap => put("comm_comp_overlap", json(&breakdown::overlap(frames))),
            Self::IdleTimeBreakdown => {
                put("idle_time_breakdown", json(&idle::idle(frames, options.consecutive_kernel_delay)));
            }
            Self::Queue => {
                put("queue_length_series", json(&queue::series(frames)));
                put("queue_length_summary", json(&queue::summary(frames)));
                let key = format!("blocked_on_full_queue_{}", options.max_queue_length);
                put(&key, json(&queue::blocked(frames, options.max_queue_length)));
            }
            Self::MemoryBandwidth => put("memory_bw_summary", json(&bandwidth::summary(frames))),
            Self::LaunchStats => {
                put("cuda_kernel_launch_stats", json(&launch::stats(frames, options.cutoffs)));
            }
            Self::UserAnnotations => annotations(frames, options, put),
            Self::Operators => put("aten_op_kernels_and_delay", json(&aten::operators(frames))),
            Self::CallGraph => call_graph(answers, put),
            Self::Counters => put("cupti", json(&options.frame(frames).and_then(counters::counters))),
            Self::ProfilerSteps => put("profiler_steps", json(&straggler::profiler_steps(frames))),
            Self::PotentialStragglers => {
                let ranks = straggler::potential_stragglers(frames, options.num_stragglers);
                put("potential_stragglers", json(&ranks));
            }
            // what HTA has no name for is left out of its object
            Self::Findings
            | Self::Collectives
            | Self::Exposed
            | Self::Memory
            | Self::ForwardBackward
            | Self::DataFlow
            | Self::Python
                if frames.mode == Mode::Hta => {}
            Self::Collectives => put("collectives", json(answers.waiting())),
            Self::Exposed => put("exposed_communication", json(answers.exposed())),
            Self::Findings => put("findings", json(&findings::findings(answers))),
            Self::Memory => put("memory", json(answers.memory())),
            Self::ForwardBackward => {
                put("forward_backward", json(&autograd::forward_backward(frames, answers.graphs())));
            }
            Self::DataFlow => put("data_flow", json(&dataflow::data_flow(frames))),
            Self::Python => put("python_tree", json(&python::tree(frames, answers.graphs()))),
            Self::CriticalPath if frames.mode == Mode::Exact => put("critical_path", json(&answers.path())),
            Self::CriticalPath => {
                let path = |frame| critical::critical_path(frame, &options.annotation, options.instance);
                put("critical_path", json(&options.frame(frames).and_then(path)));
            }
        }
    }
}

fn call_graph(answers: &Answers<'_, '_>, mut put: impl FnMut(&str, Value)) {
    let (options, graphs) = (answers.options, answers.graphs());
    put("call_graph", json(&stack::summary(graphs)));
    let chosen = answers
        .frames
        .ranks
        .iter()
        .zip(graphs)
        .find(|(frame, _)| options.rank.is_none_or(|r| r == frame.rank.rank));
    let Some((frame, graph)) = chosen else { return };
    let (shortest, top) = (options.min_pattern_len, options.top_k);
    put("frequent_kernel_sequences", json(&sequences::frequent(frame, graph, &options.op, shortest, top)));
}

fn annotations(frames: &Frames<'_>, options: &Options, mut put: impl FnMut(&str, Value)) {
    // annotations have HTA's own limit, not that of kernels
    let limits = breakdown::Limits { duration_ratio: options.duration_ratio, num_kernels: 1000 };
    let device = json(&annotation::breakdown(frames, annotation::Side::Device, limits));
    put("user_annotation_breakdown", device.clone());
    put("user_annotation_breakdown_gpu", device);
    put(
        "user_annotation_breakdown_cpu",
        json(&annotation::breakdown(frames, annotation::Side::Host, limits)),
    );
    put("kernels_with_user_annotations", json(&options.frame(frames).and_then(annotation::kernels)));
}

/// A record as JSON; what is not a number is `null`.
fn json(value: &(impl serde::Serialize + ?Sized)) -> Value {
    serde_json::to_value(value).expect("records have text keys and finite depth")
}

/// The results of `analyses` as one object.
pub fn run(frames: &Frames<'_>, analyses: &[Analysis], options: &Options) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("mode".to_owned(), json(&frames.mode));
    object.insert(
        "ranks".to_owned(),
        json(&frames.ranks.iter().map(|frame| frame.rank.rank).collect::<Vec<_>>()),
    );
    let answers = Answers::new(frames, options);
    for analysis in analyses {
        analysis.run(&answers, &mut object);
    }
    if frames.mode == Mode::Exact {
        object.insert("notes".to_owned(), json(&notes(frames)));
    }
    object
}

/// All notes on the sources, of all ranks; in exact mode also on what their events lack or contradict.
pub fn notes(frames: &Frames<'_>) -> Vec<base::Diagnostic> {
    let timeline = frames.timeline;
    let of_ranks = timeline.ranks.iter().flat_map(|rank| rank.notes.iter().cloned());
    let mut notes: Vec<base::Diagnostic> = timeline.notes.iter().cloned().chain(of_ranks).collect();
    if frames.mode == Mode::Exact {
        notes.extend(odd::notes(frames));
    }
    notes
}
