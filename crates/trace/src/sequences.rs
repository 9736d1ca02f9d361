//! Kernel sequences that recur below an operator.

use indexmap::IndexMap;
use rustc_hash::FxBuildHasher;
use serde::Serialize;
use timeline::NameId;

use crate::{Frame, Mode, stack::CallGraph, stats::micros};

/// A sequence of kernels below calls of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Pattern {
    /// The call and its kernels, with bars between.
    pub pattern: String,
    /// How many calls.
    pub count: usize,
    /// Time of the kernels in microseconds.
    #[serde(rename = "GPU kernel duration (us)")]
    pub kernel_time: f64,
    /// Time of the calls in microseconds.
    #[serde(rename = "CPU op duration (us)")]
    pub call_time: f64,
}

/// All patterns: how many there are, and the most frequent ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Patterns {
    /// How many patterns there are.
    pub n: usize,
    /// The most frequent ones.
    pub top: Vec<Pattern>,
}

/// Patterns below the outermost calls whose name contains `operator` and that launch `shortest` kernels or more.
///
/// Compatible mode looks at the calls at the least depth among them all; exact mode at every call that no other such call
/// encloses. An empty `operator` stands for all `aten::` operators in exact mode and for none in compatible mode.
pub fn frequent(
    frame: &Frame<'_>,
    graph: &CallGraph<'_>,
    operator: &str,
    shortest: usize,
    top: usize,
) -> Patterns {
    if operator.is_empty() && frame.mode == Mode::Hta {
        return Patterns::default();
    }
    let operator = if operator.is_empty() { "aten::" } else { operator };
    let matches = frame.timeline.names.map(|name| name.contains(operator));
    let is_root = |row: usize| matches[frame.name(row).0 as usize];
    let candidates: Vec<usize> = graph
        .stacks
        .threads
        .values()
        .flatten()
        .map(|&row| row as usize)
        .filter(|&row| is_root(row))
        .collect();
    let least = candidates.iter().map(|&row| graph.stacks.depth[row]).min();
    let outermost = |row: usize| match frame.mode {
        Mode::Hta => Some(graph.stacks.depth[row]) == least,
        Mode::Exact => !graph.stacks.path(row).skip(1).any(is_root),
    };
    let roots = candidates
        .iter()
        .copied()
        .filter(|&row| outermost(row) && graph.below[row].kernels as usize >= shortest);
    let mut patterns: IndexMap<Vec<NameId>, (usize, i64, i64), FxBuildHasher> = IndexMap::default();
    for root in roots {
        let kernels = graph.kernels_below(frame, root);
        let names = std::iter::once(root).chain(kernels).map(|row| frame.name(row)).collect();
        let pattern = patterns.entry(names).or_default();
        *pattern = (pattern.0 + 1, pattern.1 + graph.below[root].time, pattern.2 + frame.duration[root]);
    }
    table(frame, &patterns, top)
}

fn table(
    frame: &Frame<'_>,
    patterns: &IndexMap<Vec<NameId>, (usize, i64, i64), FxBuildHasher>,
    top: usize,
) -> Patterns {
    let text = |names: &[NameId]| {
        names.iter().map(|&name| frame.timeline.names.text(name)).collect::<Vec<_>>().join("|")
    };
    let mut table: Vec<Pattern> = patterns
        .iter()
        .map(|(names, &(count, kernel_time, call_time))| Pattern {
            pattern: text(names),
            count,
            kernel_time: micros(kernel_time),
            call_time: micros(call_time),
        })
        .collect();
    table.sort_by(|a, b| (b.count, &a.pattern).cmp(&(a.count, &b.pattern)));
    let n = table.len();
    table.truncate(top);
    Patterns { n, top: table }
}
