//! Why every event of all ranks began when it did: a graph from which the step's time is computed again, as it was or with
//! some events faster or slower.
//!
//! Nodes are begins and ends of events. An edge says that its target comes at least a *lag* after its source; a node comes as
//! soon as all its edges allow. What was binding in the trace has the lag that was measured, what was not has the least lag
//! seen. So computing all times again gives the measured ones, and a changed lag moves exactly what depends on it.
#![allow(
    clippy::stable_sort_primitive,
    reason = "what is sorted here consists of long sorted runs, which the stable sort merges"
)]

mod build;
mod path;

pub use build::{build, is_wait};
pub use path::{CriticalPath, PathRow, WhatIf, critical_path, trace_back, what_if};

/// Why a node waits for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Why {
    /// A collective ends after all ranks have arrived.
    Rendezvous,
    /// A call ends, or a kernel begins, after a kernel that it waits for.
    Sync,
    /// A kernel begins after the one before on its stream.
    Stream,
    /// A kernel begins after its launch; a worker begins after what was handed to it.
    Launch,
    /// An event runs.
    Run,
    /// A thread goes on after a gap.
    Gap,
}

/// The begin or end of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node {
    /// Position of the rank's frame.
    pub frame: u16,
    /// Whether it is the end of the event.
    pub ends: bool,
    /// Row of the event, or [`crate::stack::NOTHING`] for the begin of the step.
    pub row: u32,
    /// Measured time in nanoseconds, in the common clock.
    pub time: i64,
}

/// A node that must come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The node.
    pub from: u32,
    /// Minimum nanoseconds between the two.
    pub lag: i64,
    /// Why.
    pub why: Why,
    /// The row to which the time belongs, or [`crate::stack::NOTHING`] for gaps.
    pub owner: u32,
}

/// The graph. Every edge comes from a node that is before its target in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Causal {
    /// All nodes; number 0 is the begin of the step.
    pub nodes: Vec<Node>,
    /// The measured end of the step.
    pub end: i64,
    /// All edges, by the node that they go to.
    edges: Vec<Edge>,
    /// Where the edges into each node begin; one more than there are nodes.
    first: Vec<u32>,
    /// All nodes in the order of time.
    order: Vec<u32>,
}

impl Causal {
    /// Of nodes and of edges, each with the node that it goes to.
    fn new(nodes: Vec<Node>, edges: &[(u32, Edge)]) -> Self {
        let mut first = vec![0_u32; nodes.len() + 1];
        for (to, _) in edges {
            first[*to as usize + 1] += 1;
        }
        for node in 0..nodes.len() {
            first[node + 1] += first[node];
        }
        let mut sorted = match edges.first() {
            Some(&(_, edge)) => vec![edge; edges.len()],
            None => Vec::new(),
        };
        let mut next = first.clone();
        for (to, edge) in edges {
            let slot = &mut next[*to as usize];
            sorted[*slot as usize] = *edge;
            *slot += 1;
        }
        let mut order: Vec<(i64, u32)> =
            nodes.iter().enumerate().map(|(number, node)| (node.time, number as u32)).collect();
        // nodes come thread by thread, each in the order of time: sorted runs, which this sort merges
        order.sort();
        let end = order.last().map_or(0, |last| last.0);
        Self { nodes, end, edges: sorted, first, order: order.into_iter().map(|(_, node)| node).collect() }
    }

    /// The edges into `node`.
    pub fn into_node(&self, node: u32) -> &[Edge] {
        &self.edges[self.range(node)]
    }

    /// Every edge with the node that it goes to.
    pub fn edges(&self) -> impl Iterator<Item = (u32, &Edge)> {
        (0..self.nodes.len() as u32).flat_map(|to| self.into_node(to).iter().map(move |edge| (to, edge)))
    }

    /// How many edges there are.
    pub const fn edge_count(&self) -> usize {
        self.edges.len()
    }

    fn range(&self, node: u32) -> std::ops::Range<usize> {
        self.first[node as usize] as usize..self.first[node as usize + 1] as usize
    }

    /// Makes the lags explain the measured times exactly: no edge holds longer than was measured, and where none holds long
    /// enough, the one that holds longest is taken to be the reason.
    fn settle(&mut self) {
        for node in 0..self.nodes.len() as u32 {
            let time = self.nodes[node as usize].time;
            let range = self.range(node);
            let mut binding: Option<(i64, usize)> = None;
            for at in range {
                let edge = &mut self.edges[at];
                let from = self.nodes[edge.from as usize].time;
                edge.lag = edge.lag.min(time - from);
                if binding.is_none_or(|(until, _)| from + edge.lag >= until) {
                    binding = Some((from + edge.lag, at));
                }
            }
            if let Some((_, at)) = binding {
                let edge = &mut self.edges[at];
                edge.lag = time - self.nodes[edge.from as usize].time;
            }
        }
    }

    /// When every node comes, with lags changed by `lag`. Nodes that nothing holds back come when they came.
    pub fn times(&self, lag: impl Fn(&Edge, u32) -> i64) -> Vec<i64> {
        let mut times: Vec<i64> = self.nodes.iter().map(|node| node.time).collect();
        for &node in &self.order {
            let held = self.into_node(node).iter().map(|edge| times[edge.from as usize] + lag(edge, node));
            if let Some(time) = held.max() {
                times[node as usize] = time;
            }
        }
        times
    }

    /// The greatest distance between measured times and `times`: 0 where the model explains the trace.
    pub fn error(&self, times: &[i64]) -> i64 {
        self.nodes.iter().zip(times).map(|(node, time)| (node.time - time).abs()).max().unwrap_or(0)
    }
}
