//! Questions about single events: filters, call stacks, what is below a call, and curves point by point.

use serde::{Deserialize, Serialize};

use crate::{
    Frame, Frames, bandwidth, queue,
    source::{Origin, Sources},
    stack::{CallGraph, NOTHING},
    stats::micros,
};

/// Which events. Every member narrows the choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Query {
    /// Of this rank.
    pub rank: Option<u32>,
    /// Their name contains this.
    pub name: String,
    /// Their category is spelt so, such as `cpu_op` or `kernel`.
    pub category: Option<String>,
    /// They are on a device, or not.
    pub device: Option<bool>,
    /// Of this stream.
    pub stream: Option<i64>,
    /// Of this iteration.
    pub iteration: Option<i64>,
    /// Only events that end at or after this, in microseconds since the first event.
    pub from: Option<f64>,
    /// Only events that begin at or before this, in microseconds since the first event.
    pub to: Option<f64>,
    /// The event at this place of its source's list, and everything below it, launched kernels included.
    pub under: Option<u32>,
    /// Maximum number of events; 0 is all.
    pub limit: usize,
}

/// An event with its place in the call graph. Times are microseconds since the first event.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EventRow {
    /// The rank.
    pub rank: u32,
    /// Its place in the list of its source, from 0.
    pub index: u32,
    /// What it is called.
    pub name: String,
    /// Its category.
    pub category: &'static str,
    /// When it begins.
    pub ts: f64,
    /// How long it takes.
    pub dur: f64,
    /// Its stream, -1 where there is none.
    pub stream: i64,
    /// What joins it to its launch or kernel, -1 where there is none.
    pub correlation: i64,
    /// Place of the launch or kernel that it is joined to.
    pub linked: Option<u32>,
    /// The iteration that it belongs to.
    pub iteration: Option<i64>,
    /// Place of the event that encloses it on its thread.
    pub parent: Option<u32>,
    /// How many events enclose it.
    pub depth: u16,
    /// Levels of calls below it: 1 without any, 0 for kernels.
    pub height: u16,
    /// Kernels launched by it or below it.
    pub num_kernels: u32,
    /// Their time.
    pub kernel_dur_sum: f64,
    /// From the begin of the first to the end of the last.
    pub kernel_span: f64,
    /// Begin of the first.
    pub first_kernel_start: Option<f64>,
    /// End of the last.
    pub last_kernel_end: Option<f64>,
    /// Where it comes from.
    #[serde(flatten)]
    pub origin: Origin,
}

/// The events that `query` chooses, by rank, in the order of their begin.
pub fn events(frames: &Frames<'_>, query: &Query) -> Vec<EventRow> {
    let mut table = Vec::new();
    let ranks = frames.ranks.iter().filter(|frame| query.rank.is_none_or(|rank| rank == frame.rank.rank));
    for frame in ranks {
        let graph = CallGraph::of(frame);
        let mut rows: Vec<usize> = match query.under {
            Some(index) => under(frame, &graph, index),
            None => frame.rows().collect(),
        };
        rows.retain(|&row| query.chooses(frame, row));
        rows.sort_by_key(|&row| (frame.begin[row], std::cmp::Reverse(frame.end(row)), row));
        if query.limit > 0 {
            rows.truncate(query.limit.saturating_sub(table.len()));
        }
        table.extend(rows.into_iter().map(|row| event(frame, &graph, row)));
    }
    table
}

/// The event at a place of its source's list, with all that enclose it: outermost first. For one on a device, its launch too.
pub fn stack(frames: &Frames<'_>, rank: Option<u32>, index: u32) -> Vec<EventRow> {
    let frame = frames.ranks.iter().find(|frame| rank.is_none_or(|rank| rank == frame.rank.rank));
    let Some((frame, row)) = frame.and_then(|frame| Some((frame, row_of(frame, index)?))) else {
        return Vec::new();
    };
    let graph = CallGraph::of(frame);
    let launch = if frame.joins_as_device(row) { frame.link[row].row() } else { None };
    let mut rows: Vec<usize> = graph.stacks.path(launch.unwrap_or(row)).collect();
    rows.reverse();
    rows.extend(launch.map(|_| row));
    rows.into_iter().map(|row| event(frame, &graph, row)).collect()
}

impl Query {
    fn chooses(&self, frame: &Frame<'_>, row: usize) -> bool {
        let time = |nanos: i64| nanos as f64 / 1000.0;
        self.category.as_ref().is_none_or(|category| frame.rank.events.category[row].text() == category)
            && self.device.is_none_or(|device| frame.on_device(row) == device)
            && self.stream.is_none_or(|stream| frame.stream(row) == stream)
            && self.iteration.is_none_or(|iteration| frame.iteration[row] == Some(iteration))
            && self.from.is_none_or(|from| time(frame.end(row)) >= from)
            && self.to.is_none_or(|to| time(frame.begin[row]) <= to)
            && (self.name.is_empty() || frame.text(row).contains(&self.name))
    }
}

fn row_of(frame: &Frame<'_>, index: u32) -> Option<usize> {
    frame.rank.events.index.binary_search(&index).ok()
}

fn under(frame: &Frame<'_>, graph: &CallGraph<'_>, index: u32) -> Vec<usize> {
    let Some(root) = row_of(frame, index) else { return Vec::new() };
    if !graph.stacks.threads.contains_key(&frame.rank.events.track[root]) {
        return vec![root];
    }
    let is_below = |row: usize| graph.stacks.path(row).any(|above| above == root);
    let mut rows: Vec<usize> = frame.rows().filter(|&row| !frame.on_device(row) && is_below(row)).collect();
    rows.extend(graph.kernels_below(frame, root));
    rows
}

fn event(frame: &Frame<'_>, graph: &CallGraph<'_>, row: usize) -> EventRow {
    let (events, below) = (&frame.rank.events, graph.below[row]);
    let on_device = frame.joins_as_device(row);
    let place = |row: usize| events.index[row];
    let some = |time: i64| (below.kernels > 0).then(|| micros(time));
    let parent = graph.stacks.parent[row];
    EventRow {
        rank: frame.rank.rank,
        index: place(row),
        name: frame.text(row).to_owned(),
        category: events.category[row].text(),
        ts: micros(frame.begin[row]),
        dur: micros(frame.duration[row]),
        stream: frame.stream(row),
        correlation: events.correlation[row],
        linked: frame.link[row].row().map(place),
        iteration: frame.iteration[row],
        parent: (parent != NOTHING).then(|| place(parent as usize)),
        depth: graph.stacks.depth[row],
        height: if on_device { 0 } else { below.height },
        num_kernels: below.kernels,
        kernel_dur_sum: micros(below.time),
        kernel_span: micros(below.last - below.first),
        first_kernel_start: some(below.first),
        last_kernel_end: some(below.last),
        origin: Sources::of(frame).origin(row),
    }
}

/// The length of a stream's queue from a moment on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "columns of HTA's table")]
pub struct QueuePoint {
    pub rank: u32,
    pub stream: i64,
    pub ts: f64,
    pub queue_length: i64,
}

/// Every change of every queue.
pub fn queue_lengths(frames: &Frames<'_>) -> Vec<QueuePoint> {
    let of = |frame: &Frame<'_>| {
        let rank = frame.rank.rank;
        let points = queue::queues(frame)
            .into_iter()
            .flat_map(|(stream, points)| points.into_iter().map(move |point| (stream, point)));
        points
            .map(|(stream, point)| QueuePoint {
                rank,
                stream,
                ts: micros(point.time),
                queue_length: point.length,
            })
            .collect::<Vec<_>>()
    };
    frames.ranks.iter().flat_map(of).collect()
}

/// The bandwidth of a kind of copy from a moment on.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "columns of HTA's table")]
pub struct BandwidthPoint {
    pub rank: u32,
    pub name: String,
    pub ts: f64,
    pub memory_bw_gbps: f64,
}

/// Every change of every bandwidth.
pub fn bandwidths(frames: &Frames<'_>) -> Vec<BandwidthPoint> {
    let mut table = Vec::new();
    for frame in &frames.ranks {
        for (name, points) in bandwidth::bandwidths(frame) {
            table.extend(points.iter().map(|point| BandwidthPoint {
                rank: frame.rank.rank,
                name: name.clone(),
                ts: micros(point.time),
                memory_bw_gbps: point.bandwidth,
            }));
        }
    }
    table
}
