//! Profiler steps, and the ranks that others wait for.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::{Frame, Frames, Kind, Mode, stats::Moments};

/// All iterations of all ranks, ascending.
pub fn profiler_steps(frames: &Frames<'_>) -> Vec<i64> {
    let of = |frame: &Frame<'_>| frame.rows().filter_map(|row| frame.iteration[row]).collect::<BTreeSet<_>>();
    frames
        .ranks
        .iter()
        .flat_map(of)
        .collect::<BTreeSet<_>>()
        .into_iter()
        .filter(|&number| number >= 0)
        .collect()
}

/// A collective kernel of one rank in one iteration.
#[derive(Clone, Copy, Debug, Serialize)]
struct Last {
    begin: i64,
    duration: i64,
}

/// Of each iteration, the last kernel of each rank.
type Iterations = BTreeMap<i64, BTreeMap<u32, Last>>;

/// The `count` ranks that are most often among the last `count` to start the collective whose duration differs most between
/// ranks. `None` where nothing can be compared: one rank, no steps, no collective.
pub fn potential_stragglers(frames: &Frames<'_>, count: usize) -> Option<Vec<u32>> {
    let shortest = shortest_duration(frames)?;
    let mut kernels: BTreeMap<(i64, &str), Iterations> = BTreeMap::new();
    for frame in &frames.ranks {
        for row in frame.rows().filter(|&row| compares(frame, row, shortest)) {
            let iteration = frame.iteration[row]?;
            let last = Last { begin: frame.begin[row], duration: frame.duration[row] };
            let kernel = kernels.entry((frame.stream(row), frame.text(row))).or_default();
            kernel.entry(iteration).or_default().insert(frame.rank.rank, last);
        }
    }
    let spread = |iterations: &Iterations| {
        let deviations: Vec<f64> = iterations
            .values()
            .map(|ranks| Moments::of(ranks.values().map(|last| last.duration)).deviation())
            .filter(|deviation| !deviation.is_nan())
            .collect();
        (!deviations.is_empty()).then(|| deviations.iter().sum::<f64>() / deviations.len() as f64)
    };
    let mut widest: Option<(f64, &Iterations)> = None;
    for iterations in kernels.values() {
        if let Some(spread) =
            spread(iterations).filter(|&spread| widest.is_none_or(|(most, _)| spread > most))
        {
            widest = Some((spread, iterations));
        }
    }
    Some(most_often_last(widest?.1, count))
}

/// A hundredth of an iteration: shorter kernels are not compared.
fn shortest_duration(frames: &Frames<'_>) -> Option<f64> {
    let valid = || {
        frames.ranks.iter().flat_map(|frame| {
            frame
                .rows()
                .filter(|&row| frame.iteration[row].is_some_and(|n| n >= 0))
                .map(|row| frame.interval(row))
        })
    };
    let begin = valid().map(|interval| interval.0).min()?;
    let end = valid().map(|interval| interval.1).max()?;
    Some((end - begin) as f64 / profiler_steps(frames).len() as f64 * 0.01)
}

fn compares(frame: &Frame<'_>, row: usize, shortest: f64) -> bool {
    let counts = match frame.mode {
        Mode::Hta => {
            frame.stream(row) > 0
                && frame.iteration[row].is_some_and(|number| number > 0)
                && frame.text(row).starts_with("ncclKernel")
        }
        Mode::Exact => {
            frame.on_device(row) && frame.iteration[row].is_some() && frame.kind(row) == Kind::Communication
        }
    };
    counts && frame.duration[row] as f64 >= shortest
}

/// Counts for each rank in how many iterations it is among the last `count` to start.
fn most_often_last(iterations: &Iterations, count: usize) -> Vec<u32> {
    let mut scores: BTreeMap<u32, usize> = BTreeMap::new();
    for ranks in iterations.values() {
        let mut begins: Vec<i64> = ranks.values().map(|last| last.begin).collect();
        begins.sort_unstable_by(|a, b| b.cmp(a));
        let Some(&limit) = begins.get(count.min(begins.len()).wrapping_sub(1)) else { continue };
        for (&rank, last) in ranks {
            *scores.entry(rank).or_default() += usize::from(last.begin >= limit);
        }
    }
    let mut ranks: Vec<(u32, usize)> = scores.into_iter().collect();
    ranks.sort_by_key(|&(rank, score)| (std::cmp::Reverse(score), rank));
    let mut last: Vec<u32> = ranks.into_iter().take(count).map(|(rank, _)| rank).collect();
    last.sort_unstable();
    last
}
