//! MULTIFIT: the smallest capacity for which first-fit-decreasing needs no more ranks than there are.

use crate::{bins::Bins, rooms::Rooms};

/// Bisects the capacity between `bound` and `upper` (exclusive); `None` if nothing below `upper` was found.
pub fn multifit(falling: &[u64], ranks: usize, bound: u64, upper: u64, rounds: usize) -> Option<Bins> {
    let (mut low, mut high, mut best) = (bound, upper, None);
    for _ in 0..rounds {
        if low >= high {
            break;
        }
        let capacity = low + (high - low) / 2;
        match first_fit(falling, ranks, capacity) {
            Some(bins) => {
                high = bins.makespan().min(capacity);
                best = Some(bins);
            }
            None => low = capacity + 1,
        }
    }
    best
}

/// Each item to the first rank with room for it.
pub fn first_fit(falling: &[u64], ranks: usize, capacity: u64) -> Option<Bins> {
    let mut rooms = Rooms::new(ranks, capacity);
    let mut bins = Bins::new(ranks, falling.len() / ranks + 2);
    for (item, cost) in falling.iter().enumerate() {
        bins.push(rooms.place(*cost)?, item as u32, *cost);
    }
    Some(bins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_solves_the_worst_case_of_lpt() {
        let bins = multifit(&[5, 5, 4, 4, 3, 3, 3], 3, 9, 11, 10).unwrap();
        assert_eq!(bins.makespan(), 9);
    }

    #[test]
    fn it_says_when_it_finds_nothing_better() {
        assert!(multifit(&[5, 5, 5], 2, 10, 10, 10).is_none());
    }
}
