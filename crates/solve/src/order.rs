//! Elimination orders: repeatedly the variable whose bucket has the fewest cells.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::network::Network;

/// An elimination order and what it costs.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The variables in the order in which they go.
    pub variables: Vec<u32>,
    /// Cells of all buckets.
    pub total: u128,
    /// Cells of the largest bucket, `u64::MAX` where they are beyond counting.
    pub largest: u64,
    /// Most neighbours of a variable at its elimination.
    pub width: u32,
}

/// The graph of which variables share a factor, as sorted lists of neighbours.
pub(crate) struct Graph {
    neighbours: Vec<Vec<u32>>,
}

impl Graph {
    /// The graph of a network.
    pub fn new(network: &Network) -> Self {
        let mut neighbours: Vec<Vec<u32>> = vec![Vec::new(); network.sizes.len()];
        for factor in 0..network.arrays.len() {
            let scope = network.scope(factor);
            for &a in scope {
                neighbours[a as usize].extend(scope.iter().copied().filter(|&b| b != a));
            }
        }
        for list in &mut neighbours {
            list.sort_unstable();
            list.dedup();
        }
        Self { neighbours }
    }

    /// Cells of the bucket of `variable` if it went now; `u64::MAX` where they are beyond counting.
    fn cells(&self, sizes: &[u32], variable: u32) -> u64 {
        let mut cells = u64::from(sizes[variable as usize]);
        for &neighbour in &self.neighbours[variable as usize] {
            let Some(more) = cells.checked_mul(u64::from(sizes[neighbour as usize])) else {
                return u64::MAX;
            };
            cells = more;
        }
        cells
    }

    /// Connects the neighbours of `variable` with one another, takes it out and returns them.
    fn eliminate(&mut self, variable: u32, scratch: &mut Vec<u32>) -> Vec<u32> {
        let clique = std::mem::take(&mut self.neighbours[variable as usize]);
        for &member in &clique {
            let list = &mut self.neighbours[member as usize];
            if list.len() > 8 * clique.len() {
                remove(list, variable);
                clique.iter().filter(|&&other| other != member).for_each(|&other| insert(list, other));
            } else {
                merge_without(list, &clique, [member, variable], scratch);
                std::mem::swap(list, scratch);
            }
        }
        clique
    }
}

fn remove(list: &mut Vec<u32>, value: u32) {
    if let Ok(at) = list.binary_search(&value) {
        list.remove(at);
    }
}

fn insert(list: &mut Vec<u32>, value: u32) {
    if let Err(at) = list.binary_search(&value) {
        list.insert(at, value);
    }
}

/// The union of two sorted lists without two values.
fn merge_without(a: &[u32], b: &[u32], without: [u32; 2], union: &mut Vec<u32>) {
    union.clear();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        let x = a.get(i).copied().unwrap_or(u32::MAX);
        let y = b.get(j).copied().unwrap_or(u32::MAX);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
        let least = x.min(y);
        if !without.contains(&least) {
            union.push(least);
        }
    }
}

/// The key of a variable that was eliminated.
const GONE: u64 = u64::MAX;

/// The greedy order; `noise` is added to the logarithm of a bucket's cells, in 64ths of a bit.
pub(crate) fn min_weight(network: &Network, noise: impl Fn(u32) -> u64) -> Order {
    let sizes = &network.sizes;
    let mut graph = Graph::new(network);
    let mut key: Vec<u64> = Vec::with_capacity(sizes.len());
    let mut heap = BinaryHeap::with_capacity(sizes.len() * 2);
    for variable in 0..sizes.len() as u32 {
        key.push(log_cells(graph.cells(sizes, variable)) + noise(variable));
        if sizes[variable as usize] > 1 {
            heap.push(Reverse((key[variable as usize], variable)));
        }
    }
    let mut order = Order { variables: Vec::with_capacity(heap.len()), total: 0, largest: 0, width: 0 };
    let mut scratch = Vec::new();
    while let Some(Reverse((at, variable))) = heap.pop() {
        if key[variable as usize] != at {
            continue;
        }
        key[variable as usize] = GONE;
        let cells = graph.cells(sizes, variable);
        order.variables.push(variable);
        order.total += u128::from(cells);
        order.largest = order.largest.max(cells);
        let clique = graph.eliminate(variable, &mut scratch);
        order.width = order.width.max(clique.len() as u32);
        for member in clique {
            let new = log_cells(graph.cells(sizes, member)) + noise(member);
            if new != key[member as usize] {
                key[member as usize] = new;
                heap.push(Reverse((new, member)));
            }
        }
    }
    order
}

/// The binary logarithm in 64ths, rounded down by linear interpolation: monotone, and the same everywhere.
fn log_cells(cells: u64) -> u64 {
    let bits = u64::from(cells.max(1).ilog2());
    let fraction = (u128::from(cells.max(1)) << 6 >> bits) as u64 - 64;
    bits * 64 + fraction
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::ArrayId;

    /// A cycle of `n` variables with three states each.
    fn cycle(n: u32) -> Network {
        let mut network = Network::new(vec![3; n as usize]);
        for i in 0..n {
            let mut scope = [i, (i + 1) % n];
            scope.sort_unstable();
            network.push(ArrayId(0), &scope);
        }
        network
    }

    #[test]
    fn a_cycle_has_width_two() {
        let order = min_weight(&cycle(20), |_| 0);
        assert_eq!((order.width, order.largest, order.variables.len()), (2, 27, 20));
        assert_eq!(order.total, 18 * 27 + 9 + 3);
    }

    #[test]
    fn logarithms_grow_with_the_cells() {
        let logs: Vec<u64> = [1, 2, 3, 4, 1000, 1 << 40, u64::MAX].map(log_cells).to_vec();
        assert_eq!(logs[..4], [0, 64, 96, 128]);
        assert!(logs.is_sorted());
    }
}
