//! A plan in figures, for programs and pages: what `unisono plan --json` prints.

use std::collections::BTreeMap;

use aten::{Call, Work};
use base::{Bytes, Nanos, Result};
use cluster::Cluster;
use cost::Machine;
use indexmap::IndexMap;
use ir::{Dtype, Graph, InputClass, Placement, RankGraph};
use rustc_hash::FxHashMap;
use schedule::Kind;
use serde::Serialize;

use crate::{
    account::{Account, account},
    kernels::all_seen,
    plan::Plan,
    step::programs,
    text::patterns::folded,
};

/// Summaries are in milliseconds, everything else is in nanoseconds.
pub const NANOS_PER_MILLI: f64 = 1e6;
const MILLIS_PER_SECOND: f64 = 1e3;

/// A time of a summary.
pub fn nanos(millis: f64) -> Nanos {
    Nanos((millis * NANOS_PER_MILLI).round() as i64)
}

/// State whose names differ in numbers only and that lies alike.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct StatePattern {
    /// The names, with `*` for numbers.
    pub names: String,
    /// How many there are.
    pub count: u32,
    /// Bytes of all of them on one device.
    pub bytes: u64,
    /// Their placement along each axis where it is another than `replicate`.
    pub layout: IndexMap<String, Placement>,
}

/// A plan that was considered.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OtherPlan {
    /// What it is.
    pub label: String,
    /// Its predicted time, in milliseconds.
    pub step_ms: f64,
    /// Its predicted memory, in bytes.
    pub peak_bytes: u64,
    /// What of the time is waiting for collectives, in milliseconds; none where the plan was made before this was kept.
    pub exposed_ms: Option<f64>,
    /// Whether it keeps the memory limit.
    pub fits: bool,
}

/// One stage of a pipeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StageSummary {
    /// Its operations.
    pub busy_ms: f64,
    /// Waiting, for other stages and for collectives that nothing hides.
    pub waiting_ms: f64,
    /// Most memory of one of its ranks.
    pub peak_bytes: u64,
    /// What it copies to the host in a step, and back.
    pub offloaded_bytes: u64,
    /// The most that is on the host at once, state included.
    pub host_bytes: u64,
    /// State of it that is on the host between steps.
    pub host_state_bytes: u64,
    /// Waiting for these copies.
    pub exposed_copies_ms: f64,
}

/// A pipeline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PipelineSummary {
    /// In which order each stage runs its micro-batches.
    pub schedule: Kind,
    /// How many chunks of the program each stage has, where it is the same for all; else the most.
    pub chunks: u32,
    /// The share of the step in which stages run no operation, on average.
    pub bubble: f64,
    /// The stages.
    pub stages: Vec<StageSummary>,
}

/// A plan in figures. Times are in milliseconds of one step, bytes those of one rank.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// What the plan is, in the field's words.
    pub label: String,
    /// The device that it is for.
    pub device: String,
    /// The axes of the mesh with their sizes, the outer one first.
    pub mesh: IndexMap<String, u32>,
    /// How many ranks there are.
    pub ranks: u32,
    /// How many micro-batches a rank computes one after the other.
    pub micro_batches: u32,
    /// The pipeline, where the program is taken apart into stages.
    pub pipeline: Option<PipelineSummary>,
    /// Predicted time of a step.
    pub step_ms: f64,
    /// What of it the host takes around the program.
    pub call_ms: f64,
    /// Operations alone.
    pub compute_ms: f64,
    /// Operations of forward that run again in backward.
    pub recomputed_ms: f64,
    /// What is copied to the host in a step, and back; with stages, by the one that has most there.
    pub offloaded_bytes: u64,
    /// The most that is on the host of it at once.
    pub host_bytes: u64,
    /// State that is on the host between steps.
    pub host_state_bytes: u64,
    /// Waiting for these copies.
    pub exposed_copies_ms: f64,
    /// Collectives alone, hidden or not.
    pub communication_ms: f64,
    /// Waiting for collectives.
    pub exposed_ms: f64,
    /// Products, attention and convolutions divided over all ranks, and nothing else: no plan on so many ranks takes less, whatever it hides.
    pub least_ms: f64,
    /// The plan in the model of the search, along the innermost axis: operations and collectives one after the other.
    pub model_ms: f64,
    /// No choice along that axis takes less in that model.
    pub bound_ms: f64,
    /// How far the plan is above that bound, as a share of it.
    pub gap: f64,
    /// Tokens in the batch, where it has tensors of integers with at least two dimensions.
    pub tokens_per_step: Option<u64>,
    /// Tokens per second of all ranks.
    pub tokens_per_second: Option<f64>,
    /// Most memory of a rank.
    pub peak_bytes: u64,
    /// What is alive then.
    pub memory: IndexMap<&'static str, u64>,
    /// The limit that the plan keeps.
    pub memory_limit: Option<u64>,
    /// What limits the plan, in a sentence.
    pub limited_by: String,
    /// Parameters, buffers and optimizer state.
    pub state: Vec<StatePattern>,
    /// Where the time goes.
    #[serde(flatten)]
    pub account: Account,
    /// Other plans that were considered, best first.
    pub runners_up: Vec<OtherPlan>,
    /// Axes along which nothing that is mostly computation can be sharded.
    pub undivided: Vec<String>,
    /// Operators that run replicated because nothing is known of how they shard, with their number.
    pub without_row: BTreeMap<String, u32>,
    /// What each of them takes on every rank at least, all its calls together.
    pub without_row_ns: BTreeMap<String, i64>,
}

/// The figures of a plan for a graph on a cluster; `known` is what a rank runs, its graph after the passes, where that was made already.
pub fn summary(
    graph: &Graph,
    known: Option<&RankGraph>,
    plan: &Plan,
    cluster: &Cluster,
    memory_limit: Option<u64>,
) -> Result<Summary> {
    let mesh = plan.mesh();
    let p = &plan.prediction;
    let millis = |nanos: i64| nanos as f64 / NANOS_PER_MILLI;
    let step_ms = millis(p.step_ns);
    let tokens = tokens(graph);
    let others = plan.runners_up.iter().map(|other| OtherPlan {
        label: other.name.clone(),
        step_ms: millis(other.step_ns),
        peak_bytes: other.peak_bytes,
        exposed_ms: other.exposed_ns.map(millis),
        fits: other.fits,
    });
    Ok(Summary {
        label: plan.label.clone(),
        device: cluster.device.name.clone(),
        ranks: mesh.ranks(),
        micro_batches: plan.micro_batches,
        pipeline: plan.stages.as_ref().map(|stages| PipelineSummary {
            schedule: stages.schedule,
            chunks: stages.most_chunks(),
            bubble: stages.bubble(p.step_ns - p.call_ns),
            stages: stages
                .predicted
                .iter()
                .map(|stage| StageSummary {
                    busy_ms: millis(stage.busy_ns),
                    waiting_ms: millis(stage.waiting_ns),
                    peak_bytes: stage.peak_bytes,
                    offloaded_bytes: stage.offloaded_bytes,
                    host_bytes: stage.host_bytes,
                    host_state_bytes: stage.host_state_bytes,
                    exposed_copies_ms: millis(stage.exposed_copies_ns),
                })
                .collect(),
        }),
        mesh: plan.mesh.clone(),
        step_ms,
        call_ms: millis(p.call_ns),
        compute_ms: millis(p.compute_ns),
        recomputed_ms: millis(p.recomputed_ns),
        offloaded_bytes: p.offloaded_bytes,
        host_state_bytes: p.host_state_bytes,
        host_bytes: p.host_bytes,
        exposed_copies_ms: millis(p.exposed_copies_ns),
        communication_ms: millis(p.communication_ns),
        exposed_ms: millis(p.exposed_ns),
        least_ms: least_ms(graph, cluster, mesh.ranks()),
        model_ms: millis(p.model_ns),
        bound_ms: millis(p.bound_ns),
        gap: if p.bound_ns > 0 { p.model_ns as f64 / p.bound_ns as f64 - 1.0 } else { 0.0 },
        tokens_per_step: tokens,
        tokens_per_second: tokens.map(|tokens| tokens as f64 / step_ms * MILLIS_PER_SECOND),
        peak_bytes: p.peak_bytes,
        memory: p.at_peak_by_category().map(|part| (part.name, part.bytes)).into_iter().collect(),
        memory_limit,
        limited_by: plan.limit.clone(),
        state: state(graph, plan),
        account: accounted(graph, known, plan, cluster, memory_limit)?,
        runners_up: others.collect(),
        undivided: plan.undivided.clone(),
        without_row: plan.without_row.clone(),
        without_row_ns: plan.without_row_ns.clone(),
    })
}

/// Where time and memory go: in the programs of the pipeline's stages, or in the one of a rank that stands for all, which may be known.
pub fn accounted(
    graph: &Graph,
    known: Option<&RankGraph>,
    plan: &Plan,
    cluster: &Cluster,
    memory_limit: Option<u64>,
) -> Result<Account> {
    let mesh = plan.mesh();
    let machine = Machine { cluster, mesh: &mesh };
    let programs = programs(graph, plan, known)?.map(|programs| all_seen(programs, plan))?;
    account(&programs, machine, memory_limit.map(Bytes))
}

/// The time of what is mostly computation, divided over all ranks, in milliseconds.
fn least_ms(graph: &Graph, cluster: &Cluster, ranks: u32) -> f64 {
    let seconds = |id| {
        let call = Call::new(graph, id);
        let Some((row, Work::Flops(flops))) = aten::row(call.name()).map(|row| (row, row.work)) else {
            return 0.0;
        };
        flops(&call).0 as f64 / cost::compute_rate(cluster, row, &call)
    };
    graph.order.iter().map(|id| seconds(*id)).sum::<f64>() / f64::from(ranks) * MILLIS_PER_SECOND
}

/// The tokens of the batch: the elements of its largest tensor of integers with at least two dimensions.
fn tokens(graph: &Graph) -> Option<u64> {
    let batch = graph.inputs.values().filter(|input| input.class == InputClass::Batch);
    let types = batch.map(|input| graph.ty(input.value));
    let tokens = types.filter(|ty| matches!(ty.dtype, Dtype::I64 | Dtype::I32) && ty.shape.len() >= 2);
    tokens.map(|ty| ty.shape.iter().product::<i64>() as u64).max()
}

fn state(graph: &Graph, plan: &Plan) -> Vec<StatePattern> {
    let mut patterns: Vec<StatePattern> = Vec::new();
    let mut places: FxHashMap<(String, String), usize> = FxHashMap::default();
    for input in graph.inputs.values().filter(|input| input.class.is_state()) {
        let layout = plan.inputs.get(&input.name).cloned().unwrap_or_default();
        let names = folded(&input.name);
        let place = *places.entry((names.clone(), format!("{layout:?}"))).or_insert(patterns.len());
        if place == patterns.len() {
            patterns.push(StatePattern { names, count: 0, bytes: 0, layout });
        }
        patterns[place].count += 1;
        patterns[place].bytes += graph.ty(input.value).bytes().0;
    }
    patterns
}
