//! Elimination orders: repeatedly the variable whose bucket has the fewest cells.

use std::{cmp::Reverse, collections::BinaryHeap};

use smallvec::SmallVec;

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

    /// Connects variables with one another.
    fn connect(&mut self, group: &[u32]) {
        for &member in group {
            let list = &mut self.neighbours[member as usize];
            group.iter().filter(|&&other| other != member).for_each(|&other| insert(list, other));
        }
    }

    /// Takes a variable out, connecting nothing, and returns its neighbours.
    fn fix(&mut self, variable: u32) -> Vec<u32> {
        let neighbours = std::mem::take(&mut self.neighbours[variable as usize]);
        for &neighbour in &neighbours {
            remove(&mut self.neighbours[neighbour as usize], variable);
        }
        neighbours
    }

    /// The variable or its neighbour that has the most neighbours, the first of equals.
    fn busiest_around(&self, variable: u32) -> u32 {
        let around = self.neighbours[variable as usize].iter().copied().chain([variable]);
        let busy = |&x: &u32| (self.neighbours[x as usize].len(), Reverse(x));
        around.max_by_key(busy).expect("a variable is around itself")
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
    min_weight_below(network, u64::MAX, noise).0
}

/// The greedy order, or `None` where a bucket has more than `most` cells.
pub(crate) fn min_weight_within(network: &Network, most: u64, noise: impl Fn(u32) -> u64) -> Option<Order> {
    let mut greedy = Greedy::new(network, noise);
    while let Some(variable) = greedy.next() {
        let cells = greedy.cells(variable);
        if cells > most {
            return None;
        }
        greedy.eliminate(variable, cells);
    }
    Some(greedy.order)
}

/// A greedy order in which no bucket has more than `limit` cells, and the variables that have to be fixed for that.
pub(crate) fn min_weight_below(
    network: &Network,
    limit: u64,
    noise: impl Fn(u32) -> u64,
) -> (Order, Vec<u32>) {
    let mut greedy = Greedy::new(network, noise);
    let mut fixed = Vec::new();
    while let Some(variable) = greedy.next() {
        let cells = greedy.cells(variable);
        if cells > limit {
            let hub = greedy.graph.busiest_around(variable);
            greedy.fix(hub);
            fixed.push(hub);
        } else {
            greedy.eliminate(variable, cells);
        }
    }
    (greedy.order, fixed)
}

/// The graph on its way, with a queue of the variables by the cells of their buckets.
pub(crate) struct Greedy<'a, N> {
    sizes: &'a [u32],
    noise: N,
    graph: Graph,
    keys: Vec<u64>,
    /// The key in the upper half, the variable in the lower.
    heap: BinaryHeap<Reverse<u64>>,
    pub order: Order,
    scratch: Vec<u32>,
}

impl<'a, N: Fn(u32) -> u64> Greedy<'a, N> {
    /// The whole graph of a network.
    pub fn new(network: &'a Network, noise: N) -> Self {
        let sizes = network.sizes.as_slice();
        let graph = Graph::new(network);
        let heap = BinaryHeap::with_capacity(sizes.len() * 2);
        let variables = Vec::with_capacity(sizes.len());
        let order = Order { variables, total: 0, largest: 0, width: 0 };
        let keys = vec![GONE; sizes.len()];
        let mut greedy = Self { sizes, noise, graph, keys, heap, order, scratch: Vec::new() };
        for variable in (0..sizes.len() as u32).filter(|&x| sizes[x as usize] > 1) {
            greedy.enqueue(variable);
        }
        greedy
    }

    fn enqueue(&mut self, variable: u32) {
        let key = log_cells(self.graph.cells(self.sizes, variable)) + (self.noise)(variable);
        if key != self.keys[variable as usize] {
            self.keys[variable as usize] = key;
            self.heap.push(Reverse(key << 32 | u64::from(variable)));
        }
    }

    /// The variable with the fewest cells, the first of equals. It stays in the graph.
    pub fn next(&mut self) -> Option<u32> {
        loop {
            let Reverse(entry) = self.heap.pop()?;
            if self.keys[entry as u32 as usize] == entry >> 32 {
                return Some(entry as u32);
            }
        }
    }

    /// Cells of the bucket of `variable` if it went now.
    pub fn cells(&self, variable: u32) -> u64 {
        self.graph.cells(self.sizes, variable)
    }

    /// Takes a variable out with a bucket of `cells`, and returns its neighbours, which are tied together.
    pub fn eliminate(&mut self, variable: u32, cells: u64) -> Vec<u32> {
        self.keys[variable as usize] = GONE;
        self.order.variables.push(variable);
        self.order.total += u128::from(cells);
        self.order.largest = self.order.largest.max(cells);
        let clique = self.graph.eliminate(variable, &mut self.scratch);
        self.order.width = self.order.width.max(clique.len() as u32);
        for &member in &clique {
            self.enqueue(member);
        }
        clique
    }

    /// Takes a variable out with a bucket for each of several groups of its neighbours, which are tied together each by itself.
    pub fn eliminate_split(&mut self, variable: u32, groups: &[SmallVec<[u32; 8]>]) {
        self.order.variables.push(variable);
        self.fix(variable);
        for group in groups {
            let others = group.iter().map(|&x| u64::from(self.sizes[x as usize]));
            let cells = others.fold(u64::from(self.sizes[variable as usize]), u64::saturating_mul);
            self.order.total += u128::from(cells);
            self.order.largest = self.order.largest.max(cells);
            self.graph.connect(group);
        }
        for &member in groups.iter().flatten() {
            self.enqueue(member);
        }
    }

    /// Takes a variable out without a bucket. The one that was next is queued again.
    fn fix(&mut self, variable: u32) {
        self.keys[variable as usize] = GONE;
        for neighbour in self.graph.fix(variable) {
            self.keys[neighbour as usize] = GONE;
            self.enqueue(neighbour);
        }
    }
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
