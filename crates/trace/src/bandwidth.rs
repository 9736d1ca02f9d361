//! Bandwidth of copies and fills over time.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::NameId;

use crate::{Frame, Frames, Kind, Mode, stats::Describe};

/// A change of the bandwidth of one kind of copies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// When, in nanoseconds.
    pub time: i64,
    /// Bandwidth in GB/s from here on.
    pub bandwidth: f64,
}

/// Bandwidth over time, by kind of copy.
pub fn bandwidths(frame: &Frame<'_>) -> BTreeMap<String, Vec<Point>> {
    let mut names: BTreeMap<NameId, Vec<usize>> = BTreeMap::new();
    for row in frame.rows().filter(|&row| frame.on_device(row) && frame.kind(row) == Kind::Memory) {
        names.entry(frame.name(row)).or_default().push(row);
    }
    let mut kinds: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (name, rows) in names {
        kinds.entry(kind_of_copy(frame.timeline.names.text(name))).or_default().extend(rows);
    }
    kinds.into_iter().map(|(kind, rows)| (kind, over_time(frame, rows))).collect()
}

fn kind_of_copy(name: &str) -> String {
    if name.starts_with("Memset") {
        "Memset".to_owned()
    } else if name.starts_with("Memcpy") && name.len() >= 11 {
        name.chars().take(11).collect()
    } else {
        "Memcpy Unknown".to_owned()
    }
}

fn over_time(frame: &Frame<'_>, mut rows: Vec<usize>) -> Vec<Point> {
    rows.sort_unstable();
    // an event too short for the clock still moved its bytes: HTA gives it a microsecond
    let shortest = if frame.mode == Mode::Hta { 1000 } else { 1 };
    let begins = rows.iter().map(|&row| (frame.begin[row], bandwidth(frame, row)));
    let ends = rows.iter().map(|&row| {
        let duration = if frame.duration[row] == 0 { shortest } else { frame.duration[row] };
        (frame.begin[row] + duration, -bandwidth(frame, row))
    });
    let mut changes: Vec<(i64, f64)> = begins.chain(ends).collect();
    // at equal times begins come first: HTA's own sort is not stable there
    changes.sort_by_key(|(time, _)| *time);
    let mut sum = 0.0;
    let step = |(time, change)| {
        sum += change;
        Point { time, bandwidth: sum }
    };
    changes.into_iter().map(step).collect()
}

/// GB/s of a copy: as the trace says, else from bytes and duration.
fn bandwidth(frame: &Frame<'_>, row: usize) -> f64 {
    let Some(args) = frame.rank.sides.device.get(row as u32) else { return 0.0 };
    let derived = frame.mode == Mode::Exact && args.bandwidth == 0.0 && args.bytes > 0;
    if derived { args.bytes as f64 / frame.duration[row].max(1) as f64 } else { args.bandwidth }
}

/// Bandwidths of one kind of copy while there are any.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[allow(missing_docs, reason = "the quartiles of a data frame's description")]
pub struct BandwidthSummary {
    pub rank: u32,
    pub name: String,
    #[serde(rename = "memory_bw_gbps/count")]
    pub count: f64,
    #[serde(rename = "memory_bw_gbps/mean")]
    pub mean: f64,
    #[serde(rename = "memory_bw_gbps/std")]
    pub std: f64,
    #[serde(rename = "memory_bw_gbps/min")]
    pub min: f64,
    #[serde(rename = "memory_bw_gbps/25%")]
    pub q25: f64,
    #[serde(rename = "memory_bw_gbps/50%")]
    pub q50: f64,
    #[serde(rename = "memory_bw_gbps/75%")]
    pub q75: f64,
    #[serde(rename = "memory_bw_gbps/max")]
    pub max: f64,
}

/// Bandwidths of every rank and kind of copy. Residues of the sums below 1e-9 GB/s count only in compatible mode.
/// `None` without any; compatible mode has an empty table where there are copies and all bandwidths are 0.
pub fn summary(frames: &Frames<'_>) -> Option<Vec<BandwidthSummary>> {
    let least = if frames.mode == Mode::Hta { 0.0 } else { 1e-9 };
    let mut table = Vec::new();
    let mut any = false;
    for frame in &frames.ranks {
        for (name, points) in bandwidths(frame) {
            any = true;
            let mut values: Vec<f64> =
                points.iter().map(|point| point.bandwidth).filter(|&bandwidth| bandwidth > least).collect();
            if values.is_empty() {
                continue;
            }
            let Describe { count, mean, std, min, q25, q50, q75, max } = Describe::of(&mut values);
            table.push(BandwidthSummary {
                rank: frame.rank.rank,
                name,
                count,
                mean,
                std,
                min,
                q25,
                q50,
                q75,
                max,
            });
        }
    }
    (!table.is_empty() || any && frames.mode == Mode::Hta).then_some(table)
}
