//! The critical path: the longest chain of events that each had to wait for the one before.

mod build;
mod graph;

use std::collections::BTreeMap;

use rustc_hash::FxHashSet;
use serde::Serialize;

pub use build::{RankGraph, build};
pub use graph::{Edge, EdgeKind, Graph, begin_of, end_of};

use crate::{Frame, Kind, stack, stats::micros};

/// What bounds the time of an edge.
pub type Bound = &'static str;

/// The critical path of one rank.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Critical {
    /// The annotation that was asked for.
    pub annotation: String,
    /// Which instance of it; absent for the whole trace.
    pub instance: Option<usize>,
    /// Whether there is a path.
    pub ok: bool,
    /// Nodes of the graph.
    pub nodes: usize,
    /// Edges of the graph.
    pub edges: usize,
    /// Nodes on the path.
    pub cp_nodes: usize,
    /// Events on the path.
    pub cp_events: usize,
    /// Length of the path in microseconds.
    pub total_duration: f64,
    /// Per cent of the length by what bounds it.
    pub bound_by_pct: BTreeMap<Bound, f64>,
    /// Microseconds by what bounds them.
    pub bound_by_us: BTreeMap<Bound, f64>,
    /// Microseconds by kind of edge.
    pub edge_types_us: BTreeMap<&'static str, f64>,
    /// Edges by kind.
    pub edge_types_n: BTreeMap<&'static str, usize>,
    /// From the begin of what was asked for to its end, in microseconds; in exact mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wall: Option<f64>,
    /// The events with the most time on the path; in exact mode.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<OnPath>,
}

/// An event's share of the path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OnPath {
    /// What it is called.
    pub name: String,
    /// What bounds it.
    pub bound_by: Bound,
    /// Microseconds on the path.
    pub time: f64,
    /// Per cent of the path.
    pub percent: f64,
    /// How many pieces of the path.
    pub count: usize,
}

/// Begin and end of the `instance`-th event whose name contains `annotation`, of everything for an empty annotation. `None`
/// if there is no such event.
pub fn window(frame: &Frame<'_>, annotation: &str, instance: usize) -> Option<(i64, i64)> {
    if annotation.is_empty() {
        return Some((i64::MIN, i64::MAX));
    }
    let matches = frame.timeline.names.map(|name| name.contains(annotation));
    let row = frame.rows().filter(|&row| matches[frame.name(row).0 as usize]).nth(instance)?;
    Some(frame.interval(row))
}

/// The critical path of an instance of an annotation; `None` if there is no such instance, or nothing in it.
pub fn critical_path(frame: &Frame<'_>, annotation: &str, instance: usize) -> Option<Critical> {
    let window = window(frame, annotation, instance)?;
    let built = build(frame, window);
    let path = built.graph.longest_path()?;
    let instance = (!annotation.is_empty()).then_some(instance);
    (built.graph.nodes() > 0).then(|| summarise(frame, &built, &path, annotation, instance))
}

fn summarise(
    frame: &Frame<'_>,
    built: &RankGraph,
    path: &[(u32, Edge)],
    annotation: &str,
    instance: Option<usize>,
) -> Critical {
    let total: i64 = path.iter().map(|(_, edge)| edge.weight).sum();
    let mut bounds: BTreeMap<Bound, i64> = BTreeMap::new();
    let mut kinds: BTreeMap<&'static str, (i64, usize)> = BTreeMap::new();
    for (to, edge) in path {
        *bounds.entry(bound(frame, built, *to, edge)).or_default() += edge.weight;
        let kind = kinds.entry(text(edge.kind)).or_default();
        *kind = (kind.0 + edge.weight, kind.1 + 1);
    }
    let events: FxHashSet<u32> = path.iter().flat_map(|(to, edge)| [to / 2, edge.from / 2]).collect();
    let exact = frame.mode == crate::Mode::Exact;
    Critical {
        annotation: annotation.to_owned(),
        instance,
        ok: !path.is_empty(),
        nodes: built.graph.nodes(),
        edges: built.graph.edges(),
        cp_nodes: if path.is_empty() { 0 } else { path.len() + 1 },
        cp_events: events.len(),
        total_duration: micros(total),
        bound_by_pct: bounds
            .iter()
            .map(|(&name, &time)| (name, 100.0 * time as f64 / total as f64))
            .collect(),
        bound_by_us: bounds.iter().map(|(&name, &time)| (name, micros(time))).collect(),
        edge_types_us: kinds.iter().map(|(&name, &(time, _))| (name, micros(time))).collect(),
        edge_types_n: kinds.iter().map(|(&name, &(_, count))| (name, count)).collect(),
        wall: exact.then(|| micros(built.window.1 - built.window.0)),
        top: if exact { top(frame, built, path, total) } else { Vec::new() },
    }
}

fn top(frame: &Frame<'_>, built: &RankGraph, path: &[(u32, Edge)], total: i64) -> Vec<OnPath> {
    let mut events: BTreeMap<(&str, Bound), (i64, usize)> = BTreeMap::new();
    for (to, edge) in path.iter().filter(|(_, edge)| edge.weight != 0) {
        let name = owner(built, *to, edge).map_or("(between calls)", |row| frame.text(row));
        let event = events.entry((name, bound(frame, built, *to, edge))).or_default();
        *event = (event.0 + edge.weight, event.1 + 1);
    }
    let mut events: Vec<_> = events.into_iter().collect();
    events.sort_by_key(|((name, _), (time, _))| (std::cmp::Reverse(*time), *name));
    let on_path = |((name, bound_by), (time, count)): ((&str, Bound), (i64, usize))| OnPath {
        name: name.to_owned(),
        bound_by,
        time: micros(time),
        percent: crate::stats::percent(time as f64, total as f64, 2),
        count,
    };
    events.into_iter().take(20).map(on_path).collect()
}

/// The row whose time an edge is.
pub fn owner(built: &RankGraph, to: u32, edge: &Edge) -> Option<usize> {
    let ends = |node: u32| node % 2 == 1;
    match edge.kind {
        EdgeKind::Operator if !ends(edge.from) => Some(built.row(edge.from)),
        EdgeKind::Operator if ends(to) => Some(built.row(to)),
        EdgeKind::Operator => {
            let parent = built.parent[edge.from as usize / 2];
            (parent != stack::NOTHING).then(|| built.rows[parent as usize] as usize)
        }
        EdgeKind::Dependency => None,
        EdgeKind::Launch | EdgeKind::Kernel | EdgeKind::Sync | EdgeKind::Rendezvous => {
            Some(built.row(edge.from))
        }
    }
}

fn bound(frame: &Frame<'_>, built: &RankGraph, to: u32, edge: &Edge) -> Bound {
    match edge.kind {
        EdgeKind::Kernel => "gpu_kernel_kernel_overhead",
        EdgeKind::Launch => "gpu_kernel_launch_overhead",
        EdgeKind::Dependency if frame.mode == crate::Mode::Exact => "cpu_between_calls",
        EdgeKind::Dependency | EdgeKind::Sync => "",
        EdgeKind::Rendezvous => "wait_for_other_rank",
        EdgeKind::Operator => match owner(built, to, edge) {
            Some(row) if frame.stream(row) >= 0 || frame.on_device(row) => match frame.kind(row) {
                Kind::Communication => "gpu_communication_bound",
                _ => "gpu_compute_bound",
            },
            _ => "cpu_bound",
        },
    }
}

/// How results call a kind of edge.
pub const fn text(kind: EdgeKind) -> &'static str {
    match kind {
        EdgeKind::Operator => "critical_path_operator",
        EdgeKind::Dependency => "critical_path_dependency",
        EdgeKind::Launch => "critical_path_kernel_launch_delay",
        EdgeKind::Kernel => "critical_path_kernel_kernel_delay",
        EdgeKind::Sync => "critical_path_sync_dependency",
        EdgeKind::Rendezvous => "critical_path_rendezvous",
    }
}
