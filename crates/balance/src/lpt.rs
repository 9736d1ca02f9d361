//! Longest processing time first: each item to the least loaded rank, the most costly item first.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::bins::Bins;

/// Graham's LPT rule; at most `4/3 - 1/(3K)` of the optimum. Ties go to the lowest rank.
pub fn lpt(falling: &[u64], ranks: usize) -> Bins {
    let mut bins = Bins::new(ranks, falling.len() / ranks + 2);
    let first = falling.len().min(ranks);
    for (rank, cost) in falling[..first].iter().enumerate() {
        bins.push(rank, rank as u32, *cost);
    }
    // No load exceeds the mean by more than one item, so that load and rank mostly fit one word: half the comparisons.
    let total: u64 = falling.iter().sum();
    let most = total / ranks as u64 + falling.first().copied().unwrap_or(0);
    let bits = ranks.next_power_of_two().trailing_zeros();
    if most.leading_zeros() > bits {
        fill(
            falling,
            &mut bins,
            |load, rank| load << bits | u64::from(rank),
            |key| (key & ((1 << bits) - 1)) as u32,
            |cost| cost << bits,
            u64::MAX,
        );
    } else {
        fill(
            falling,
            &mut bins,
            |load, rank| u128::from(load) << 32 | u128::from(rank),
            |key| key as u32,
            |cost| u128::from(cost) << 32,
            u128::MAX,
        );
    }
    bins
}

/// Gives out what is left after one item per rank. A key is a load with its rank in the low bits.
fn fill<K: Ord + Copy + std::ops::Add<Output = K>>(
    falling: &[u64],
    bins: &mut Bins,
    key: impl Fn(u64, u32) -> K,
    rank_of: impl Fn(K) -> u32,
    rise: impl Fn(u64) -> K,
    most: K,
) {
    let keys: Vec<K> = (0_u32..).zip(&bins.loads).map(|(rank, load)| key(*load, rank)).collect();
    let mut lowest = Lowest::new(&keys, most);
    for (item, cost) in falling.iter().enumerate().skip(bins.loads.len()) {
        let top = lowest.root();
        let rank = rank_of(top) as usize;
        lowest.set(rank, top + rise(*cost));
        bins.push(rank, item as u32, *cost);
    }
}

/// A tree of minima. Replacing a leaf takes no branch that depends on data: several times faster than a heap.
struct Lowest<K> {
    /// Node `n` has the children `2n` and `2n + 1`; the leaves come last.
    nodes: Vec<K>,
    leaves: usize,
}

impl<K: Ord + Copy> Lowest<K> {
    /// No key exceeds `most`.
    fn new(keys: &[K], most: K) -> Self {
        let leaves = keys.len().next_power_of_two();
        let mut nodes = vec![most; 2 * leaves];
        nodes[leaves..leaves + keys.len()].copy_from_slice(keys);
        for node in (1..leaves).rev() {
            nodes[node] = nodes[2 * node].min(nodes[2 * node + 1]);
        }
        Self { nodes, leaves }
    }

    fn root(&self) -> K {
        self.nodes[1]
    }

    fn set(&mut self, leaf: usize, key: K) {
        let mut node = self.leaves + leaf;
        let mut least = key;
        self.nodes[node] = key;
        while node > 1 {
            least = least.min(self.nodes[node ^ 1]);
            node /= 2;
            self.nodes[node] = least;
        }
    }
}

/// LPT in which no rank takes more than its share of items: `falling.len() / ranks`, one more on the first ranks.
pub fn lpt_equal_count(falling: &[u64], ranks: usize) -> Bins {
    let share = |rank: usize| (falling.len() + ranks - 1 - rank) / ranks;
    let mut bins = Bins::new(ranks, falling.len() / ranks + 1);
    let mut heap: BinaryHeap<_> =
        (0..ranks).filter(|rank| share(*rank) > 0).map(|rank| Reverse((0, rank))).collect();
    for (item, cost) in falling.iter().enumerate() {
        let Reverse((load, rank)) = heap.pop().expect("the shares add up to the number of items");
        bins.push(rank, item as u32, *cost);
        if bins.items[rank].len() < share(rank) {
            heap.push(Reverse((load + cost, rank)));
        }
    }
    bins
}

/// One item of each block of `ranks` items to each rank: the most costly of the block to the least loaded rank.
pub fn fold_equal_count(falling: &[u64], ranks: usize) -> Bins {
    let mut bins = Bins::new(ranks, falling.len() / ranks + 1);
    let mut order: Vec<usize> = (0..ranks).collect();
    for (block, costs) in falling.chunks(ranks).enumerate() {
        // A last, partial block goes to the least loaded ranks: shares still differ by one at most.
        order.sort_unstable_by_key(|rank| (bins.loads[*rank], *rank));
        for (offset, (rank, cost)) in order.iter().zip(costs).enumerate() {
            bins.push(*rank, (block * ranks + offset) as u32, *cost);
        }
    }
    bins
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_textbook_worst_case_of_lpt() {
        let bins = lpt(&[5, 5, 4, 4, 3, 3, 3], 3);
        assert_eq!(bins.makespan(), 11);
        assert_eq!(bins.loads.iter().sum::<u64>(), 27);
    }

    #[test]
    fn equal_counts_differ_by_one_at_most() {
        for build in [lpt_equal_count, fold_equal_count] {
            let bins = build(&[9, 8, 7, 3, 2, 1, 1, 1], 3);
            let mut counts: Vec<usize> = bins.items.iter().map(Vec::len).collect();
            counts.sort_unstable();
            assert_eq!(counts, [2, 3, 3]);
        }
    }

    #[test]
    fn fewer_items_than_ranks_leave_ranks_empty() {
        assert_eq!(lpt(&[2, 1], 4).loads, [2, 1, 0, 0]);
        assert_eq!(lpt_equal_count(&[2, 1], 4).loads, [2, 1, 0, 0]);
    }
}
