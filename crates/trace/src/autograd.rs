//! Forward operators and their backwards: joined by the trace's own arrows, or by autograd's sequence numbers.

use rustc_hash::FxHashMap;
use serde::Serialize;
use timeline::{Class, NameId, TrackId};

use crate::{
    Frame, Frames,
    source::{Origin, Sources},
    stack::CallGraph,
    stats::micros,
};

/// Forward operators of one name and origin with their backwards.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ForwardBackward {
    /// The rank.
    pub rank: u32,
    /// The forward operator.
    pub forward: String,
    /// The backward operator.
    pub backward: String,
    /// Where the forward operator was called.
    #[serde(flatten)]
    pub origin: Origin,
    /// How many pairs.
    pub count: usize,
    /// Time of the forward operators on the processor, in microseconds.
    pub forward_time: f64,
    /// Time of the backward operators on the processor, in microseconds.
    pub backward_time: f64,
    /// Time of the kernels below the forward operators, in microseconds.
    pub forward_kernels: f64,
    /// Time of the kernels below the backward operators, in microseconds.
    pub backward_kernels: f64,
}

/// Sums over the pairs of one group, in nanoseconds, with the row of one forward operator.
#[derive(Clone, Copy, Default)]
struct Sums {
    count: usize,
    times: [i64; 4],
}

/// Pairs of every rank, the longest backwards first. `graphs` are the call graphs of the ranks.
pub fn forward_backward(frames: &Frames<'_>, graphs: &[CallGraph<'_>]) -> Vec<ForwardBackward> {
    frames.ranks.iter().zip(graphs).flat_map(|(frame, graph)| of_rank(frame, graph)).collect()
}

/// The row of each forward operator that has a backward, and the row of that, in the order of the backwards.
pub fn links(frame: &Frame<'_>) -> Vec<(u32, u32)> {
    if frame.rank.flows.is_empty() { by_sequence(frame) } else { by_arrows(frame) }
}

fn by_arrows(frame: &Frame<'_>) -> Vec<(u32, u32)> {
    let begins: FxHashMap<i64, (TrackId, i64)> = frame
        .rank
        .flows
        .iter()
        .filter(|flow| flow.begin)
        .map(|flow| (flow.id, (flow.track, flow.time.0)))
        .collect();
    let origin = frame.origin;
    let mut links: Vec<(u32, u32)> = frame
        .rank
        .flows
        .iter()
        .filter(|flow| !flow.begin)
        .filter_map(|flow| {
            let &(track, time) = begins.get(&flow.id)?;
            Some((
                operator_at(frame, track, time - origin)?,
                operator_at(frame, flow.track, flow.time.0 - origin)?,
            ))
        })
        .collect();
    links.sort_by_key(|&(forward, backward)| (frame.begin[backward as usize], forward));
    links
}

/// The outermost operator of a thread that begins at `time`; the innermost around it if none begins there.
fn operator_at(frame: &Frame<'_>, track: TrackId, time: i64) -> Option<u32> {
    let stacks = frame.calls();
    let rows = stacks.threads.get(&track)?;
    let behind = rows.partition_point(|&row| frame.begin[row as usize] <= time);
    let last = *rows[..behind].last()? as usize;
    let operators =
        || stacks.path(last).filter(|&row| frame.class(row) == Class::Operator && frame.end(row) >= time);
    let outermost = operators().take_while(|&row| frame.begin[row] == time).last();
    outermost.or_else(|| operators().next()).map(|row| row as u32)
}

fn by_sequence(frame: &Frame<'_>) -> Vec<(u32, u32)> {
    let forward = frame.forward();
    let mut seen = rustc_hash::FxHashSet::default();
    let mut links = Vec::new();
    for (row, sequence) in frame.rank.sides.sequence.iter() {
        let is_backward = sequence.forward_thread > 0 || frame.kinds.is_backward(frame.name(row as usize));
        // the outermost of the backward operators that carry the number comes first
        if is_backward
            && let Some(&forward) = forward.get(&sequence.number)
            && seen.insert(sequence.number)
        {
            links.push((forward, row));
        }
    }
    links.sort_by_key(|&(forward, backward)| (frame.begin[backward as usize], forward));
    links
}

fn of_rank(frame: &Frame<'_>, graph: &CallGraph<'_>) -> Vec<ForwardBackward> {
    let sources = Sources::of(frame);
    let mut groups: FxHashMap<(NameId, NameId, Origin), Sums> = FxHashMap::default();
    for (forward, backward) in links(frame) {
        let (forward, backward) = (forward as usize, backward as usize);
        let key = (frame.name(forward), frame.name(backward), sources.origin(forward));
        let sums = groups.entry(key).or_default();
        sums.count += 1;
        let more = [
            frame.duration[forward],
            frame.duration[backward],
            graph.below[forward].time,
            graph.below[backward].time,
        ];
        sums.times.iter_mut().zip(more).for_each(|(sum, time)| *sum += time);
    }
    let text = |name: NameId| frame.timeline.names.text(name).to_owned();
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by(|(a, x), (b, y)| {
        (y.times[3] + y.times[1], text(a.0), &a.2).cmp(&(x.times[3] + x.times[1], text(b.0), &b.2))
    });
    groups
        .into_iter()
        .map(|((forward, backward, origin), Sums { count, times })| ForwardBackward {
            rank: frame.rank.rank,
            forward: text(forward),
            backward: text(backward),
            origin,
            count,
            forward_time: micros(times[0]),
            backward_time: micros(times[1]),
            forward_kernels: micros(times[2]),
            backward_kernels: micros(times[3]),
        })
        .collect()
}
