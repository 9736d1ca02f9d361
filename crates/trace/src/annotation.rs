//! User annotations: their time, and the kernels under them.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::{Category, Class, TrackId};

use crate::{
    Frame, Frames, Mode,
    breakdown::{KernelTime, Limits, by_name},
    stats::micros,
};

/// On which side annotations are measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// From the first to the last kernel under them.
    Device,
    /// On the thread that made them.
    Host,
}

/// Time of each annotation on each rank; `None` where there is none at all.
pub fn breakdown(frames: &Frames<'_>, side: Side, limits: Limits) -> Option<Vec<KernelTime>> {
    let wanted = match side {
        Side::Device => Category::GpuUserAnnotation,
        Side::Host => Category::UserAnnotation,
    };
    let any = frames.timeline.ranks.iter().any(|rank| rank.events.category.contains(&wanted));
    if !any {
        return None;
    }
    let mut table = Vec::new();
    for frame in &frames.ranks {
        let rows = frame.rows().filter(|&row| frame.rank.events.category[row] == wanted);
        let mut of_rank = by_name(frame, rows, limits, None);
        of_rank.sort_by(|a, b| a.name.cmp(&b.name));
        table.extend(of_rank);
    }
    Some(table)
}

/// Kernels under one annotation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Annotated {
    /// The annotation; empty for kernels under none.
    pub s_user_annotation: String,
    /// Their time in microseconds.
    pub sum: f64,
    /// How many there are.
    pub count: usize,
}

/// Kernels by the shortest annotation that they overlap on their own stream. `None` without annotations on the device,
/// and in compatible mode where HTA fails: on negative durations.
pub fn kernels(frame: &Frame<'_>) -> Option<Vec<Annotated>> {
    let annotations: Vec<usize> =
        frame.rows().filter(|&row| frame.class(row) == Class::GpuAnnotation).collect();
    let kernels: Vec<usize> = frame.rows().filter(|&row| is_kernel(frame, row)).collect();
    let negative = |row: &usize| frame.duration[*row] < 0;
    let fails = frame.mode == Mode::Hta && (annotations.iter().any(negative) || kernels.iter().any(negative));
    if annotations.is_empty() || fails {
        return None;
    }
    let name = |row: usize| match frame.mode {
        Mode::Exact => frame.text(row).to_owned(),
        Mode::Hta => crate::diff::short_name(frame.text(row)),
    };
    let mut sums: BTreeMap<String, (i64, usize)> = BTreeMap::new();
    for (kernel, annotation) in assign(frame, &kernels, &annotations) {
        let sum = sums.entry(annotation.map_or_else(String::new, name)).or_default();
        *sum = (sum.0 + frame.duration[kernel], sum.1 + 1);
    }
    let annotated =
        |(name, (sum, count)): (String, _)| Annotated { s_user_annotation: name, sum: micros(sum), count };
    Some(sums.into_iter().map(annotated).collect())
}

fn is_kernel(frame: &Frame<'_>, row: usize) -> bool {
    match frame.mode {
        Mode::Exact => frame.on_device(row),
        Mode::Hta => frame.joins_as_device(row),
    }
}

/// Each kernel with the row of the shortest annotation that it overlaps.
pub fn assign(frame: &Frame<'_>, kernels: &[usize], annotations: &[usize]) -> Vec<(usize, Option<usize>)> {
    let track = |row: usize| frame.rank.events.track[row];
    let mut lanes: BTreeMap<TrackId, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
    for &row in kernels {
        lanes.entry(track(row)).or_default().0.push(row);
    }
    for &row in annotations {
        lanes.entry(track(row)).or_default().1.push(row);
    }
    let mut assigned = Vec::with_capacity(kernels.len());
    for (mut kernels, mut annotations) in lanes.into_values() {
        kernels.sort_by_key(|&row| frame.begin[row]);
        annotations.sort_by_key(|&row| frame.duration[row]);
        assigned.extend(assign_lane(frame, &kernels, &annotations));
    }
    assigned
}

/// Of one stream: kernels ascend by begin, annotations by duration, so that the first that takes a kernel keeps it.
fn assign_lane(frame: &Frame<'_>, kernels: &[usize], annotations: &[usize]) -> Vec<(usize, Option<usize>)> {
    let mut latest_end = i64::MIN;
    let reach: Vec<i64> = kernels
        .iter()
        .map(|&row| {
            latest_end = latest_end.max(frame.end(row));
            latest_end
        })
        .collect();
    let mut owner = vec![None; kernels.len()];
    // the next kernel without annotation at or behind each position
    let mut next: Vec<usize> = (0..=kernels.len()).collect();
    for &annotation in annotations {
        let (begin, end) = frame.interval(annotation);
        let mut at = find(&mut next, reach.partition_point(|&reach| reach <= begin));
        while at < kernels.len() && frame.begin[kernels[at]] < end {
            if frame.end(kernels[at]) > begin {
                owner[at] = Some(annotation);
                next[at] = at + 1;
            }
            at = find(&mut next, at + 1);
        }
    }
    kernels.iter().copied().zip(owner).collect()
}

fn find(next: &mut [usize], mut at: usize) -> usize {
    while next[at] != at {
        next[at] = next[next[at]];
        at = next[at];
    }
    at
}
