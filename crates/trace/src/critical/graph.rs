//! A graph of what had to wait for what: two nodes for each event, weighted edges, longest path.

use serde::Serialize;

/// Why one moment waits for another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
pub enum EdgeKind {
    /// An event runs.
    #[serde(rename = "critical_path_operator")]
    Operator,
    /// One top-level event of a thread comes after another.
    #[serde(rename = "critical_path_dependency")]
    Dependency,
    /// A kernel comes after its launch.
    #[serde(rename = "critical_path_kernel_launch_delay")]
    Launch,
    /// A kernel comes after the one before on its stream.
    #[serde(rename = "critical_path_kernel_kernel_delay")]
    Kernel,
    /// A wait ends with what was waited for.
    #[serde(rename = "critical_path_sync_dependency")]
    Sync,
    /// A collective ends after its last rank has arrived.
    #[serde(rename = "critical_path_rendezvous")]
    Rendezvous,
}

/// An edge to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// Where it comes from.
    pub from: u32,
    /// Nanoseconds; may be negative where events overlap.
    pub weight: i64,
    /// Why.
    pub kind: EdgeKind,
}

/// Nodes are numbered: event number `n` begins at node `2 n` and ends at node `2 n + 1`.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Edges into each node, in the order in which they were added; at most one from each other node.
    incoming: Vec<Vec<Edge>>,
    edges: usize,
}

/// The begin of event number `event`.
pub const fn begin_of(event: u32) -> u32 {
    2 * event
}

/// The end of event number `event`.
pub const fn end_of(event: u32) -> u32 {
    2 * event + 1
}

impl Graph {
    /// Of `events` events, without edges.
    pub fn new(events: usize) -> Self {
        Self { incoming: vec![Vec::new(); 2 * events], edges: 0 }
    }

    /// Adds an edge; one between the same nodes is replaced.
    pub fn add(&mut self, from: u32, to: u32, weight: i64, kind: EdgeKind) {
        let edge = Edge { from, weight, kind };
        let incoming = &mut self.incoming[to as usize];
        if let Some(same) = incoming.iter_mut().find(|edge| edge.from == from) {
            *same = edge;
        } else {
            incoming.push(edge);
            self.edges += 1;
        }
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.incoming.len()
    }

    /// How many edges there are.
    pub const fn edges(&self) -> usize {
        self.edges
    }

    /// Edges into `node`.
    pub fn incoming(&self, node: u32) -> &[Edge] {
        &self.incoming[node as usize]
    }

    /// Every edge with the node it goes to.
    pub fn each(&self) -> impl Iterator<Item = (u32, &Edge)> {
        self.incoming
            .iter()
            .enumerate()
            .flat_map(|(to, edges)| edges.iter().map(move |edge| (to as u32, edge)))
    }

    /// Changes every weight.
    pub fn reweigh(&mut self, weight: impl Fn(u32, &Edge) -> i64) {
        for (to, edges) in self.incoming.iter_mut().enumerate() {
            for edge in edges {
                edge.weight = weight(to as u32, edge);
            }
        }
    }

    /// Nodes in an order in which every edge points forward: generation by generation. Nodes on circles are missing.
    pub fn order(&self) -> Vec<u32> {
        let mut first = vec![0_u32; self.nodes() + 1];
        for (_, edge) in self.each() {
            first[edge.from as usize + 1] += 1;
        }
        for node in 0..self.nodes() {
            first[node + 1] += first[node];
        }
        let mut outgoing = vec![0_u32; self.edges];
        let mut fill = first.clone();
        for (to, edge) in self.each() {
            let slot = &mut fill[edge.from as usize];
            outgoing[*slot as usize] = to;
            *slot += 1;
        }
        let mut waiting: Vec<u32> = self.incoming.iter().map(|edges| edges.len() as u32).collect();
        let mut order: Vec<u32> =
            (0..self.nodes() as u32).filter(|&node| waiting[node as usize] == 0).collect();
        let mut at = 0;
        while let Some(&node) = order.get(at) {
            for &to in &outgoing[first[node as usize] as usize..first[node as usize + 1] as usize] {
                waiting[to as usize] -= 1;
                if waiting[to as usize] == 0 {
                    order.push(to);
                }
            }
            at += 1;
        }
        order
    }

    /// The longest path, as the edges on it with the nodes they go to. Negative weights count 0 in the search.
    /// `None` if nodes form a circle.
    pub fn longest_path(&self) -> Option<Vec<(u32, Edge)>> {
        let order = self.order();
        if order.len() < self.nodes() {
            return None;
        }
        let mut length = vec![0_i64; self.nodes()];
        let mut best = vec![u32::MAX; self.nodes()];
        for &node in &order {
            for (position, edge) in self.incoming(node).iter().enumerate() {
                let reached = length[edge.from as usize] + edge.weight.max(0);
                if best[node as usize] == u32::MAX || reached > length[node as usize] {
                    (length[node as usize], best[node as usize]) = (reached, position as u32);
                }
            }
        }
        let mut last = *order.first()?;
        for &node in &order {
            if length[node as usize] > length[last as usize] {
                last = node;
            }
        }
        let mut path = Vec::new();
        while best[last as usize] != u32::MAX {
            let edge = self.incoming(last)[best[last as usize] as usize];
            path.push((last, edge));
            last = edge.from;
        }
        path.reverse();
        Some(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest path by trying every path.
    fn brute_force(graph: &Graph, to: u32) -> i64 {
        graph
            .incoming(to)
            .iter()
            .map(|edge| brute_force(graph, edge.from) + edge.weight.max(0))
            .max()
            .unwrap_or(0)
    }

    #[test]
    fn the_longest_path_is_as_long_as_the_longest_of_all_paths() {
        base::testing::cases(500, |u| {
            let mut graph = Graph::new(5);
            for to in 1..10 {
                for _ in 0..u.int_in_range(0..=3)? {
                    graph.add(u.int_in_range(0..=to - 1)?, to, u.int_in_range(-3..=9)?, EdgeKind::Operator);
                }
            }
            let path = graph.longest_path().unwrap();
            let length: i64 = path.iter().map(|(_, edge)| edge.weight.max(0)).sum();
            assert_eq!(length, (0..10).map(|node| brute_force(&graph, node)).max().unwrap());
            assert!(path.windows(2).all(|pair| pair[0].0 == pair[1].1.from));
            Ok(())
        });
    }

    #[test]
    fn a_circle_has_no_longest_path() {
        let mut graph = Graph::new(1);
        graph.add(0, 1, 1, EdgeKind::Operator);
        graph.add(1, 0, 1, EdgeKind::Operator);
        assert!(graph.longest_path().is_none());
    }
}
