//! Builds the causal graph of one step of all ranks.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;
use timeline::{Class, Lane, TrackId};

use super::{Causal, Why};
use crate::{
    Frame, Frames,
    align::{Clock, clocks},
    collective::{Collective, matched},
    critical,
    stack::{self, NOTHING, Step},
};

/// Begin and end node of rows.
type Ends = FxHashMap<u32, (u32, u32)>;

/// The graph of the `instance`-th event whose name contains `annotation`, on every rank that has one; of everything for an
/// empty annotation. `None` if no rank has one.
pub fn build(frames: &Frames<'_>, annotation: &str, instance: usize) -> Option<Causal> {
    let collectives = matched(frames);
    let clocks = clocks(&collectives, frames.ranks.len());
    let mut builder = Builder { causal: Causal::default(), ends: Vec::new(), clocks };
    let windows: Vec<Option<(i64, i64)>> =
        frames.ranks.iter().map(|frame| critical::window(frame, annotation, instance)).collect();
    let begins = frames.ranks.iter().zip(&windows).enumerate().filter_map(|(number, (frame, window))| {
        let begin = window.as_ref()?.0.max(first(frame)?);
        Some(builder.clocks[number].common(begin))
    });
    let begin = begins.min()?;
    builder.causal.node(0, NOTHING, begin);
    for (number, (frame, window)) in frames.ranks.iter().zip(&windows).enumerate() {
        builder.ends.push(Ends::default());
        if let Some(window) = window {
            builder.rank(frame, number, *window);
        }
    }
    for collective in &collectives {
        builder.rendezvous(collective);
    }
    builder.causal.settle();
    builder.causal.end = builder.causal.nodes.iter().map(|node| node.time).max().unwrap_or(begin);
    Some(builder.causal)
}

fn first(frame: &Frame<'_>) -> Option<i64> {
    frame.rows().map(|row| frame.begin[row]).min()
}

struct Builder {
    causal: Causal,
    ends: Vec<Ends>,
    clocks: Vec<Clock>,
}

/// The nodes of one thread, in the order of time, and its gaps.
#[derive(Default)]
struct Thread {
    nodes: Vec<u32>,
    gaps: Vec<(u32, u32)>,
}

impl Builder {
    fn rank(&mut self, frame: &Frame<'_>, number: usize, window: (i64, i64)) {
        let rows = select(frame, window);
        let mut tracks: BTreeMap<TrackId, Vec<u32>> = BTreeMap::new();
        for &row in rows.iter().filter(|&&row| !frame.on_device(row as usize)) {
            tracks.entry(frame.rank.events.track[row as usize]).or_default().push(row);
        }
        let mut threads: Vec<Thread> =
            tracks.into_values().map(|mut rows| self.thread(frame, number, &mut rows)).collect();
        // the thread that was busy first and longest forks the others and joins them
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.nodes.len()));
        self.devices(frame, number, &rows);
        self.gaps(&threads);
        self.waits(frame, number, &rows);
    }

    fn thread(&mut self, frame: &Frame<'_>, number: usize, rows: &mut [u32]) -> Thread {
        let clock = self.clocks[number];
        let mut thread = Thread::default();
        let mut open: Vec<(u32, u32)> = Vec::new();
        let blocking = blocking(frame);
        let mut last = None;
        stack::walk(frame, rows, |step| {
            let (row, time, enters) = match step {
                Step::Enter(row) => (row, frame.begin[row as usize], true),
                Step::Leave(row) => (row, frame.end(row as usize), false),
            };
            let node = self.causal.node(number, row, clock.common(time));
            let inside = open.last().map(|&(row, _)| row);
            match last {
                Some(last) if inside.is_none() => thread.gaps.push((last, node)),
                // what a waiting call takes of its own is found when it is known what it waits for
                Some(_) if !enters && blocking[frame.name(row as usize).0 as usize] => {}
                Some(last) => {
                    let lag = self.causal.between(last, node);
                    self.causal.edge(last, node, lag, Why::Run, inside.unwrap_or(row));
                }
                None => thread.gaps.push((0, node)),
            }
            if enters {
                open.push((row, node));
            } else if let Some((row, begin)) = open.pop() {
                self.ends[number].insert(row, (begin, node));
            }
            thread.nodes.push(node);
            last = Some(node);
        });
        thread
    }

    /// Adds the edges over gaps. Where another thread ended something inside a gap, the gap was a wait for it; where another
    /// thread did something just before a gap ended, it may have handed the work over.
    fn gaps(&mut self, threads: &[Thread]) {
        let mut others: Vec<(i64, u32, usize)> = Vec::new();
        for (number, thread) in threads.iter().enumerate() {
            others.extend(
                thread.nodes.iter().map(|&node| (self.causal.nodes[node as usize].time, node, number)),
            );
        }
        others.sort_unstable();
        for (number, thread) in threads.iter().enumerate() {
            for &(from, to) in &thread.gaps {
                let (begin, end) =
                    (self.causal.nodes[from as usize].time, self.causal.nodes[to as usize].time);
                let behind = others.partition_point(|other| other.0 <= end);
                let cause = others[..behind].iter().rev().take_while(|other| other.0 > begin);
                let cause = cause
                    .into_iter()
                    .find(|other| other.2 != number)
                    .filter(|other| 2 * (other.0 - begin) >= end - begin);
                let lag = cause.map_or(end - begin, |cause| end - cause.0);
                self.causal.edge(from, to, lag, Why::Gap, NOTHING);
                if let Some(&(_, cause, other)) = cause {
                    let why = if other == 0 { Why::Launch } else { Why::Sync };
                    self.causal.edge(cause, to, lag, why, NOTHING);
                }
            }
        }
    }

    /// Kernels: each runs, and begins after its launch and after the one before on its stream, whichever came later.
    fn devices(&mut self, frame: &Frame<'_>, number: usize, rows: &[u32]) {
        let clock = self.clocks[number];
        let mut kernels: Vec<u32> =
            rows.iter().copied().filter(|&row| frame.on_device(row as usize)).collect();
        kernels.sort_by_key(|&row| (frame.begin[row as usize], row));
        let launch = |row: u32, ends: &Ends| {
            frame.link[row as usize].row().and_then(|call| ends.get(&(call as u32))).copied()
        };
        let delay = |row: u32| {
            frame.link[row as usize].row().map(|call| frame.begin[row as usize] - frame.begin[call])
        };
        let least =
            kernels.iter().filter_map(|&row| delay(row)).filter(|&delay| delay >= 0).min().unwrap_or(0);
        let mut last: FxHashMap<(Lane, i64), u32> = FxHashMap::default();
        let mut ended: BTreeSet<(i64, u32)> = BTreeSet::new();
        for row in kernels {
            let begin = self.causal.node(number, row, clock.common(frame.begin[row as usize]));
            let end = self.causal.node(number, row, clock.common(frame.end(row as usize)));
            self.causal.edge(begin, end, frame.duration[row as usize], Why::Run, row);
            let launch = launch(row, &self.ends[number]).map(|(call, _)| call);
            let track = frame.rank.tracks[frame.rank.events.track[row as usize]];
            let before = last.insert((track.process, frame.stream(row as usize)), end);
            let ready = launch.map(|call| self.causal.nodes[call as usize].time + least);
            let free = before.map(|before| self.causal.nodes[before as usize].time);
            let time = self.causal.nodes[begin as usize].time;
            let other = other_stream(&ended, time, ready.max(free));
            let by_launch = ready > free && other.is_none();
            if let Some(call) = launch {
                let lag = if by_launch { self.causal.between(call, begin) } else { least };
                self.causal.edge(call, begin, lag, Why::Launch, row);
            }
            if let Some(before) = before {
                let lag = if by_launch || other.is_some() { 0 } else { self.causal.between(before, begin) };
                self.causal.edge(before, begin, lag, Why::Stream, row);
            }
            if let Some(source) = other {
                let lag = self.causal.between(source, begin);
                self.causal.edge(source, begin, lag, Why::Sync, row);
            }
            ended.insert((self.causal.nodes[end as usize].time, end));
            self.ends[number].insert(row, (begin, end));
        }
    }

    /// Calls that wait for a device: their end comes after the last kernel that was launched before and ended before it.
    fn waits(&mut self, frame: &Frame<'_>, number: usize, rows: &[u32]) {
        let blocking = blocking(frame);
        let mut kernels: Vec<(i64, i64, u32)> = rows
            .iter()
            .filter(|&&row| frame.on_device(row as usize))
            .map(|&row| {
                let launched = frame.link[row as usize].row().map_or(i64::MIN, |call| frame.begin[call]);
                (frame.end(row as usize), launched, row)
            })
            .collect();
        kernels.sort_unstable();
        for &row in rows.iter().filter(|&&row| blocking[frame.name(row as usize).0 as usize]) {
            let (begin, end) = frame.interval(row as usize);
            let Some(&(enter, leave)) = self.ends[number].get(&row) else { continue };
            let ended = kernels.partition_point(|kernel| kernel.0 <= end);
            let source = kernels[..ended]
                .iter()
                .rev()
                .take_while(|kernel| kernel.0 > begin)
                .find(|kernel| kernel.1 <= begin);
            let own = source.map_or(end - begin, |kernel| end - kernel.0);
            self.causal.edge(enter, leave, own, Why::Run, row);
            if let Some(&(_, _, kernel)) = source {
                let (_, kernel_end) = self.ends[number][&kernel];
                self.causal.edge(kernel_end, leave, own, Why::Sync, row);
            }
        }
    }

    /// A collective ends on every rank after all have arrived.
    fn rendezvous(&mut self, collective: &Collective) {
        let parts: Vec<(u32, u32, u32)> = collective
            .parts
            .iter()
            .filter_map(|part| {
                let &(begin, end) = self.ends[part.frame].get(&(part.row as u32))?;
                Some((begin, end, part.row as u32))
            })
            .collect();
        let Some(latest) = parts.iter().map(|part| (self.causal.nodes[part.0 as usize].time, part.0)).max()
        else {
            return;
        };
        for &(own, end, row) in &parts {
            let lag = self.causal.nodes[end as usize].time - latest.0;
            // a rank that ended before the last one arrived did not wait for it
            if lag < 0 || parts.len() < 2 {
                continue;
            }
            for edge in self.causal.edges[end as usize].iter_mut().filter(|edge| edge.from == own) {
                edge.lag = lag;
            }
            for &(begin, _, _) in parts.iter().filter(|part| part.0 != own) {
                self.causal.edge(begin, end, lag, Why::Rendezvous, row);
            }
        }
    }
}

/// Where a kernel began long after it could have: the kernel of another stream whose end it seems to have waited for. Traces
/// without synchronisation events do not say it.
fn other_stream(ended: &BTreeSet<(i64, u32)>, begin: i64, ready: Option<i64>) -> Option<u32> {
    const UNUSUAL: i64 = 10_000;
    let ready = ready?;
    let &(end, node) = ended.range(..=(begin, u32::MAX)).next_back()?;
    let late = begin - ready;
    (late > UNUSUAL && end > ready && begin - end <= UNUSUAL.max(late / 10)).then_some(node)
}

/// Calls that begin in the window and device events whose launch does, or that run in it without a launch.
fn select(frame: &Frame<'_>, (begin, end): (i64, i64)) -> Vec<u32> {
    let in_window = |row: usize| begin <= frame.begin[row] && frame.begin[row] <= end;
    let communicates = frame.timeline.names.map(crate::is_communication);
    let wanted = |row: usize| match frame.class(row) {
        Class::Operator | Class::Runtime => in_window(row),
        Class::Annotation => in_window(row) && communicates[frame.name(row).0 as usize],
        Class::Kernel | Class::Copy => in_window(frame.link[row].row().unwrap_or(row)),
        _ => false,
    };
    frame
        .row
        .iter()
        .copied()
        .filter(|&row| frame.duration[row as usize] >= 0 && wanted(row as usize))
        .collect()
}

/// For every name, whether calls of it wait for a device.
fn blocking(frame: &Frame<'_>) -> Vec<bool> {
    frame.timeline.names.map(is_wait)
}

/// Whether calls of this name wait for a device.
pub fn is_wait(name: &str) -> bool {
    let rest = name.strip_prefix("cuda").or_else(|| name.strip_prefix("hip"));
    rest.is_some_and(|rest| {
        matches!(
            rest,
            "DeviceSynchronize"
                | "StreamSynchronize"
                | "EventSynchronize"
                | "Memcpy"
                | "MemcpyAsync"
                | "MemcpyWithStream"
        )
    })
}
