//! The tree of Python functions: where the program spends its time, calls of one path taken together.

use indexmap::IndexMap;
use rustc_hash::{FxBuildHasher, FxHashMap};
use serde::Serialize;
use timeline::{Class, NameId};

use crate::{
    Frame, Frames,
    stack::{CallGraph, NOTHING},
    stats::micros,
};

/// Calls of a function along one path of callers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PythonNode {
    /// The rank.
    pub rank: u32,
    /// How many functions call it: its callers are the nearest rows above of a smaller depth.
    pub depth: usize,
    /// The function as `file(line): name`, or the module.
    pub name: String,
    /// How many calls.
    pub count: usize,
    /// Time in microseconds, callees included.
    pub time: f64,
    /// Time in microseconds without callees.
    pub own: f64,
    /// Kernels launched below it.
    pub kernels: usize,
    /// Their time in microseconds.
    pub kernel_time: f64,
}

/// Functions below one part in this of a rank's Python time are left out.
const LEAST: i64 = 1000;

#[derive(Clone, Debug, Default)]
struct Node {
    children: IndexMap<NameId, usize, FxBuildHasher>,
    count: usize,
    time: i64,
    inside: i64,
    kernels: usize,
    kernel_time: i64,
}

/// The trees of all ranks, callers before callees, the longest first. `graphs` are the call graphs of the ranks.
pub fn tree(frames: &Frames<'_>, graphs: &[CallGraph<'_>]) -> Vec<PythonNode> {
    frames.ranks.iter().zip(graphs).flat_map(|(frame, graph)| of_rank(frame, graph)).collect()
}

fn of_rank(frame: &Frame<'_>, graph: &CallGraph<'_>) -> Vec<PythonNode> {
    let mut nodes = vec![Node::default()];
    let mut node_of: FxHashMap<u32, usize> = FxHashMap::default();
    for &row in frame.calls().threads.values().flatten() {
        if frame.class(row as usize) != Class::Python {
            continue;
        }
        let mut callers = frame.calls().path(row as usize).skip(1);
        let caller =
            callers.find(|&caller| frame.class(caller) == Class::Python).map_or(NOTHING, |row| row as u32);
        let above = node_of.get(&caller).copied().unwrap_or(0);
        let fresh = nodes.len();
        let node = *nodes[above].children.entry(frame.name(row as usize)).or_insert(fresh);
        if node == fresh {
            nodes.push(Node::default());
        }
        node_of.insert(row, node);
        let (time, below) = (frame.duration[row as usize], graph.below[row as usize]);
        nodes[above].inside += time;
        let sums = &mut nodes[node];
        sums.count += 1;
        sums.time += time;
        sums.kernels += below.kernels as usize;
        sums.kernel_time += below.time;
    }
    let least = nodes[0].inside / LEAST;
    let mut rows = Vec::new();
    append(frame, &nodes, 0, least, &mut rows);
    rows
}

/// Appends the nodes below `root`, which may be deep: no recursion.
fn append(frame: &Frame<'_>, nodes: &[Node], root: usize, least: i64, rows: &mut Vec<PythonNode>) {
    let callees = |node: usize, depth: usize| {
        let mut callees: Vec<(NameId, usize, usize)> =
            nodes[node].children.iter().map(|(&name, &child)| (name, child, depth)).collect();
        callees.retain(|&(_, child, _)| nodes[child].time >= least);
        // the last is taken first
        callees.sort_by_key(|&(name, child, _)| (nodes[child].time, std::cmp::Reverse(name)));
        callees
    };
    let mut open = callees(root, 0);
    while let Some((name, number, depth)) = open.pop() {
        let node = &nodes[number];
        rows.push(PythonNode {
            rank: frame.rank.rank,
            depth,
            name: frame.timeline.names.text(name).to_owned(),
            count: node.count,
            time: micros(node.time),
            own: micros(node.time - node.inside),
            kernels: node.kernels,
            kernel_time: micros(node.kernel_time),
        });
        open.extend(callees(number, depth + 1));
    }
}
