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

/// What leaves a rank: none, one or two items, and their cost. The order is that of costs; one number, because they are sorted
/// in great numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Take(u128);

const NONE: u32 = u32::MAX;

impl Take {
    fn new(cost: u64, items: [u32; 2]) -> Self {
        Self(u128::from(cost) << 64 | u128::from(items[0]) << 32 | u128::from(items[1]))
    }

    const fn cost(self) -> u64 {
        (self.0 >> 64) as u64
    }

    const fn items(self) -> [u32; 2] {
        [(self.0 >> 32) as u32, self.0 as u32]
    }
}

/// Improves `bins` until no rank is above `target` or the effort is spent.
pub fn refine(falling: &[u64], bins: &mut Bins, target: u64, effort: Effort) {
    let mut search = Search { falling, target, keep_counts: effort.keep_counts, takes: Default::default() };
    let mut order = Order::default();
    let mut stalled = 0;
    for round in 0..effort.rounds {
        let slow = order.slow_and_fast(&bins.loads, target);
        if slow == 0 {
            break;
        }
        // The partners turn from round to round, so that a pair that is stuck finds others.
        let shift = stalled % slow;
        let mut improved = false;
        for index in 0..slow {
            let (high, low) = (order.slow[index].1, order.fast[(index + shift) % slow].1);
            improved |= search.exchange(bins, high as usize, low as usize, round >= 1);
        }
        stalled = if improved { stalled } else { stalled + 1 };
        if stalled > 3 {
            break;
        }
    }
    search.one_by_one(bins, effort.pairs, &mut order);
}

/// Ranks with their loads.
#[derive(Default)]
struct Order {
    /// Those above the target, falling: at most half of all.
    slow: Vec<(u64, u32)>,
    /// As many of the others, rising.
    fast: Vec<(u64, u32)>,
}

impl Order {
    /// Finds both; returns how many there are of each.
    fn slow_and_fast(&mut self, loads: &[u64], target: u64) -> usize {
        let ranks = (0_u32..).zip(loads);
        self.slow.clear();
        self.slow.extend(ranks.filter(|(_, load)| **load > target).map(|(rank, load)| (*load, rank)));
        self.slow.sort_unstable_by_key(|entry| (Reverse(entry.0), entry.1));
        self.slow.truncate(loads.len() / 2);
        self.all(loads);
        let count = self.slow.len();
        self.sort_first(count);
        count
    }

    /// All ranks as partners, in no order yet.
    fn all(&mut self, loads: &[u64]) {
        self.fast.clear();
        self.fast.extend((0_u32..).zip(loads).map(|(rank, load)| (*load, rank)));
    }

    /// Brings the `count` fastest to the front, rising.
    fn sort_first(&mut self, count: usize) {
        if count < self.fast.len() {
            self.fast.select_nth_unstable(count);
        }
        let count = count.min(self.fast.len());
        self.fast[..count].sort_unstable();
    }
}

struct Search<'a> {
    falling: &'a [u64],
    target: u64,
    keep_counts: bool,
    takes: [Takes; 2],
}

/// Partners that are mostly enough for one slow rank.
const FIRST_PARTNERS: usize = 16;

impl Search<'_> {
    /// The slowest rank against all others from the fastest on, until one helps; ends when none does.
    fn one_by_one(&mut self, bins: &mut Bins, mut pairs: usize, order: &mut Order) {
        while pairs > 0 {
            let slowest = (0_u32..).zip(&bins.loads).max_by_key(|(rank, load)| (**load, *rank));
            let Some((high, _)) = slowest.filter(|(_, load)| **load > self.target) else { return };
            order.all(&bins.loads);
            order.sort_first(FIRST_PARTNERS);
            let mut helped = None;
            for index in 0..order.fast.len().min(pairs) {
                if index == FIRST_PARTNERS {
                    order.fast.sort_unstable();
                }
                let (load, low) = order.fast[index];
                if load < bins.loads[high as usize] && self.exchange(bins, high as usize, low as usize, true)
                {
                    helped = Some(index + 1);
                    break;
                }
            }
            let Some(tried) = helped else { return };
            pairs -= tried;
        }
    }

    /// The exchange that brings the two loads nearest to each other, or any that brings both to the target; whether there
    /// was one that lowers the higher load.
    fn exchange(&mut self, bins: &mut Bins, high: usize, low: usize, deep: bool) -> bool {
        let difference = bins.loads[high].saturating_sub(bins.loads[low]);
        if difference < 2 {
            return false;
        }
        for (takes, rank) in self.takes.iter_mut().zip([high, low]) {
            let items = &bins.items[rank];
            takes.list(self.falling, items, deep && items.len() <= LONG_LIST, self.keep_counts);
        }
        // After an exchange the higher load is half of the sum plus what is left of the difference.
        let sum = bins.loads[high] + bins.loads[low];
        let enough = (2 * self.target).saturating_sub(sum).max(1);
        let mut pair = Pair { difference, enough, left: difference, best: None };
        let [from_high, from_low] = &self.takes;
        pair.nearest(&from_high.any, &from_low.any);
        pair.nearest(&from_high.pairs, &from_low.pairs);
        let Some((out, back)) = pair.best else { return false };
        swap(bins, (high, out), (low, back));
        true
    }
}

/// What can leave a rank, falling in cost.
#[derive(Default)]
struct Takes {
    /// None, one or two items; if numbers of items must stay, one.
    any: Vec<Take>,
    /// If numbers of items must stay: two items.
    pairs: Vec<Take>,
}

impl Takes {
    /// Lists them; those of two items only if `deep`.
    fn list(&mut self, falling: &[u64], items: &[u32], deep: bool, keep_counts: bool) {
        let cost = |item: &u32| falling[*item as usize];
        self.any.clear();
        self.pairs.clear();
        for (index, item) in items.iter().enumerate() {
            if deep {
                let pairs = if keep_counts { &mut self.pairs } else { &mut self.any };
                let own = cost(item);
                let pair = |other: &u32| Take::new(own + cost(other), [*item, *other]);
                pairs.extend(items[index + 1..].iter().map(pair));
            }
            self.any.push(Take::new(cost(item), [*item, NONE]));
        }
        if !keep_counts {
            self.any.push(Take::new(0, [NONE, NONE]));
        }
        if deep {
            let mixed = if keep_counts { &mut self.pairs } else { &mut self.any };
            mixed.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
}

/// A search for what two ranks exchange.
struct Pair {
    /// Of their loads.
    difference: u64,
    /// A remaining difference that is small enough.
    enough: u64,
    /// The least remaining difference so far.
    left: u64,
    best: Option<(Take, Take)>,
}

impl Pair {
    /// The pair whose costs differ by nearest to half of the difference, and by less than all of it. Both lists fall: the
    /// next `out` moves less, the next `back` more.
    fn nearest(&mut self, high: &[Take], low: &[Take]) {
        let (mut out, mut back) = (0, 0);
        while self.left > self.enough && out < high.len() && back < low.len() {
            let moved = high[out].cost().saturating_sub(low[back].cost());
            let left = self.difference.abs_diff(2 * moved);
            if left < self.left {
                (self.left, self.best) = (left, Some((high[out], low[back])));
            }
            let too_much = 2 * moved > self.difference;
            out += usize::from(too_much);
            back += usize::from(!too_much);
        }
    }
}

fn swap(bins: &mut Bins, (high, out): (usize, Take), (low, back): (usize, Take)) {
    for (rank, gone, come) in [(high, out, back), (low, back, out)] {
        let items = &mut bins.items[rank];
        items.retain(|item| !gone.items().contains(item));
        for item in come.items().into_iter().filter(|item| *item != NONE) {
            let place = items.partition_point(|other| *other < item);
            items.insert(place, item);
        }
        bins.loads[rank] = bins.loads[rank] - gone.cost() + come.cost();
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
        base::testing::cases(500, |u| {
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
