//! Builds the causal graph of one step of all ranks.
#![allow(
    clippy::stable_sort_primitive,
    reason = "what is sorted here consists of long sorted runs, which the stable sort merges"
)]

use rustc_hash::FxHashMap;
use timeline::{Class, Lane};

use super::{Causal, Edge, Node, Why};
use crate::{
    Frame, Frames,
    align::{Clock, clocks},
    collective::{Collective, matched},
    critical,
    stack::{self, NOTHING, Step},
};

/// The graph of the `instance`-th event whose name contains `annotation`, on every rank that has one; of everything for an
/// empty annotation. `None` if no rank has one.
pub fn build(frames: &Frames<'_>, annotation: &str, instance: usize) -> Option<Causal> {
    let collectives = matched(frames);
    let clocks = clocks(&collectives, frames.ranks.len());
    let windows: Vec<Option<(i64, i64)>> =
        frames.ranks.iter().map(|frame| critical::window(frame, annotation, instance)).collect();
    let begins = frames.ranks.iter().zip(&windows).zip(&clocks).filter_map(|((frame, window), clock)| {
        let begin = window.as_ref()?.0.max(first(frame)?);
        Some(clock.common(begin))
    });
    let begin = begins.min()?;
    let mut builder = Builder { clocks, ..Builder::default() };
    builder.node(0, NOTHING, false, begin);
    for (number, (frame, window)) in frames.ranks.iter().zip(&windows).enumerate() {
        builder.ends.push(vec![NO_ENDS; if window.is_some() { frame.rank.events.len() } else { 0 }]);
        if let Some(window) = window {
            builder.rank(frame, number, *window);
        }
    }
    for collective in &collectives {
        builder.rendezvous(collective);
    }
    Some(builder.finish())
}

fn first(frame: &Frame<'_>) -> Option<i64> {
    frame.rows().map(|row| frame.begin[row]).min()
}

/// Begin and end node of each row of a rank.
type Ends = Vec<(u32, u32)>;

const NO_ENDS: (u32, u32) = (NOTHING, NOTHING);

#[derive(Default)]
struct Builder {
    nodes: Vec<Node>,
    /// Edges with the node that they go to, in the order in which they are found.
    edges: Vec<(u32, Edge)>,
    /// Lags that edges between two nodes get in the end.
    held: Vec<(u32, u32, i64)>,
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
    fn node(&mut self, frame: usize, row: u32, ends: bool, time: i64) -> u32 {
        let frame = u16::try_from(frame).expect("ranks are files, of which there are not so many");
        self.nodes.push(Node { frame, ends, row, time });
        self.nodes.len() as u32 - 1
    }

    fn time(&self, node: u32) -> i64 {
        self.nodes[node as usize].time
    }

    /// Adds an edge unless it would point back in time.
    fn edge(&mut self, from: u32, to: u32, lag: i64, why: Why, owner: u32) {
        if (self.time(from), from) < (self.time(to), to) {
            self.edges.push((to, Edge { from, lag: lag.max(0), why, owner }));
        }
    }

    /// Measured time between two nodes.
    fn between(&self, from: u32, to: u32) -> i64 {
        self.time(to) - self.time(from)
    }

    /// The graph, in which every node but the first has a reason: what nothing holds comes after what came just before on its
    /// rank.
    fn finish(mut self) -> Causal {
        let mut has_reason = vec![false; self.nodes.len()];
        has_reason[0] = true;
        for (to, _) in &self.edges {
            has_reason[*to as usize] = true;
        }
        if has_reason.contains(&false) {
            let mut order: Vec<(i64, u32)> = (0..).zip(&self.nodes).map(|(n, node)| (node.time, n)).collect();
            order.sort();
            let mut before = vec![0; self.ends.len()];
            for (_, node) in order {
                let frame = usize::from(self.nodes[node as usize].frame);
                if !has_reason[node as usize] {
                    self.edge(before[frame], node, self.between(before[frame], node), Why::Gap, NOTHING);
                }
                before[frame] = node;
            }
        }
        let mut causal = Causal::new(self.nodes, &self.edges);
        for (from, to, lag) in self.held {
            let range = causal.range(to);
            for edge in causal.edges[range].iter_mut().filter(|edge| edge.from == from) {
                edge.lag = lag;
            }
        }
        causal.settle();
        causal
    }

    fn rank(&mut self, frame: &Frame<'_>, number: usize, window: (i64, i64)) {
        let rows = select(frame, window);
        let blocking = frame.timeline.names.map(is_wait);
        let mut tracks: Vec<Vec<u32>> = vec![Vec::new(); frame.rank.tracks.len()];
        for &row in rows.iter().filter(|&&row| !frame.on_device(row as usize)) {
            tracks[frame.rank.events.track[row as usize].0 as usize].push(row);
        }
        let mut threads: Vec<Thread> = tracks
            .into_iter()
            .filter(|rows| !rows.is_empty())
            .map(|mut rows| self.thread(frame, number, &mut rows, &blocking))
            .collect();
        // the thread that was busy first and longest forks the others and joins them
        threads.sort_by_key(|thread| std::cmp::Reverse(thread.nodes.len()));
        self.devices(frame, number, &rows);
        self.gaps(&threads);
        self.waits(frame, number, &rows, &blocking);
    }

    fn thread(&mut self, frame: &Frame<'_>, number: usize, rows: &mut [u32], blocking: &[bool]) -> Thread {
        let clock = self.clocks[number];
        let mut thread = Thread { nodes: Vec::with_capacity(2 * rows.len()), gaps: Vec::new() };
        let mut open: Vec<(u32, u32)> = Vec::new();
        let mut last = None;
        stack::walk(frame, rows, |step| {
            let (row, time, enters) = match step {
                Step::Enter(row) => (row, frame.begin[row as usize], true),
                Step::Leave(row) => (row, frame.end(row as usize), false),
            };
            let node = self.node(number, row, !enters, clock.common(time));
            let inside = open.last().map(|&(row, _)| row);
            match last {
                Some(last) if inside.is_none() => thread.gaps.push((last, node)),
                // what a waiting call takes of its own is found when it is known what it waits for
                Some(_) if !enters && blocking[frame.name(row as usize).0 as usize] => {}
                Some(last) => {
                    let lag = self.between(last, node);
                    self.edge(last, node, lag, Why::Run, inside.unwrap_or(row));
                }
                None => thread.gaps.push((0, node)),
            }
            if enters {
                open.push((row, node));
            } else if let Some((row, begin)) = open.pop() {
                self.ends[number][row as usize] = (begin, node);
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
        if threads.len() > 1 {
            for (number, thread) in threads.iter().enumerate() {
                others.extend(thread.nodes.iter().map(|&node| (self.time(node), node, number)));
            }
            others.sort();
        }
        for (number, thread) in threads.iter().enumerate() {
            for &(from, to) in &thread.gaps {
                let (begin, end) = (self.time(from), self.time(to));
                let behind = others.partition_point(|other| other.0 <= end);
                let cause = others[..behind].iter().rev().take_while(|other| other.0 > begin);
                let cause = cause
                    .into_iter()
                    .find(|other| other.2 != number)
                    .filter(|other| 2 * (other.0 - begin) >= end - begin);
                let lag = cause.map_or(end - begin, |cause| end - cause.0);
                self.edge(from, to, lag, Why::Gap, NOTHING);
                if let Some(&(_, cause, other)) = cause {
                    let why = if other == 0 { Why::Launch } else { Why::Sync };
                    self.edge(cause, to, lag, why, NOTHING);
                }
            }
        }
    }

    /// Kernels: each runs, and begins after its launch and after the one before on its stream, whichever came later.
    fn devices(&mut self, frame: &Frame<'_>, number: usize, rows: &[u32]) {
        let clock = self.clocks[number];
        let mut kernels: Vec<(i64, u32)> = rows
            .iter()
            .filter(|&&row| frame.on_device(row as usize))
            .map(|&row| (frame.begin[row as usize], row))
            .collect();
        kernels.sort();
        let call_of = |row: u32| frame.link[row as usize].row();
        let delays = kernels.iter().filter_map(|&(begin, row)| Some(begin - frame.begin[call_of(row)?]));
        let least = delays.filter(|&delay| delay >= 0).min().unwrap_or(0);
        let mut last: FxHashMap<(Lane, i64), u32> = FxHashMap::default();
        let mut ended = Ended::of(frame, &clock, &kernels, self.nodes.len() as u32);
        for (_, row) in kernels {
            let begin = self.node(number, row, false, clock.common(frame.begin[row as usize]));
            let end = self.node(number, row, true, clock.common(frame.end(row as usize)));
            self.edge(begin, end, frame.duration[row as usize], Why::Run, row);
            let launch = call_of(row).map(|call| self.ends[number][call].0).filter(|&call| call != NOTHING);
            let track = frame.rank.tracks[frame.rank.events.track[row as usize]];
            let before = last.insert((track.process, frame.stream(row as usize)), end);
            let ready = launch.map(|call| self.time(call) + least);
            let free = before.map(|before| self.time(before));
            let other = ended.other_stream(self.time(begin), begin, ready.max(free));
            let by_launch = ready > free && other.is_none();
            if let Some(call) = launch {
                let lag = if by_launch { self.between(call, begin) } else { least };
                self.edge(call, begin, lag, Why::Launch, row);
            }
            if let Some(before) = before {
                let lag = if by_launch || other.is_some() { 0 } else { self.between(before, begin) };
                self.edge(before, begin, lag, Why::Stream, row);
            }
            if let Some(source) = other {
                self.edge(source, begin, self.between(source, begin), Why::Sync, row);
            }
            self.ends[number][row as usize] = (begin, end);
        }
    }

    /// Calls that wait for a device: their end comes after the last kernel that was launched before and ended before it.
    fn waits(&mut self, frame: &Frame<'_>, number: usize, rows: &[u32], blocking: &[bool]) {
        let mut kernels: Vec<(i64, i64, u32)> = rows
            .iter()
            .filter(|&&row| frame.on_device(row as usize))
            .map(|&row| {
                let launched = frame.link[row as usize].row().map_or(i64::MIN, |call| frame.begin[call]);
                (frame.end(row as usize), launched, row)
            })
            .collect();
        kernels.sort();
        for &row in rows.iter().filter(|&&row| blocking[frame.name(row as usize).0 as usize]) {
            let (begin, end) = frame.interval(row as usize);
            let (enter, leave) = self.ends[number][row as usize];
            if enter == NOTHING {
                continue;
            }
            let ended = kernels.partition_point(|kernel| kernel.0 <= end);
            let source = kernels[..ended]
                .iter()
                .rev()
                .take_while(|kernel| kernel.0 > begin)
                .find(|kernel| kernel.1 <= begin);
            let own = source.map_or(end - begin, |kernel| end - kernel.0);
            self.edge(enter, leave, own, Why::Run, row);
            if let Some(&(_, _, kernel)) = source {
                let (_, kernel_end) = self.ends[number][kernel as usize];
                self.edge(kernel_end, leave, own, Why::Sync, row);
            }
        }
    }

    /// A collective ends on every rank after all have arrived.
    fn rendezvous(&mut self, collective: &Collective) {
        let parts: Vec<(u32, u32, u32)> = collective
            .parts
            .iter()
            .filter_map(|part| {
                let &(begin, end) = self.ends[part.frame].get(part.row)?;
                (begin != NOTHING).then_some((begin, end, part.row as u32))
            })
            .collect();
        let Some(latest) = parts.iter().map(|part| (self.time(part.0), part.0)).max() else {
            return;
        };
        for &(own, end, row) in &parts {
            let lag = self.time(end) - latest.0;
            // a rank that ended before the last one arrived did not wait for it
            if lag < 0 || parts.len() < 2 {
                continue;
            }
            self.held.push((own, end, lag));
            for &(begin, _, _) in parts.iter().filter(|part| part.0 != own) {
                self.edge(begin, end, lag, Why::Rendezvous, row);
            }
        }
    }
}

/// Kernels in the order of their ends, walked along while begins ascend.
struct Ended {
    /// End and node of it.
    ends: Vec<(i64, u32)>,
    /// How many have ended.
    count: usize,
}

impl Ended {
    /// Of kernels in the order of their begins, whose nodes will be numbered from `node` on, two for each.
    fn of(frame: &Frame<'_>, clock: &Clock, kernels: &[(i64, u32)], node: u32) -> Self {
        let end = |(number, &(_, row)): (u32, &(i64, u32))| {
            (clock.common(frame.end(row as usize)), node + 2 * number + 1)
        };
        let mut ends: Vec<(i64, u32)> = (0..).zip(kernels).map(end).collect();
        ends.sort();
        Self { ends, count: 0 }
    }

    /// Where a kernel began long after it could have: the kernel of another stream whose end it seems to have waited for.
    /// Traces without synchronisation events do not say it. `begin` never descends from call to call.
    fn other_stream(&mut self, begin: i64, node: u32, ready: Option<i64>) -> Option<u32> {
        const UNUSUAL: i64 = 10_000;
        while self.ends.get(self.count).is_some_and(|end| end.0 <= begin) {
            self.count += 1;
        }
        let ready = ready?;
        let &(end, source) = self.ends[..self.count].iter().rev().find(|end| end.1 < node)?;
        let late = begin - ready;
        (late > UNUSUAL && end > ready && begin - end <= UNUSUAL.max(late / 10)).then_some(source)
    }
}

/// Calls that begin in the window and device events whose launch does, or that run in it without a launch.
fn select(frame: &Frame<'_>, (begin, end): (i64, i64)) -> Vec<u32> {
    let in_window = |row: usize| begin <= frame.begin[row] && frame.begin[row] <= end;
    let wanted = |row: usize| match frame.class(row) {
        Class::Operator | Class::Runtime => in_window(row),
        Class::Annotation => in_window(row) && frame.communicates(row),
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
