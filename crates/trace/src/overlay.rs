//! What trace viewers draw over the events: curves of queues and bandwidths, and the critical path as arrows.

use timeline::chrome::{Arrow, Counter, Extras, Moment};

use crate::{
    Frames, bandwidth,
    causal::{self, Node, Why},
    queue,
    stack::NOTHING,
};

/// Queue lengths of every stream and bandwidths of every kind of copy.
pub fn counters(frames: &Frames<'_>) -> Vec<Counter> {
    let mut counters = Vec::new();
    for frame in &frames.ranks {
        let rank = frame.rank.rank;
        for (stream, points) in queue::queues(frame) {
            let points =
                points.iter().map(|point| (point.time + frames.origin, point.length as f64)).collect();
            counters.push(Counter { rank, name: format!("Queue Length {stream}"), points });
        }
        for (name, points) in bandwidth::bandwidths(frame) {
            let points = points.iter().map(|point| (point.time + frames.origin, point.bandwidth)).collect();
            counters.push(Counter { rank, name: format!("{name} BW (GB/s)"), points });
        }
    }
    counters
}

/// Adds the critical path of an annotation's instance, or of everything if there is no such: its events are marked, and where
/// it goes from one event to another that is not inside it, there is an arrow.
pub fn add_path(frames: &Frames<'_>, annotation: &str, instance: usize, extras: &mut Extras) {
    let graph = causal::build(frames, annotation, instance).or_else(|| causal::build(frames, "", 0));
    let Some(graph) = graph else { return };
    let times = graph.times(|edge, _| edge.lag);
    for (to, edge) in causal::trace_back(&graph, &times).into_iter().rev() {
        let (from, to) = (graph.nodes[edge.from as usize], graph.nodes[to as usize]);
        for node in [from, to] {
            mark(frames, node, extras);
        }
        if edge.why != Why::Run
            && let (Some(from), Some(to)) = (moment(frames, from), moment(frames, to))
        {
            extras.arrows.push(Arrow { name: name(edge.why), from, to });
        }
    }
}

fn mark(frames: &Frames<'_>, node: Node, extras: &mut Extras) {
    if node.row != NOTHING {
        let rank = frames.ranks[usize::from(node.frame)].rank;
        extras.critical.entry(rank.rank).or_default().insert(rank.events.index[node.row as usize]);
    }
}

/// The begin of an event, or its last nanosecond.
fn moment(frames: &Frames<'_>, node: Node) -> Option<Moment> {
    let frame = &frames.ranks[usize::from(node.frame)];
    let row = Some(node.row).filter(|&row| row != NOTHING)? as usize;
    let (begin, end) = frame.interval(row);
    let time = if node.ends { begin.max(end - 1) } else { begin };
    Some(Moment { rank: frame.rank.rank, track: frame.rank.events.track[row], time: time + frames.origin })
}

const fn name(why: Why) -> &'static str {
    match why {
        Why::Rendezvous => "collective waits for the last rank",
        Why::Sync => "wait",
        Why::Stream => "kernel after kernel",
        Why::Launch => "launch",
        Why::Run => "run",
        Why::Gap => "gap",
    }
}
