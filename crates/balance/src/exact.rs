//! Branch and bound for tiny cases.

use crate::bins::Bins;

/// Nodes visited before it gives up.
pub const NODES: u32 = 200_000;

/// The best assignment below `start`'s makespan, and whether it is proved optimal. `bound` ends the search early.
pub fn branch_and_bound(falling: &[u64], start: &Bins, bound: u64) -> (Option<Bins>, bool) {
    let ranks = start.loads.len();
    let mut search = Search {
        falling,
        bound,
        best: start.makespan(),
        found: None,
        loads: vec![0; ranks],
        rank_of: vec![0; falling.len()],
        rest: falling.iter().sum(),
        nodes: NODES,
    };
    search.descend(0);
    let proved = search.nodes > 0 || search.best == bound;
    let bins = search.found.map(|ranks_of| {
        let mut bins = Bins::new(ranks, 4);
        for (item, rank) in ranks_of.into_iter().enumerate() {
            bins.push(rank, item as u32, falling[item]);
        }
        bins
    });
    (bins, proved)
}

struct Search<'a> {
    falling: &'a [u64],
    bound: u64,
    best: u64,
    found: Option<Vec<usize>>,
    loads: Vec<u64>,
    rank_of: Vec<usize>,
    rest: u64,
    nodes: u32,
}

impl Search<'_> {
    fn descend(&mut self, item: usize) {
        if self.nodes == 0 || self.best <= self.bound {
            return;
        }
        self.nodes -= 1;
        let Some(cost) = self.falling.get(item).copied() else {
            self.best = self.loads.iter().copied().max().unwrap_or(0);
            self.found = Some(self.rank_of.clone());
            return;
        };
        // All ranks below `best` must have room for what is left.
        let room: u64 = self.loads.iter().map(|load| self.best - 1 - load).sum();
        if room < self.rest {
            return;
        }
        for rank in 0..self.loads.len() {
            let load = self.loads[rank];
            let seen = self.loads[..rank].contains(&load);
            if seen || load + cost >= self.best {
                continue;
            }
            self.loads[rank] += cost;
            self.rest -= cost;
            self.rank_of[item] = rank;
            self.descend(item + 1);
            self.loads[rank] -= cost;
            self.rest += cost;
            // A new best may have made this very node hopeless.
            if self.loads.iter().any(|load| *load >= self.best) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lpt::lpt;

    #[test]
    fn it_beats_lpt_and_proves_it() {
        let falling = [5, 5, 4, 4, 3, 3, 3];
        let (bins, proved) = branch_and_bound(&falling, &lpt(&falling, 3), 9);
        assert_eq!((bins.unwrap().makespan(), proved), (9, true));
    }

    #[test]
    fn it_proves_that_nothing_is_better() {
        let falling = [7, 6, 6];
        let (bins, proved) = branch_and_bound(&falling, &lpt(&falling, 2), 10);
        assert_eq!((bins, proved), (None, true));
    }
}
