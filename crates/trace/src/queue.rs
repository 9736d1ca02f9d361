//! How many launched kernels wait in each stream, and how long a stream is full.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::Class;

use crate::{
    Frame, Frames, Mode,
    stats::{Describe, micros},
};

/// The calls that HTA counts as launches.
const HTA_LAUNCHES: &[&str] = &[
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cudaMemcpyAsync",
    "cudaMemsetAsync",
    "hipLaunchKernel",
    "hipExtModuleLaunchKernel",
    "hipMemcpyAsync",
    "hipMemcpyWithStream",
    "hipMemsetAsync",
    "runFunction - job_prep_and_submit_for_execution",
];

/// A change of a stream's queue.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Point {
    /// When, in nanoseconds.
    pub time: i64,
    /// Whether a kernel starts (and leaves the queue) rather than is launched. Launches come before starts.
    pub start: bool,
    /// The row of the launch or kernel.
    pub row: u32,
    /// The queue's length from here on.
    pub length: i64,
}

/// The queue of every stream of a rank, over time.
pub fn queues(frame: &Frame<'_>) -> BTreeMap<i64, Vec<Point>> {
    let mut streams: BTreeMap<i64, Vec<Point>> = BTreeMap::new();
    for (launch, kernel) in launches(frame) {
        let points = streams.entry(frame.stream(kernel)).or_default();
        points.push(Point { time: frame.begin[launch], start: false, row: launch as u32, length: 1 });
        points.push(Point { time: frame.begin[kernel], start: true, row: kernel as u32, length: -1 });
    }
    for points in streams.values_mut() {
        points.sort_unstable();
        let mut length = 0;
        for point in points {
            length += point.length;
            point.length = length;
        }
    }
    streams
}

/// All pairs of a launch and a device event of equal correlation.
pub fn launches(frame: &Frame<'_>) -> Vec<(usize, usize)> {
    let is_launch = match frame.mode {
        Mode::Exact => Vec::new(),
        Mode::Hta => frame.timeline.names.map(|name| HTA_LAUNCHES.contains(&name)),
    };
    let launches = |row: usize| match frame.mode {
        Mode::Exact => frame.class(row) == Class::Runtime,
        Mode::Hta => is_launch[frame.name(row).0 as usize],
    };
    pairs(frame, |row| frame.link[row].row().is_some() && launches(row))
}

/// All pairs of a call that `wanted` accepts and a device event of equal correlation, in the order of the calls.
pub fn pairs(frame: &Frame<'_>, wanted: impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let correlations = &frame.rank.events.correlation;
    let mut devices: Vec<(i64, u32)> = frame
        .rows()
        .filter(|&row| frame.on_device(row) && correlations[row] != -1)
        .map(|row| (correlations[row], row as u32))
        .collect();
    devices.sort_by_key(|&(correlation, _)| correlation);
    let mut pairs = Vec::with_capacity(devices.len());
    for call in frame.rows().filter(|&row| correlations[row] != -1 && !frame.on_device(row) && wanted(row)) {
        let first = devices.partition_point(|&(correlation, _)| correlation < correlations[call]);
        let same = devices[first..].iter().take_while(|(correlation, _)| *correlation == correlations[call]);
        pairs.extend(same.map(|&(_, device)| (call, device as usize)));
    }
    pairs
}

/// A summary of all queue lengths of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QueueSeries {
    /// Changes.
    pub n: usize,
    /// Sum of the lengths after each change.
    pub ql_sum: i64,
    /// Longest.
    pub ql_max: i64,
    /// Shortest.
    pub ql_min: i64,
}

/// A summary for every rank that has a queue.
pub fn series(frames: &Frames<'_>) -> BTreeMap<u32, QueueSeries> {
    let of = |frame: &Frame<'_>| {
        let queues = queues(frame);
        let lengths = || queues.values().flatten().map(|point| point.length);
        let (max, min) = (lengths().max()?, lengths().min()?);
        Some(QueueSeries { n: lengths().count(), ql_sum: lengths().sum(), ql_max: max, ql_min: min })
    };
    frames.ranks.iter().filter_map(|frame| Some((frame.rank.rank, of(frame)?))).collect()
}

/// The queue lengths of one stream, unweighted by time.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the quartiles of a data frame's description")]
pub struct QueueSummary {
    pub rank: u32,
    pub stream: i64,
    #[serde(rename = "queue_length/count")]
    pub count: f64,
    #[serde(rename = "queue_length/mean")]
    pub mean: f64,
    #[serde(rename = "queue_length/std")]
    pub std: f64,
    #[serde(rename = "queue_length/min")]
    pub min: f64,
    #[serde(rename = "queue_length/25%")]
    pub q25: f64,
    #[serde(rename = "queue_length/50%")]
    pub q50: f64,
    #[serde(rename = "queue_length/75%")]
    pub q75: f64,
    #[serde(rename = "queue_length/max")]
    pub max: f64,
}

/// The queue lengths of every stream; `None` without any.
pub fn summary(frames: &Frames<'_>) -> Option<Vec<QueueSummary>> {
    let of_stream = |rank, stream, points: Vec<Point>| {
        let mut lengths: Vec<f64> = points.iter().map(|point| point.length as f64).collect();
        let Describe { count, mean, std, min, q25, q50, q75, max } = Describe::of(&mut lengths);
        QueueSummary { rank, stream, count, mean, std, min, q25, q50, q75, max }
    };
    let of_rank = |frame: &Frame<'_>| {
        let rank = frame.rank.rank;
        queues(frame)
            .into_iter()
            .map(move |(stream, points)| of_stream(rank, stream, points))
            .collect::<Vec<_>>()
    };
    let table: Vec<QueueSummary> = frames.ranks.iter().flat_map(of_rank).collect();
    (!table.is_empty()).then_some(table)
}

/// How long a stream's queue was full.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Blocked {
    /// The rank.
    pub rank: u32,
    /// The stream.
    pub stream: i64,
    /// Microseconds.
    #[serde(rename = "duration_at_max_queue_length")]
    pub duration: f64,
    /// Share of the trace, 0 to 1.
    #[serde(rename = "relative_duration_at_max_queue_length")]
    pub relative: f64,
}

/// How long queues held `max` launches or more. Compatible mode reports one stream per rank, the last.
pub fn blocked(frames: &Frames<'_>, max: i64) -> Vec<Blocked> {
    let mut table = Vec::new();
    for frame in &frames.ranks {
        let begins = || frame.rows().map(|row| frame.begin[row]);
        let span = begins().max().unwrap_or(0) - begins().min().unwrap_or(0);
        let mut rows: Vec<Blocked> = queues(frame)
            .into_iter()
            .filter(|(_, points)| points.iter().any(|point| point.length >= max))
            .map(|(stream, points)| {
                let full = points.windows(2).filter(|pair| pair[0].length >= max);
                let time: i64 = full.map(|pair| pair[1].time - pair[0].time).sum();
                Blocked {
                    rank: frame.rank.rank,
                    stream,
                    duration: micros(time),
                    relative: time as f64 / span as f64,
                }
            })
            .collect();
        if frame.mode == Mode::Hta {
            rows.drain(..rows.len().saturating_sub(1));
        }
        table.extend(rows);
    }
    table
}
