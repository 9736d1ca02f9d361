//! The graph of one rank: what calls, launches, kernels and waits had to wait for.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use timeline::{Category, Class, Lane, TrackId};

use super::graph::{EdgeKind, Graph, begin_of, end_of};
use crate::{
    Frame, Mode, queue,
    stack::{self, Step},
};

/// The graph of one rank with the rows of its events.
pub struct RankGraph {
    /// The graph.
    pub graph: Graph,
    /// Row of each event of the graph.
    pub rows: Vec<u32>,
    /// Event of each row of the table, or [`stack::NOTHING`].
    pub event: Vec<u32>,
    /// The event that encloses each event of a thread, or [`stack::NOTHING`].
    pub parent: Vec<u32>,
    /// Begin and end of what was asked for.
    pub window: (i64, i64),
}

impl RankGraph {
    /// The row of the event that `node` begins or ends.
    pub fn row(&self, node: u32) -> usize {
        self.rows[node as usize / 2] as usize
    }

    /// The event of `row`, if it is in the graph.
    pub fn event(&self, row: usize) -> Option<u32> {
        Some(self.event[row]).filter(|&event| event != stack::NOTHING)
    }
}

/// Builds the graph of a window.
pub fn build(frame: &Frame<'_>, window: (i64, i64)) -> RankGraph {
    let selected = select(frame, window);
    let rows: Vec<u32> = selected.iter().copied().filter(|&row| has_nodes(frame, row as usize)).collect();
    let mut event = vec![stack::NOTHING; frame.rank.events.len()];
    for (number, &row) in rows.iter().enumerate() {
        event[row as usize] = number as u32;
    }
    let span = || rows.iter().map(|&row| frame.interval(row as usize));
    let all = (span().map(|i| i.0).min().unwrap_or(0), span().map(|i| i.1).max().unwrap_or(0));
    let parent = vec![stack::NOTHING; rows.len()];
    let graph = Graph::new(rows.len());
    let mut built =
        RankGraph { graph, rows, event, parent, window: (window.0.max(all.0), window.1.min(all.1)) };
    threads(frame, &mut built, &selected);
    devices(frame, &mut built, &selected);
    built
}

/// Rows of the window: calls that begin in it, and device events whose launch does.
fn select(frame: &Frame<'_>, window: (i64, i64)) -> Vec<u32> {
    let (begin, end) = window;
    let in_window = |row: usize| begin <= frame.begin[row] && frame.begin[row] <= end;
    // HTA leaves calls without duration out
    let counts = |row: usize| frame.mode == Mode::Exact || frame.duration[row] > 0;
    let mut wanted = vec![false; frame.rank.events.len()];
    let is_device = |row: usize| match frame.mode {
        Mode::Hta => frame.on_device(row),
        Mode::Exact => frame.joins_as_device(row),
    };
    for row in frame.rows().filter(|&row| !is_device(row) && in_window(row) && counts(row)) {
        wanted[row] = true;
        if let Some(device) = frame.link[row].row().filter(|&device| is_device(device)) {
            wanted[device] = true;
        }
    }
    let wait = frame.timeline.names.find("Stream Wait Event");
    for row in frame.rows().filter(|&row| is_device(row)) {
        wanted[row] |= match frame.mode {
            Mode::Hta => Some(frame.name(row)) == wait,
            // every kernel of a launch that has several, and kernels without launch that run in the window
            Mode::Exact => frame.link[row].row().map_or(in_window(row), |launch| wanted[launch]),
        };
    }
    frame.row.iter().copied().filter(|&row| wanted[row as usize]).collect()
}

fn has_nodes(frame: &Frame<'_>, row: usize) -> bool {
    let is_call = match frame.mode {
        Mode::Exact => matches!(frame.class(row), Class::Operator | Class::Runtime),
        Mode::Hta => matches!(
            frame.rank.events.category[row],
            Category::CpuOp | Category::CudaRuntime | Category::CudaDriver
        ),
    };
    let is_device = match frame.mode {
        Mode::Exact => frame.on_device(row),
        Mode::Hta => frame.stream(row) != -1 && frame.link[row] != crate::Link::None,
    };
    is_call || is_device
}

/// Calls that wait for a device: the time inside is that of what they wait for.
const BLOCKING: &[&str] = &[
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventQuery",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "cudaMemcpyAsync",
];

/// The same calls on AMD devices, and those that HTA does not know.
const ALSO_BLOCKING: &[&str] = &[
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventQuery",
    "hipEventSynchronize",
    "hipMemcpy",
    "hipMemcpyWithStream",
];

/// Adds the edges along each thread.
fn threads(frame: &Frame<'_>, built: &mut RankGraph, selected: &[u32]) {
    let blocks = frame
        .timeline
        .names
        .map(|name| BLOCKING.contains(&name) || (frame.mode == Mode::Exact && ALSO_BLOCKING.contains(&name)));
    let mut by_track: BTreeMap<TrackId, (Vec<u32>, bool)> = BTreeMap::new();
    for &row in selected {
        let thread = by_track.entry(frame.rank.events.track[row as usize]).or_default();
        thread.0.push(row);
        thread.1 |= frame.stream(row as usize) >= 0
            || frame.joins_as_device(row as usize) && frame.mode == Mode::Exact;
    }
    for (mut rows, on_device) in by_track.into_values() {
        if on_device {
            continue;
        }
        rows.retain(|&row| built.event(row as usize).is_some());
        thread(frame, built, &mut rows, &blocks);
    }
}

fn thread(frame: &Frame<'_>, built: &mut RankGraph, rows: &mut [u32], blocks: &[bool]) {
    // the node last passed, with its time
    let mut last: Option<(u32, i64)> = None;
    let mut open: Vec<u32> = Vec::new();
    stack::walk(frame, rows, |step| match step {
        Step::Enter(row) => {
            let (event, time) = (built.event[row as usize], frame.begin[row as usize]);
            if let Some((node, since)) = last {
                let (weight, kind) = match open.last() {
                    Some(_) => (time - since, EdgeKind::Operator),
                    None => (gap(frame, time - since), EdgeKind::Dependency),
                };
                built.graph.add(node, begin_of(event), weight, kind);
            }
            built.parent[event as usize] = open.last().copied().unwrap_or(stack::NOTHING);
            open.push(event);
            last = Some((begin_of(event), time));
        }
        Step::Leave(row) => {
            let (event, time) = (built.event[row as usize], frame.end(row as usize));
            let (node, since) = last.expect("an event was entered before it is left");
            let weight = if blocks[frame.name(row as usize).0 as usize] { 0 } else { time - since };
            built.graph.add(node, end_of(event), weight, EdgeKind::Operator);
            open.pop();
            last = Some((end_of(event), time));
        }
    });
}

/// The weight of a gap between top-level calls: HTA counts none.
const fn gap(frame: &Frame<'_>, time: i64) -> i64 {
    match frame.mode {
        Mode::Exact => time,
        Mode::Hta => 0,
    }
}

/// A device and one of its streams.
type Stream = (Lane, i64);

/// What the streams of a rank have done so far, and what they wait for.
struct Devices<'b, 'f, 't> {
    frame: &'f Frame<'t>,
    built: &'b mut RankGraph,
    /// The last kernel of each stream.
    last: BTreeMap<Stream, u32>,
    /// For a kernel that waits for another one, that one's row.
    source: FxHashMap<u32, u32>,
    /// Launches of each stream in the order of time: begin of the launch, its thread, row of the kernel.
    launches: FxHashMap<Stream, Vec<(i64, TrackId, u32)>>,
    /// Row of the call of each correlation.
    calls: FxHashMap<i64, u32>,
    /// Queue length after each row that changes one.
    queue: FxHashMap<u32, i64>,
}

/// Adds the edges of kernels and of waits.
fn devices(frame: &Frame<'_>, built: &mut RankGraph, selected: &[u32]) {
    let mut order: Vec<u32> = selected
        .iter()
        .copied()
        .filter(|&row| frame.joins_as_device(row as usize) || frame.on_device(row as usize))
        .collect();
    order.retain(|&row| frame.mode == Mode::Exact || frame.link[row as usize] != crate::Link::None);
    let is_wait = |row: u32| frame.class(row as usize) == Class::Sync;
    order.sort_by_key(|&row| if is_wait(row) { frame.end(row as usize) } else { frame.begin[row as usize] });
    let mut devices = Devices {
        frame,
        built,
        last: BTreeMap::new(),
        source: FxHashMap::default(),
        launches: launches(frame),
        calls: FxHashMap::default(),
        queue: queue_lengths(frame),
    };
    if order.iter().any(|&row| is_wait(row)) {
        devices.calls = recorded(frame);
    }
    for &row in order.iter().filter(|&&row| is_wait(row)) {
        if frame.text(row as usize) == "Stream Wait Event" {
            devices.stream_wait(row as usize);
        }
    }
    for row in order {
        if is_wait(row) {
            devices.wait(row as usize);
        } else {
            devices.kernel(row as usize);
        }
    }
}

/// Rows of calls by correlation.
fn recorded(frame: &Frame<'_>) -> FxHashMap<i64, u32> {
    frame
        .rows()
        .filter(|&row| frame.class(row) == Class::Runtime)
        .map(|row| (frame.rank.events.correlation[row], row as u32))
        .collect()
}

fn queue_lengths(frame: &Frame<'_>) -> FxHashMap<u32, i64> {
    queue::queues(frame).into_values().flatten().map(|point| (point.row, point.length)).collect()
}

fn launches(frame: &Frame<'_>) -> FxHashMap<Stream, Vec<(i64, TrackId, u32)>> {
    let mut launches: FxHashMap<Stream, Vec<(i64, TrackId, u32)>> = FxHashMap::default();
    for row in frame.rows().filter(|&row| frame.on_device(row) && frame.class(row) != Class::Sync) {
        if let Some(call) = frame.link[row].row() {
            let launch = (frame.begin[call], frame.rank.events.track[call], row as u32);
            launches.entry(stream_of(frame, row)).or_default().push(launch);
        }
    }
    for launches in launches.values_mut() {
        launches.sort_unstable();
    }
    launches
}

fn stream_of(frame: &Frame<'_>, row: usize) -> Stream {
    (frame.rank.tracks[frame.rank.events.track[row]].process, frame.stream(row))
}

impl Devices<'_, '_, '_> {
    /// The kernel that the event, recorded by the call of correlation `wait_event`, stands for.
    fn recorded_kernel(&self, row: usize) -> Option<u32> {
        let args = self.frame.rank.sides.device.get(row as u32)?;
        let record = *self.calls.get(&args.wait_event)? as usize;
        let device = stream_of(self.frame, row).0;
        let launches = self.launches.get(&(device, args.wait_stream))?;
        let before = launches.partition_point(|launch| launch.0 < self.frame.begin[record]);
        Some(launches[before.checked_sub(1)?].2)
    }

    /// Notes that the next kernel that the waiting thread launches to the stream waits for the recorded kernel.
    fn stream_wait(&mut self, row: usize) {
        let Some(source) = self.recorded_kernel(row) else { return };
        let Some(call) = self.frame.link[row].row() else { return };
        let Some(launches) = self.launches.get(&stream_of(self.frame, row)) else { return };
        let (time, thread) = (self.frame.begin[call], self.frame.rank.events.track[call]);
        let after = launches.partition_point(|launch| launch.0 <= time);
        if let Some(launch) = launches[after..].iter().find(|launch| launch.1 == thread) {
            self.source.insert(launch.2, source);
        }
    }

    /// Adds edges from what a call waits for to its end.
    fn wait(&mut self, row: usize) {
        let call = self.frame.link[row].row().and_then(|call| self.built.event(call));
        let Some(call) = call else { return };
        let stream = stream_of(self.frame, row);
        let sources: Vec<u32> = match self.frame.text(row) {
            "Event Sync" => self.recorded_kernel(row).into_iter().collect(),
            "Stream Sync" | "Stream Synchronize" => self.last.get(&stream).copied().into_iter().collect(),
            "Context Sync" => self.last.values().copied().collect(),
            _ => Vec::new(),
        };
        for source in sources {
            if let Some(source) = self.built.event(source as usize) {
                self.built.graph.add(end_of(source), end_of(call), 0, EdgeKind::Sync);
            }
        }
    }

    /// Adds the edges of a kernel: its own, and those from its launch, from the kernel before and from what it waits for.
    fn kernel(&mut self, row: usize) {
        let frame = self.frame;
        let Some(event) = self.built.event(row) else { return };
        let stream = stream_of(frame, row);
        self.built.graph.add(begin_of(event), end_of(event), frame.duration[row], EdgeKind::Operator);
        let source = self.source.get(&(row as u32)).and_then(|&source| {
            let event = self.built.event(source as usize)?;
            Some((event, frame.end(source as usize)))
        });
        if let Some((source, _)) = source {
            self.built.graph.add(end_of(source), begin_of(event), 0, EdgeKind::Sync);
        }
        let launch = frame.link[row].row().and_then(|call| Some((call, self.built.event(call)?)));
        let last = self.last.get(&stream).copied();
        let source_end = source.map(|(_, end)| end);
        let last_end = last.map(|last| frame.end(last as usize));
        match (launch, last) {
            (Some((call, launch)), _) if self.starts_at_launch(row, call, last_end, source_end) => {
                let delay = frame.begin[row] - frame.begin[call];
                self.built.graph.add(begin_of(launch), begin_of(event), delay, EdgeKind::Launch);
            }
            (_, Some(last)) if source_end.is_none_or(|end| last_end.is_some_and(|last| end < last)) => {
                let last = self.built.event(last as usize).expect("kernels before are in the graph");
                let delay = frame.begin[row] - last_end.unwrap_or_default();
                self.built.graph.add(end_of(last), begin_of(event), delay, EdgeKind::Kernel);
            }
            _ => {}
        }
        self.last.insert(stream, row as u32);
    }

    /// Whether a kernel could begin as soon as it was launched: nothing was before it.
    fn starts_at_launch(&self, row: usize, call: usize, last: Option<i64>, source: Option<i64>) -> bool {
        let launched = self.frame.begin[call];
        let free = |end: Option<i64>| end.is_none_or(|end| end < launched);
        let alone = match self.frame.mode {
            Mode::Exact => true,
            Mode::Hta => {
                let length = |row: usize| self.queue.get(&(row as u32)).copied();
                length(call) == Some(1) && length(row) == Some(0)
            }
        };
        alone && free(last) && free(source)
    }
}
