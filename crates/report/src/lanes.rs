//! Lanes of the page: a thread or stream of a rank, with as many boxes as a screen can show.

use std::collections::BTreeMap;

use serde::Serialize;
use timeline::{Class, TrackId};
use trace::{Frame, Frames, Kind, stack::Stacks};

/// No lane has more boxes: neighbours closer than a pixel would be drawn over each other anyway.
const MOST_BOXES: usize = 4000;

/// A thread or stream.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lane {
    /// The rank.
    pub rank: u32,
    /// What to call it.
    pub name: String,
    /// Whether it is a stream of a device.
    pub device: bool,
    /// Names of the boxes.
    pub names: Vec<String>,
    /// Begin, duration (both in microseconds), number of the name, and colour: 0 computation, 1 communication, 2 copy, 3 call,
    /// 4 annotation.
    pub boxes: Vec<(f64, f64, u32, u8)>,
}

/// The streams of all ranks, and each rank's busiest threads.
pub fn lanes(frames: &Frames<'_>) -> Vec<Lane> {
    frames.ranks.iter().flat_map(of_rank).collect()
}

fn of_rank(frame: &Frame<'_>) -> Vec<Lane> {
    let mut streams: BTreeMap<TrackId, Vec<usize>> = BTreeMap::new();
    for row in frame.rows().filter(|&row| frame.on_device(row)) {
        streams.entry(frame.rank.events.track[row]).or_default().push(row);
    }
    let mut lanes: Vec<Lane> = streams
        .into_values()
        .map(|rows| lane(frame, format!("stream {}", frame.stream(rows[0])), true, rows))
        .collect();
    // the outermost events of threads
    let is_call =
        |row: usize| matches!(frame.class(row), Class::Operator | Class::Runtime | Class::Annotation);
    let stacks = Stacks::of(frame, |row| is_call(row) && !frame.text(row).starts_with("ProfilerStep"));
    let top = |rows: &Vec<u32>| -> Vec<usize> {
        rows.iter().map(|&row| row as usize).filter(|&row| stacks.parent(row).is_none()).collect()
    };
    let mut threads: Vec<(TrackId, Vec<usize>)> =
        stacks.threads.iter().map(|(&track, rows)| (track, top(rows))).collect();
    threads.sort_by_key(|(track, rows)| {
        (std::cmp::Reverse(rows.iter().map(|&row| frame.duration[row]).sum::<i64>()), *track)
    });
    let named = |track: TrackId| match frame.timeline.names.text(frame.rank.tracks[track].name) {
        "" => format!("thread {}", track.0),
        name => name.to_owned(),
    };
    lanes.extend(threads.into_iter().take(3).map(|(track, rows)| lane(frame, named(track), false, rows)));
    lanes
}

fn lane(frame: &Frame<'_>, name: String, device: bool, mut rows: Vec<usize>) -> Lane {
    if rows.len() > MOST_BOXES {
        // the longest are what can be seen
        rows.sort_by_key(|&row| (std::cmp::Reverse(frame.duration[row]), row));
        rows.truncate(MOST_BOXES);
    }
    rows.sort_by_key(|&row| frame.begin[row]);
    let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
    let mut names = Vec::new();
    let boxes = rows
        .iter()
        .map(|&row| {
            let number = *numbers.entry(frame.text(row)).or_insert_with(|| {
                names.push(trace::findings::short(frame.text(row)));
                names.len() as u32 - 1
            });
            let micros = |nanos: i64| nanos as f64 / 1000.0;
            (micros(frame.begin[row]), micros(frame.duration[row]), number, colour(frame, row))
        })
        .collect();
    Lane { rank: frame.rank.rank, name, device, names, boxes }
}

fn colour(frame: &Frame<'_>, row: usize) -> u8 {
    match (frame.class(row), frame.kind(row)) {
        (Class::Kernel | Class::Annotation, Kind::Communication) => 1,
        (Class::Kernel, _) => 0,
        (Class::Copy, _) => 2,
        (Class::Annotation, _) => 4,
        _ => 3,
    }
}
