//! Call stacks: which event of a thread encloses which.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use timeline::TrackId;

use crate::Frame;
pub use crate::stacks::{NOTHING, Stacks};

/// One step of a walk over a thread's events in the order of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The event of this row begins.
    Enter(u32),
    /// The event of this row ends.
    Leave(u32),
}

/// The walk over events of one thread. At equal times events end before others begin, longer ones begin first, and an event
/// without duration lies inside one that begins or ends there. An event that begins inside another and ends behind it is
/// taken to lie beside it: the other one is left when the overlapping one is entered. Returns such events.
pub fn walk(frame: &Frame<'_>, rows: &mut [u32], mut visit: impl FnMut(Step)) -> Vec<u32> {
    sort(frame, rows);
    let mut overlapping: Vec<u32> = Vec::new();
    let mut open: Vec<(u32, i64, i64)> = Vec::new();
    for &row in rows.iter() {
        let (begin, end) = frame.interval(row as usize);
        while let Some(&(top, top_begin, top_end)) = open.last() {
            let encloses = if begin == end { top_end >= begin } else { top_end > begin && top_end >= end };
            if encloses && !(top_begin == top_end && top_end < end) {
                break;
            }
            if top_end > begin && top_begin < end && overlapping.last() != Some(&row) {
                overlapping.push(row);
            }
            open.pop();
            visit(Step::Leave(top));
        }
        open.push((row, begin, end));
        visit(Step::Enter(row));
    }
    while let Some((top, ..)) = open.pop() {
        visit(Step::Leave(top));
    }
    overlapping
}

/// Sorts rows by begin, longer ones first, then by their place in the source.
fn sort(frame: &Frame<'_>, rows: &mut [u32]) {
    let key = |row: u32| {
        let (begin, end) = frame.interval(row as usize);
        (begin, std::cmp::Reverse(end), row)
    };
    if rows.is_sorted_by_key(|&row| key(row)) {
        return;
    }
    // rows ascend with their place in the source; sources hold long sorted runs, which this sort merges
    let mut keys: Vec<_> = rows.iter().map(|&row| key(row)).collect();
    keys.sort();
    rows.iter_mut().zip(keys).for_each(|(row, key)| *row = key.2);
}

impl Stacks {
    /// Of the rows that `wanted` accepts.
    pub fn of(frame: &Frame<'_>, wanted: impl Fn(usize) -> bool) -> Self {
        let count = frame.rank.events.len();
        let (mut parent, mut depth) = (vec![NOTHING; count], vec![0; count]);
        let mut threads = threads(frame, wanted);
        let mut overlapping = Vec::new();
        for rows in threads.values_mut() {
            let mut open: Vec<u32> = Vec::new();
            overlapping.extend(walk(frame, rows, |step| match step {
                Step::Enter(row) => {
                    parent[row as usize] = open.last().copied().unwrap_or(NOTHING);
                    depth[row as usize] = open.len().min(u16::MAX as usize) as u16;
                    open.push(row);
                }
                Step::Leave(_) => drop(open.pop()),
            }));
        }
        Self { parent, depth, threads, overlapping }
    }
}

impl Frame<'_> {
    /// Who encloses whom among all calls; found once.
    pub fn calls(&self) -> &Stacks {
        self.calls.get_or_init(|| Stacks::of(self, |row| is_call(self, row)))
    }
}

/// Rows that `wanted` accepts, by thread, in the order of positions; each row once.
pub fn threads(frame: &Frame<'_>, wanted: impl Fn(usize) -> bool) -> BTreeMap<TrackId, Vec<u32>> {
    let mut threads: BTreeMap<TrackId, Vec<u32>> = BTreeMap::new();
    let mut last: Option<(TrackId, Vec<u32>)> = None;
    for row in frame.rows().filter(|&row| wanted(row)) {
        let track = frame.rank.events.track[row];
        match &mut last {
            Some((same, rows)) if *same == track => rows.push(row as u32),
            _ => {
                if let Some((track, rows)) = last.replace((track, threads.remove(&track).unwrap_or_default()))
                {
                    threads.insert(track, rows);
                }
                last.as_mut().expect("just set").1.push(row as u32);
            }
        }
    }
    threads.extend(last);
    threads
}

/// The kernels below every event on a processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Below {
    /// How many kernels.
    pub kernels: u32,
    /// Their time in nanoseconds.
    pub time: i64,
    /// When the first begins.
    pub first: i64,
    /// When the last ends.
    pub last: i64,
    /// Levels of calls below, kernels counting 0: a call without calls below has 1.
    pub height: u16,
}

impl Below {
    fn add(&mut self, other: Self) {
        if other.kernels > 0 {
            self.first = if self.kernels == 0 { other.first } else { self.first.min(other.first) };
            self.last = if self.kernels == 0 { other.last } else { self.last.max(other.last) };
        }
        self.kernels += other.kernels;
        self.time += other.time;
        self.height = self.height.max(other.height + 1);
    }
}

/// Calls with the kernels that they launch, themselves or through calls below.
pub struct CallGraph<'f> {
    /// Who encloses whom.
    pub stacks: &'f Stacks,
    /// What is below each row.
    pub below: Vec<Below>,
    /// Device rows that each call launches itself, by row of the call.
    pub launched: FxHashMap<u32, Vec<u32>>,
}

impl<'f> CallGraph<'f> {
    /// Of all calls of a rank.
    pub fn of(frame: &'f Frame<'_>) -> Self {
        let stacks = frame.calls();
        let mut launched: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
        let mut below = vec![Below { height: 1, ..Below::default() }; frame.rank.events.len()];
        for row in frame.rows().filter(|&row| frame.on_device(row)) {
            let Some(call) = frame.link[row].row() else { continue };
            launched.entry(call as u32).or_default().push(row as u32);
            let (first, last) = frame.interval(row);
            below[call].add(Below { kernels: 1, time: frame.duration[row], first, last, height: 0 });
        }
        for rows in stacks.threads.values() {
            for &row in rows.iter().rev() {
                if let Some(parent) = stacks.parent(row as usize) {
                    let child = below[row as usize];
                    below[parent].add(child);
                }
            }
        }
        Self { stacks, below, launched }
    }

    /// The device rows below `root`, itself included, in ascending order of their begin.
    pub fn kernels_below(&self, frame: &Frame<'_>, root: usize) -> Vec<usize> {
        let thread = &self.stacks.threads[&frame.rank.events.track[root]];
        let from = thread.partition_point(|&row| {
            let at = row as usize;
            (frame.begin[at], frame.end(root), frame.rank.events.index[at])
                < (frame.begin[root], frame.end(at), frame.rank.events.index[root])
        });
        let mut kernels: Vec<usize> = thread[from..]
            .iter()
            .take_while(|&&row| frame.begin[row as usize] <= frame.end(root))
            .filter(|&&row| self.stacks.path(row as usize).any(|above| above == root))
            .flat_map(|row| self.launched.get(row).into_iter().flatten())
            .map(|&kernel| kernel as usize)
            .collect();
        kernels.sort_by_key(|&row| frame.begin[row]);
        kernels
    }
}

/// A summary of the graphs of all ranks.
pub fn summary(graphs: &[CallGraph<'_>]) -> GraphSummary {
    GraphSummary {
        n_stacks: graphs.iter().map(|graph| graph.stacks.threads.len()).sum(),
        max_depth: graphs.iter().flat_map(|graph| &graph.stacks.depth).copied().max().unwrap_or(0),
    }
}

/// What a call graph is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GraphSummary {
    /// How many threads have a stack.
    pub n_stacks: usize,
    /// The most events that enclose one.
    pub max_depth: u16,
}

/// Whether `row` is an event of a processor thread.
pub fn is_call(frame: &Frame<'_>, row: usize) -> bool {
    use timeline::Class::{Annotation, Counters, GpuAnnotation, Operator, Python, Runtime};
    match frame.mode {
        crate::Mode::Exact => matches!(frame.class(row), Operator | Python | Runtime | Annotation),
        crate::Mode::Hta => {
            !frame.joins_as_device(row) && !matches!(frame.class(row), GpuAnnotation | Counters)
        }
    }
}
