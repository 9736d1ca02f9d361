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
    let mut heap: BinaryHeap<_> =
        bins.loads.iter().enumerate().map(|(rank, load)| Reverse((*load, rank as u32))).collect();
    for (item, cost) in falling.iter().enumerate().skip(first) {
        let mut top = heap.peek_mut().expect("there is at least one rank");
        let (load, rank) = top.0;
        bins.items[rank as usize].push(item as u32);
        top.0 = (load + cost, rank);
    }
    for Reverse((load, rank)) in heap {
        bins.loads[rank as usize] = load;
    }
    bins
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
