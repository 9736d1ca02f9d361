//! Why every event of all ranks began when it did: a graph from which the step's time is computed again, as it was or with
//! some events faster or slower.
//!
//! Nodes are begins and ends of events. An edge says that its target comes at least a *lag* after its source; a node comes as
//! soon as all its edges allow. What was binding in the trace has the lag that was measured, what was not has the least lag
//! seen. So computing all times again gives the measured ones, and a changed lag moves exactly what depends on it.

mod build;
mod path;

pub use build::{build, is_wait};
pub use path::{CriticalPath, PathRow, WhatIf, critical_path, what_if};

use crate::Frames;

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
    pub frame: u32,
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
    /// At least so many nanoseconds before.
    pub lag: i64,
    /// Why.
    pub why: Why,
    /// The row to which the time belongs, or [`crate::stack::NOTHING`] for gaps.
    pub owner: u32,
}

/// The graph. Every edge comes from a node of a smaller number in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Causal {
    /// All nodes; number 0 is the begin of the step.
    pub nodes: Vec<Node>,
    /// Edges into each node.
    pub edges: Vec<Vec<Edge>>,
    /// The measured end of the step.
    pub end: i64,
}

impl Causal {
    fn node(&mut self, frame: usize, row: u32, time: i64) -> u32 {
        self.nodes.push(Node { frame: frame as u32, row, time });
        self.edges.push(Vec::new());
        self.nodes.len() as u32 - 1
    }

    /// Adds an edge unless it would point back in time.
    fn edge(&mut self, from: u32, to: u32, lag: i64, why: Why, owner: u32) {
        let key = |node: u32| (self.nodes[node as usize].time, node);
        if key(from) < key(to) {
            self.edges[to as usize].push(Edge { from, lag: lag.max(0), why, owner });
        }
    }

    /// Measured time between two nodes.
    fn between(&self, from: u32, to: u32) -> i64 {
        self.nodes[to as usize].time - self.nodes[from as usize].time
    }

    /// Node numbers in the order of time.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.nodes.len() as u32).collect();
        order.sort_by_key(|&node| (self.nodes[node as usize].time, node));
        order
    }

    /// Makes the lags explain the measured times exactly: no edge holds longer than was measured, and where none holds long
    /// enough, the one that holds longest is taken to be the reason. What nothing holds comes after what came just before on
    /// its rank.
    fn settle(&mut self) {
        let mut before: Vec<u32> = Vec::new();
        for node in self.order() {
            let Node { time, frame, .. } = self.nodes[node as usize];
            if self.edges[node as usize].is_empty() && node != 0 {
                let from = before.get(frame as usize).copied().unwrap_or(0);
                self.edge(from, node, self.between(from, node), Why::Gap, crate::stack::NOTHING);
            }
            let nodes = &self.nodes;
            let edges = &mut self.edges[node as usize];
            for edge in edges.iter_mut() {
                edge.lag = edge.lag.min(time - nodes[edge.from as usize].time);
            }
            if let Some(edge) = edges.iter_mut().max_by_key(|edge| nodes[edge.from as usize].time + edge.lag)
            {
                edge.lag = time - nodes[edge.from as usize].time;
            }
            before.resize(before.len().max(frame as usize + 1), 0);
            before[frame as usize] = node;
        }
    }

    /// When every node comes, with lags changed by `lag`. Nodes that nothing holds back come when they came.
    pub fn times(&self, lag: impl Fn(&Edge, u32) -> i64) -> Vec<i64> {
        let mut times: Vec<i64> = self.nodes.iter().map(|node| node.time).collect();
        for node in self.order() {
            let edges = &self.edges[node as usize];
            if let Some(time) = edges.iter().map(|edge| times[edge.from as usize] + lag(edge, node)).max() {
                times[node as usize] = time;
            }
        }
        times
    }

    /// The greatest distance between measured and computed times: 0 where the model explains the trace.
    pub fn error(&self) -> i64 {
        let times = self.times(|edge, _| edge.lag);
        self.nodes.iter().zip(times).map(|(node, time)| (node.time - time).abs()).max().unwrap_or(0)
    }
}

/// The row that a node belongs to.
fn text<'t>(frames: &Frames<'t>, frame: u32, row: u32) -> &'t str {
    frames.ranks[frame as usize].text(row as usize)
}
