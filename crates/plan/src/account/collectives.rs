//! Collectives by kind, axis and what they move, and within these by the changes of placement that they serve.

use indexmap::IndexMap;
use ir::{CollectiveKind, Graph, NodeId, PartKind};
use serde::Serialize;

use super::{
    causes::{changes, meant},
    times::{Times, millis},
};
use crate::roles::{gradients, of_state};

/// Collectives of a kind along an axis that move the same.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CollectiveTime {
    /// What they do.
    pub kind: String,
    /// Whether each rank sends to each other one, in one round.
    pub direct: bool,
    /// Along which axis.
    pub axis: String,
    /// What they move: `parameters`, `gradients`, `new parameters`, `activations`.
    pub of: &'static str,
    /// How many there are.
    pub count: u32,
    /// Bytes of the whole tensors that they gather, reduce or hand on; of an all-to-all those of one rank.
    pub bytes: u64,
    /// Their time, in milliseconds.
    pub ms: f64,
    /// How much of it the rank waits for, in milliseconds.
    pub exposed_ms: f64,
    /// Why they exist, most time first.
    pub causes: Vec<CauseTime>,
}

impl CollectiveTime {
    /// What they do, for people.
    pub fn name(&self) -> String {
        if self.direct { format!("direct {}", self.kind) } else { self.kind.clone() }
    }
}

/// Collectives that serve the same changes of placement, but for numbers in paths.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct CauseTime {
    /// The changes: one, or all those that a bucket joins.
    pub changes: Vec<String>,
    /// The line of the user's code that the first one comes from.
    pub place: Option<String>,
    /// How many collectives there are.
    pub count: u32,
    /// Their bytes.
    pub bytes: u64,
    /// Their time, in milliseconds.
    pub ms: f64,
    /// How much of it the rank waits for, in milliseconds.
    pub exposed_ms: f64,
}

/// What the collectives of a graph move.
pub fn moved(graph: &Graph) -> impl Fn(NodeId) -> &'static str {
    let (of_state, gradients) = (of_state(graph), gradients(graph));
    move |id| {
        let node = &graph.nodes[id];
        let gathers = meant(graph, id).0 == CollectiveKind::AllGather.text();
        if node.operands().all(|value| of_state[value]) {
            "parameters"
        } else if gathers && graph.part_kind(id) == PartKind::Update {
            "new parameters"
        } else if node.results().all(|value| gradients[value]) {
            "gradients"
        } else {
            "activations"
        }
    }
}

/// What collectives do, whether they are direct, their axis, and what they move.
type Key = ((String, bool), String, &'static str);

/// The collectives that a rank runs.
pub fn by_collective(graph: &Graph, times: &Times) -> Vec<CollectiveTime> {
    let moved = moved(graph);
    let mut sums: IndexMap<Key, IndexMap<Vec<String>, CauseTime>> = IndexMap::new();
    for (at, id) in graph.order.iter().enumerate() {
        let Some(collective) = graph.collective(*id) else { continue };
        let key = (meant(graph, *id), collective.axis.to_owned(), moved(*id));
        let changes = changes(graph, *id);
        let cause = sums.entry(key).or_default().entry(changes.clone()).or_insert_with(|| CauseTime {
            changes,
            place: graph.place(*id).map(|place| format!("{}:{}", place.file, place.line)),
            ..CauseTime::default()
        });
        cause.count += 1;
        cause.bytes += collective.bytes.0;
        cause.ms += millis(times.collectives[at]);
        cause.exposed_ms += millis(times.exposed[at]);
    }
    let all = sums.into_iter().map(|(((kind, direct), axis, of), causes)| {
        let mut causes: Vec<CauseTime> = causes.into_values().collect();
        causes.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        CollectiveTime {
            kind,
            direct,
            axis,
            of,
            count: causes.iter().map(|cause| cause.count).sum(),
            bytes: causes.iter().map(|cause| cause.bytes).sum(),
            ms: causes.iter().map(|cause| cause.ms).sum(),
            exposed_ms: causes.iter().map(|cause| cause.exposed_ms).sum(),
            causes,
        }
    });
    let mut found: Vec<CollectiveTime> = all.collect();
    found.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    found
}
