//! A plan for people.

mod goes;

use std::{collections::BTreeMap, fmt::Write};

use aten::Call;
use base::{Bytes, Nanos, Result};
use cluster::{Cluster, Kind};
use cost::{Machine, local_time};
use ir::{Graph, Mesh, Placement, RankGraph};
use passes::WideProducts;

use crate::{
    account::Account,
    axis::PICOS_PER_NANO,
    plan::{Plan, Prediction},
    stages::StagePrediction,
    step::program,
    summary::accounted,
};

use goes::{Whose, goes};
pub use goes::{changes, module_name, short};

/// What a plan does, for people; with a cluster also where time and memory go on it.
pub fn explain_plan(
    graph: &Graph,
    plan: &Plan,
    cluster: Option<&Cluster>,
    memory_limit: Option<u64>,
) -> Result<String> {
    let local = program(graph, plan, 0, |_| {})?;
    let account =
        cluster.map(|cluster| accounted(graph, Some(&local), plan, cluster, memory_limit)).transpose()?;
    let mut text = explain(plan, &local, account.as_ref());
    if let Some(cluster) = cluster {
        text.push_str(&limiting_kinds(&local, plan, cluster));
    }
    if cluster.is_some_and(|cluster| cluster.fingerprint() != plan.cluster) {
        text.push_str(
            "  note: the plan was made for another machine than the one that is said to take these times\n",
        );
    }
    Ok(text)
}

/// Which of several kinds of devices limit a plan, in lines.
fn limiting_kinds(graph: &RankGraph, plan: &Plan, cluster: &Cluster) -> String {
    let mesh = plan.mesh();
    let taken = |kind: &Kind| {
        let machine = Machine { cluster: &kind.cluster, mesh: &mesh };
        let calls = graph.order.iter().filter(|id| !graph.is_communication(**id));
        Nanos(calls.map(|id| local_time(machine, &Call::new(graph, *id))).sum::<i64>() / PICOS_PER_NANO)
    };
    let times: Vec<(Nanos, &Kind)> = cluster.kinds.iter().map(|kind| (taken(kind), kind)).collect();
    let mut text = String::new();
    let slowest = times.iter().max_by_key(|(time, _)| *time);
    let smallest = cluster.kinds.iter().min_by_key(|kind| kind.cluster.device.memory_bytes);
    let (Some((_, slowest)), Some(smallest)) = (slowest, smallest) else { return text };
    let _ = writeln!(
        text,
        "  devices   each operation takes what the slowest kind takes, most of all {}; the smallest memory is that of {}",
        slowest.cluster.device.name, smallest.cluster.device.name
    );
    for (time, Kind { ranks, cluster }) in &times {
        let device = &cluster.device;
        let _ = writeln!(
            text,
            "            {ranks} x {}: {time} for the operations alone, {} of memory",
            device.name,
            Bytes(device.memory_bytes)
        );
    }
    text
}

/// Along which axis the model's bound is, where there are several: the innermost, on the graph that those outside it leave.
fn along_innermost(mesh: &Mesh) -> String {
    let axes: Vec<_> = mesh.sharding_axes().filter(|axis| axis.rank_count() > 1).collect();
    match axes[..] {
        [_, .., innermost] => format!(" along {}", innermost.name),
        _ => String::new(),
    }
}

/// What runs again in backward, what is on the host until then, and which state is there; with stages, of the one that has most there.
fn held_less(text: &mut String, p: &Prediction, in_stages: bool) {
    let whose = if in_stages { ", of the stage that has most there" } else { "" };
    if p.recomputed_ns > 0 {
        let _ = writeln!(
            text,
            "  recompute {} of operations of forward run again in backward",
            Nanos(p.recomputed_ns)
        );
    }
    let of_forward = p.offloaded_bytes - p.host_state_bytes;
    if of_forward > 0 {
        let _ = writeln!(
            text,
            "  offload   {} of what forward leaves are on the host until backward, {} at most at once{whose}; {} of waiting for copies",
            Bytes(of_forward),
            Bytes(p.host_bytes - p.host_state_bytes),
            Nanos(p.exposed_copies_ns)
        );
    }
    if p.host_state_bytes > 0 {
        let _ = writeln!(
            text,
            "  offload   {} of state are on the host between steps, and come piece by piece for the update{whose}; {} of waiting for copies",
            Bytes(p.host_state_bytes),
            Nanos(p.exposed_copies_ns)
        );
    }
}

/// What of a stage is on the host, behind what it holds.
fn on_host(stage: &StagePrediction) -> String {
    let of_forward = stage.host_bytes.saturating_sub(stage.host_state_bytes);
    let parts = [(stage.host_state_bytes, "of state"), (of_forward, "of what forward leaves")];
    let parts = parts.into_iter().filter(|(bytes, _)| *bytes > 0);
    let said: Vec<String> = parts.map(|(bytes, what)| format!("{} {what}", Bytes(bytes))).collect();
    match &said[..] {
        [] => String::new(),
        said => format!(
            "; on the host {}, {} of waiting for copies",
            said.join(" and "),
            Nanos(stage.exposed_copies_ns)
        ),
    }
}

/// What is done for groups of operations that run as kernels.
fn kernels(plan: &Plan, graph: &RankGraph) -> String {
    if !plan.kernels {
        return String::new();
    }
    let mut text =
        "  kernels   groups of operations count as one; plans below were compared without\n".to_owned();
    if !plan.narrow.is_empty() {
        let types: Vec<&str> = plan.narrow.iter().map(|dtype| dtype.text()).collect();
        let products = WideProducts { narrow: plan.narrow.clone() }.count(graph);
        let types = types.join(" and ");
        let _ = writeln!(
            text,
            "  products  {products} of {types} computed in f32, for want of instructions (wide_products)"
        );
    }
    text
}

/// What a plan does, what it is expected to cost and what it was chosen over; `graph` is one rank's graph. Where time and memory go is said
/// where an account is given.
fn explain(plan: &Plan, graph: &RankGraph, account: Option<&Account>) -> String {
    let mut text = String::new();
    let axes: Vec<String> = plan.mesh.iter().map(|(name, size)| format!("{name} = {size}")).collect();
    let p = &plan.prediction;
    let _ = writeln!(text, "plan {} on mesh [{}]: {}", plan.fingerprint(), axes.join(", "), plan.label);
    for axis in &plan.undivided {
        let ranks = plan.mesh.get(axis).copied().unwrap_or(1);
        let _ = writeln!(
            text,
            "  warning: {}\n  hint: choose no more ranks than the batch has samples",
            undivided(axis, ranks)
        );
    }
    let _ = writeln!(
        text,
        "  step      {} predicted: {} of operations, {} of waiting{}; {} collectives take {}",
        Nanos(p.step_ns),
        Nanos(p.compute_ns),
        Nanos(p.exposed_ns),
        if p.call_ns > 0 { format!(", {} on the host around them", Nanos(p.call_ns)) } else { String::new() },
        p.collectives,
        Nanos(p.communication_ns)
    );
    let _ = writeln!(text, "  memory    {} at the peak of a rank: {}", Bytes(p.peak_bytes), p.at_peak());
    held_less(&mut text, p, plan.stages.is_some());
    let _ = writeln!(text, "  limited by {}", plan.limit);
    if let Some(stages) = &plan.stages {
        let _ = writeln!(
            text,
            "  pipeline  {} stages{}, {} micro-batches in the order {}; a stage is idle {:.0} % of the step on average",
            stages.count(),
            if stages.most_chunks() > 1 {
                format!(" of {} chunks", stages.most_chunks())
            } else {
                String::new()
            },
            plan.micro_batches,
            stages.schedule,
            100.0 * stages.bubble(p.step_ns - p.call_ns)
        );
        for (number, stage) in stages.predicted.iter().enumerate() {
            let begins = stages.begins(number as u32);
            let _ = writeln!(
                text,
                "  stage {number:<3} from operation {begins} of forward on: {} of operations, {} of waiting, {} at the peak{}",
                Nanos(stage.busy_ns),
                Nanos(stage.waiting_ns),
                Bytes(stage.peak_bytes),
                on_host(stage)
            );
        }
    }
    if p.model_ns > 0 {
        let _ = writeln!(
            text,
            "  search    {} in the model without buckets and overlap, where no choice{} takes less than {}",
            Nanos(p.model_ns),
            along_innermost(&plan.mesh()),
            Nanos(p.bound_ns)
        );
    }
    let _ = writeln!(
        text,
        "  batch     {}",
        placements(plan, |name| name.starts_with(BATCH), "sliced where it is used")
    );
    let _ = writeln!(text, "  state     {}", placements(plan, |name| !name.starts_with(BATCH), "replicated"));
    for (what, count) in collectives(graph) {
        let _ = writeln!(text, "  {count:>4} x {what}");
    }
    let whose = if plan.stages.is_some() { Whose::STAGES } else { Whose::default() };
    text.push_str(&account.map_or_else(String::new, |account| goes(account, whose)));
    text.push_str(&kernels(plan, graph));
    for other in &plan.runners_up {
        let waiting = other
            .exposed_ns
            .map_or_else(String::new, |waiting| format!(", {} of it waiting", Nanos(waiting)));
        let _ = writeln!(
            text,
            "  rejected: {}: {} predicted{waiting}, {}{}",
            other.name,
            Nanos(other.step_ns),
            Bytes(other.peak_bytes),
            if other.fits { "" } else { ", over the memory limit" }
        );
    }
    let ranks = plan.mesh().ranks();
    for (operator, count) in &plan.without_row {
        let nanos = plan.without_row_ns.get(operator).copied();
        let _ = writeln!(text, "  note: {}", without_row(operator, *count, nanos, ranks));
    }
    text
}

/// What it means that an axis divides nothing that is mostly computation.
pub fn undivided(axis: &str, ranks: u32) -> String {
    format!(
        "no matrix product, attention or convolution of this step has a dimension that the {ranks} ranks of `{axis}` can share: each of \
         them does all of that work"
    )
}

/// Why an operator runs replicated, and what that costs.
pub fn without_row(operator: &str, count: u32, nanos: Option<i64>, ranks: u32) -> String {
    let reason = if aten::row(operator).is_some_and(|row| row.draws.is_some()) {
        "what it draws are PyTorch's numbers; with `rng=\"counter\"` each rank draws its part"
    } else {
        "the operation table has no row for it, and no rule is registered"
    };
    let cost = nanos.map(|nanos| {
        let divided = Nanos(nanos / i64::from(ranks.max(1)));
        format!(
            "; moving its tensors alone takes {} on every rank, and {divided} if it were sharded",
            Nanos(nanos)
        )
    });
    format!("{count} x {operator} runs replicated: {reason}{}", cost.unwrap_or_default())
}

/// What names of the batch's tensors begin with.
const BATCH: &str = "batch.";

/// How inputs with certain names come to a rank, by axis; `otherwise` where nothing is said of them.
fn placements(plan: &Plan, counted: impl Fn(&str) -> bool, otherwise: &str) -> String {
    let mut counts: BTreeMap<(&str, Placement), u32> = BTreeMap::new();
    for (_, layout) in plan.inputs.iter().filter(|(name, _)| counted(name)) {
        for (axis, placement) in layout {
            *counts.entry((axis, *placement)).or_default() += 1;
        }
    }
    let named = plan.mesh.len() > 1;
    let parts: Vec<String> = counts
        .iter()
        .map(|((axis, placement), count)| {
            let on = if named { format!(" on {axis}") } else { String::new() };
            format!("{count} x {placement}{on}")
        })
        .collect();
    if parts.is_empty() { otherwise.into() } else { format!("{}, the rest {otherwise}", parts.join(", ")) }
}

/// Collectives by kind, with the bytes of the whole tensors that they gather, reduce or hand on; of an all-to-all those of one rank.
fn collectives(graph: &RankGraph) -> Vec<(String, u32)> {
    let mut kinds: BTreeMap<String, (u32, u64)> = BTreeMap::new();
    for id in &graph.order {
        let Some(collective) = graph.collective(*id) else { continue };
        let node = &graph.nodes[*id];
        let label = node.label.map(|label| graph.labels[label].as_str());
        let kind = match label.and_then(passes::direct_form_of) {
            Some(meant) => format!("{meant}, direct"),
            None => collective.kind.to_string(),
        };
        let entry = kinds.entry(kind).or_default();
        entry.0 += 1;
        entry.1 += collective.bytes.0;
    }
    kinds
        .into_iter()
        .map(|(name, (count, bytes))| (format!("{name}, {} in all", Bytes(bytes)), count))
        .collect()
}
