//! State that only the update reads, on the host between steps, under limits that nothing else keeps.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "other tests use the rest")]
mod chains;

use cluster::Cluster;
use ir::{Arg, Graph, InputClass, InputId, Mesh, PartKind, ValueId};
use unisono_plan::{Offloading, Prediction, Recomputation, Request, search};

use crate::chains::{Free, machine, request, tensor};

const MUL: &str = "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor";
const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
const EXP: &str = "aten::exp(Tensor self) -> Tensor";

/// How many parameters a step has.
const PARAMETERS: usize = 24;
/// How many elements each has: more than what stays in buffers.
const ELEMENTS: i64 = 1 << 22;

/// A step with momentum: each parameter scales what the one before gives.
fn step() -> Graph {
    let (mut graph, ty) = (Graph::default(), tensor(ELEMENTS));
    let named = |graph: &mut Graph, class, name: &str| -> Vec<ValueId> {
        (0..PARAMETERS).map(|n| graph.input(class, format!("{name}.{n}"), ty.clone())).collect()
    };
    let parameters = named(&mut graph, InputClass::Parameter, "params");
    let momenta = named(&mut graph, InputClass::Optimizer, "optimizer");
    let batch = graph.input(InputClass::Batch, "batch.0", ty.clone());
    let push = |graph: &mut Graph, op: &str, mut operands: Vec<Arg>| {
        if op == ADD {
            operands.push(Arg::Int(1));
        }
        graph.push_value(op, operands, ty.clone())
    };
    graph.begin_part(PartKind::Forward);
    let mut made = vec![batch];
    for parameter in &parameters {
        let scaled = push(&mut graph, MUL, vec![Arg::Value(*made.last().unwrap()), Arg::Value(*parameter)]);
        made.push(push(&mut graph, EXP, vec![Arg::Value(scaled)]));
    }
    graph.begin_part(PartKind::Backward);
    let mut gradient = *made.last().unwrap();
    let mut gradients = Vec::new();
    for (parameter, read) in parameters.iter().zip(&made).rev() {
        gradients.push(push(&mut graph, MUL, vec![Arg::Value(gradient), Arg::Value(*read)]));
        gradient = push(&mut graph, MUL, vec![Arg::Value(gradient), Arg::Value(*parameter)]);
    }
    gradients.reverse();
    graph.begin_part(PartKind::Update);
    for n in 0..PARAMETERS {
        let momentum = push(&mut graph, ADD, vec![Arg::Value(momenta[n]), Arg::Value(gradients[n])]);
        let parameter = push(&mut graph, ADD, vec![Arg::Value(parameters[n]), Arg::Value(momentum)]);
        graph.updates.push((InputId(n as u32), parameter));
        graph.updates.push((InputId((PARAMETERS + n) as u32), momentum));
    }
    graph
}

/// A machine whose link to the host takes twice as long as its memory.
fn linked() -> Cluster {
    let mut cluster = machine();
    cluster.device.host_bandwidth = Some(cluster.device.memory_bandwidth / 2.0);
    cluster.device.host_latency_ns = 10.0;
    cluster
}

struct Asked {
    graph: Graph,
    mesh: Mesh,
    unsaid: Free,
}

impl Asked {
    fn new() -> Self {
        Self { graph: step(), mesh: Mesh::along("a", 1), unsaid: Free::default() }
    }

    fn found(
        &self,
        cluster: &Cluster,
        offload: Option<Offloading>,
        limit: Option<u64>,
    ) -> base::Result<Prediction> {
        let asked = request(&self.graph, cluster, &self.mesh, &self.unsaid);
        search(&Request { offload, memory_limit: limit, ..asked }).map(|found| found.best.prediction)
    }
}

#[test]
fn state_on_the_host_keeps_limits_that_nothing_else_keeps() {
    let (asked, cluster) = (Asked::new(), linked());
    let free = asked.found(&cluster, None, None).unwrap();
    assert_eq!((free.host_state_bytes, free.offloaded_bytes), (0, 0));
    let smallest = |offload: Option<Offloading>| {
        let keeps = |share: &u64| asked.found(&cluster, offload, Some(free.peak_bytes * share / 100)).is_ok();
        (40..=100).rev().step_by(5).take_while(keeps).last().unwrap()
    };
    let (with, without) = (smallest(None), smallest(Some(Offloading::Activations)));
    assert!(with + 10 <= without, "{with} % and {without} % of what is held without a limit");
    let limit = free.peak_bytes * with / 100;
    let found = asked.found(&cluster, None, Some(limit)).unwrap();
    assert!(found.peak_bytes <= limit && found.host_state_bytes > 0, "{found:?}");
    assert!(found.host_bytes >= found.host_state_bytes && found.offloaded_bytes >= found.host_state_bytes);
    assert!(found.state_bytes < free.state_bytes, "{found:?}");
    assert!(found.step_ns > free.step_ns);
}

/// More memory makes no plan slower.
#[test]
fn time_does_not_rise_with_memory() {
    let (asked, cluster) = (Asked::new(), linked());
    let free = asked.found(&cluster, None, None).unwrap();
    let mut last = i64::MAX;
    for share in (50..=100).step_by(5) {
        if let Ok(found) = asked.found(&cluster, None, Some(free.peak_bytes * share / 100)) {
            assert!(
                found.step_ns as f64 <= last as f64 * 1.02,
                "{share} %: {} ns after {last}",
                found.step_ns
            );
            last = last.min(found.step_ns);
        }
    }
    assert_eq!(last, free.step_ns);
}

#[test]
fn all_state_is_on_the_host_where_that_is_asked_for_and_none_where_it_is_forbidden() {
    let (asked, cluster) = (Asked::new(), linked());
    let bytes = PARAMETERS as u64 * ELEMENTS as u64 * 4;
    let all = asked.found(&cluster, Some(Offloading::Optimizer), None).unwrap();
    assert_eq!((all.host_state_bytes, all.offloaded_bytes, all.host_bytes), (bytes, bytes, bytes));
    assert_eq!(all.recomputed_ns, 0);
    let free = asked.found(&cluster, None, None).unwrap();
    let none = asked.found(&cluster, Some(Offloading::None), Some(free.peak_bytes * 9 / 10));
    assert!(none.is_err() || none.unwrap().host_state_bytes == 0);
    let full = asked.found(&cluster, Some(Offloading::Full), None).unwrap();
    assert!(full.host_state_bytes == bytes && full.offloaded_bytes > bytes);
}

#[test]
fn the_host_holds_no_more_state_than_it_has_memory() {
    let asked = Asked::new();
    let mut cluster = linked();
    let bytes = 3 * ELEMENTS as u64 * 4;
    cluster.device.host_memory_bytes = Some(bytes);
    let free = asked.found(&cluster, None, None).unwrap();
    let recompute = Some(Recomputation::None);
    for share in (60..100).step_by(5) {
        let unsaid = request(&asked.graph, &cluster, &asked.mesh, &asked.unsaid);
        let memory_limit = Some(free.peak_bytes * share / 100);
        if let Ok(found) = search(&Request { memory_limit, recompute, ..unsaid }) {
            assert!(found.best.prediction.host_bytes <= bytes, "{:?}", found.best.prediction);
        }
    }
}
