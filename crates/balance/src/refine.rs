//! Local search: pairs a slow rank with a fast one and exchanges what brings both nearest to their mean.

use std::cmp::Reverse;

use crate::bins::Bins;

/// How far the search goes.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rounds in which all slow ranks are paired with fast ones.
    pub rounds: usize,
    /// Pairs tried one by one after that, with exchanges of up to two items for two.
    pub pairs: usize,
    /// Whether an exchange must keep the number of items of each rank.
    pub keep_counts: bool,
}

/// Lists longer than this are fine-grained enough for single exchanges.
const LONG_LIST: usize = 40;

/// What leaves a rank: none, one or two positions of its list, and their cost.
type Take = (u64, [u32; 2]);
const NONE: u32 = u32::MAX;

/// Improves `bins` until no rank is above `target` or the effort is spent.
pub fn refine(falling: &[u64], bins: &mut Bins, target: u64, effort: Effort) {
    let mut search = Search { falling, keep_counts: effort.keep_counts, takes: Default::default() };
    let ranks = bins.loads.len();
    let mut order: Vec<u32> = (0..ranks as u32).collect();
    let mut stalled = 0;
    for round in 0..effort.rounds {
        order.sort_unstable_by_key(|rank| (Reverse(bins.loads[*rank as usize]), *rank));
        if bins.loads[order[0] as usize] <= target {
            return;
        }
        // The partners turn from round to round, so that a pair that is stuck finds others.
        let slow = order.iter().take(ranks / 2).filter(|rank| bins.loads[**rank as usize] > target).count();
        let shift = if slow == 0 { 0 } else { stalled % slow };
        let mut improved = false;
        for index in 0..slow {
            let (high, low) = (order[index] as usize, order[ranks - 1 - (index + shift) % slow] as usize);
            let deep = round >= 1;
            improved |= search.exchange(bins, high, low, deep);
        }
        stalled = if improved { stalled } else { stalled + 1 };
        if stalled > 3 {
            break;
        }
    }
    search.one_by_one(bins, target, effort.pairs, &mut order);
}

struct Search<'a> {
    falling: &'a [u64],
    keep_counts: bool,
    takes: [Vec<Take>; 2],
}

impl Search<'_> {
    /// The slowest rank against all others from the fastest on, until one helps; ends when none does.
    fn one_by_one(&mut self, bins: &mut Bins, target: u64, mut pairs: usize, order: &mut [u32]) {
        while pairs > 0 {
            order.sort_unstable_by_key(|rank| (bins.loads[*rank as usize], *rank));
            let high = *order.last().expect("there is at least one rank") as usize;
            if bins.loads[high] <= target {
                return;
            }
            let others = &order[..order.len() - 1];
            let helped = others.iter().take(pairs).position(|low| {
                let low = *low as usize;
                bins.loads[low] < bins.loads[high] && self.exchange(bins, high, low, true)
            });
            match helped {
                Some(tried) => pairs -= tried + 1,
                None => return,
            }
        }
    }

    /// The exchange that brings the two loads nearest to each other; whether there was one that lowers the higher load.
    fn exchange(&mut self, bins: &mut Bins, high: usize, low: usize, deep: bool) -> bool {
        let difference = bins.loads[high].saturating_sub(bins.loads[low]);
        if difference < 2 {
            return false;
        }
        let lists = [high, low].map(|rank| bins.items[rank].len());
        let deep = deep && lists.iter().all(|length| *length <= LONG_LIST);
        for (takes, rank) in self.takes.iter_mut().zip([high, low]) {
            list_takes(self.falling, &bins.items[rank], deep, takes);
        }
        let [from_high, from_low] = &self.takes;
        let Some((out, back)) = nearest_pair(from_high, from_low, difference, self.keep_counts) else {
            return false;
        };
        swap(bins, (high, out), (low, back));
        true
    }
}

/// All ways to take none, one or (if `deep`) two items, falling in cost.
fn list_takes(falling: &[u64], items: &[u32], deep: bool, takes: &mut Vec<Take>) {
    takes.clear();
    for (index, item) in items.iter().enumerate() {
        let cost = falling[*item as usize];
        if deep {
            let rest = items[index + 1..].iter();
            takes.extend(rest.map(|other| (cost + falling[*other as usize], [*item, *other])));
        }
        takes.push((cost, [*item, NONE]));
    }
    takes.push((0, [NONE, NONE]));
    if deep {
        takes.sort_unstable_by_key(|take| (Reverse(take.0), take.1));
    }
}

/// The pair whose costs differ by nearest to half of `difference`, and by less than all of it.
fn nearest_pair(high: &[Take], low: &[Take], difference: u64, keep_counts: bool) -> Option<(Take, Take)> {
    let mut best = (difference, None);
    let mut from = 0;
    for out in high {
        // The first `back` that leaves less than half of the difference too much; both lists fall.
        while from < low.len() && 2 * out.0.saturating_sub(low[from].0) < difference && low[from].0 > 0 {
            let moved = out.0.saturating_sub(low[from].0);
            if moved > 0 {
                consider(&mut best, difference, moved, out, &low[from], keep_counts);
            }
            from += 1;
        }
        let from_here = low[from.min(low.len() - 1)..].iter();
        for back in from_here.take(if keep_counts { 6 } else { 1 }) {
            let moved = out.0.saturating_sub(back.0);
            if moved > 0 && moved < difference {
                consider(&mut best, difference, moved, out, back, keep_counts);
            }
        }
        if best.0 <= 1 {
            break;
        }
        // The next `out` is cheaper, so its partner is no earlier: step back one for the pair just below half.
        from = from.saturating_sub(1);
    }
    best.1
}

fn count(take: &Take) -> usize {
    take.1.iter().filter(|item| **item != NONE).count()
}

fn consider(
    best: &mut (u64, Option<(Take, Take)>),
    difference: u64,
    moved: u64,
    out: &Take,
    back: &Take,
    keep_counts: bool,
) {
    let left = difference.abs_diff(2 * moved);
    if left < best.0 && (!keep_counts || count(out) == count(back)) {
        *best = (left, Some((*out, *back)));
    }
}

fn swap(bins: &mut Bins, (high, out): (usize, Take), (low, back): (usize, Take)) {
    for (rank, gone, come) in [(high, out, back), (low, back, out)] {
        let items = &mut bins.items[rank];
        items.retain(|item| !gone.1.contains(item));
        for item in come.1.into_iter().filter(|item| *item != NONE) {
            let place = items.partition_point(|other| *other < item);
            items.insert(place, item);
        }
        bins.loads[rank] = bins.loads[rank] - gone.0 + come.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{bins::Bins, lpt::lpt};

    const EFFORT: Effort = Effort { rounds: 8, pairs: 100, keep_counts: false };

    #[test]
    fn an_exchange_of_two_for_one_is_found() {
        let falling = [6, 5, 4, 3, 3, 3];
        let mut bins = Bins::new(2, 4);
        for (rank, item) in [(0, 0), (0, 1), (0, 3), (1, 2), (1, 4), (1, 5)] {
            bins.push(rank, item, falling[item as usize]);
        }
        refine(&falling, &mut bins, 12, EFFORT);
        assert_eq!(bins.loads, [12, 12]);
    }

    #[test]
    fn it_never_makes_it_worse_and_loses_nothing() {
        arbtest::arbtest(|u| {
            let mut falling: Vec<u64> = (0..u.int_in_range(1..=40)?)
                .map(|_| Ok(u64::from(u.arbitrary::<u16>()?) + 1))
                .collect::<Result<_, _>>()?;
            falling.sort_unstable_by(|a, b| b.cmp(a));
            let ranks = u.int_in_range(1..=9)?;
            let keep_counts = u.arbitrary()?;
            let start = lpt(&falling, ranks);
            let mut bins = start.clone();
            refine(&falling, &mut bins, 0, Effort { keep_counts, ..EFFORT });
            assert!(bins.makespan() <= start.makespan());
            for (rank, items) in bins.items.iter().enumerate() {
                assert!(items.windows(2).all(|pair| pair[0] < pair[1]));
                assert_eq!(bins.loads[rank], items.iter().map(|item| falling[*item as usize]).sum::<u64>());
                assert!(!keep_counts || items.len() == start.items[rank].len());
            }
            let mut all: Vec<u32> = bins.items.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..falling.len() as u32));
            Ok(())
        });
    }
}
