//! Who holds which pieces of a sequence.

/// This rank's place among the ranks of a ring. Of `2 n` equal pieces of the sequence rank `r` has `2 r` and `2 r + 1`; under a causal mask it
/// keeps the first, and gets the second of the rank that mirrors it.
#[derive(Clone, Copy)]
pub struct Order {
    /// How many ranks there are.
    pub ranks: u32,
    /// This one.
    pub rank: u32,
}

impl Order {
    /// The rank that mirrors this one.
    pub const fn mirror(self) -> u32 {
        self.ranks - 1 - self.rank
    }

    /// Whose keys and values this rank holds after so many steps.
    pub const fn owner(self, step: u32) -> Self {
        Self { rank: (self.rank + self.ranks - step % self.ranks) % self.ranks, ..self }
    }

    /// Which of its two pieces is the early one: the kept one or the received one.
    pub const fn early(self) -> usize {
        (self.rank > self.mirror()) as usize
    }

    /// Which of its two pieces is the late one.
    pub const fn late(self) -> usize {
        1 - self.early()
    }

    /// The place of its early piece in the sequence; that of its late one is as far from the end.
    pub const fn place(self) -> u32 {
        let (rank, mirror) = (self.rank, self.mirror());
        if rank > mirror { 2 * mirror + 1 } else { 2 * rank }
    }

    /// Whether this rank's early piece sees the early piece of `owner`; if not, its late piece sees the late piece of `owner`.
    pub const fn sees_early(self, owner: Self) -> bool {
        owner.place() < self.place()
    }

    /// The pieces, of this rank's queries and of the keys of `owner`, that are computed beside its late piece and the early one of `owner`.
    pub const fn other_pair(self, owner: Self) -> (usize, usize) {
        if self.sees_early(owner) { (self.early(), owner.early()) } else { (self.late(), owner.late()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pieces that a rank holds, the kept one first.
    const fn held(order: Order) -> [u32; 2] {
        [2 * order.rank, 2 * order.mirror() + 1]
    }

    /// The same, the early one first.
    const fn pieces(order: Order) -> [u32; 2] {
        [held(order)[order.early()], held(order)[order.late()]]
    }

    #[test]
    fn all_pairs_of_pieces_that_a_causal_mask_leaves_are_computed_once_and_evenly() {
        for ranks in 1..=9 {
            let mut seen = std::collections::BTreeMap::new();
            for rank in 0..ranks {
                let mine = Order { ranks, rank };
                let [early, late] = pieces(mine);
                assert_eq!([early, late], [mine.place(), 2 * ranks - 1 - mine.place()]);
                let mut add = |query: u32, key: u32| *seen.entry((query, key)).or_insert(0) += 1;
                for (query, key) in [(early, early), (late, late), (late, early)] {
                    add(query, key);
                }
                for step in 1..ranks {
                    let owner = mine.owner(step);
                    add(late, pieces(owner)[0]);
                    let (query, key) = mine.other_pair(owner);
                    add(held(mine)[query], held(owner)[key]);
                }
            }
            let all: Vec<_> = (0..2 * ranks).flat_map(|q| (0..=q).map(move |k| ((q, k), 1))).collect();
            assert!(seen.into_iter().eq(all), "{ranks} ranks");
        }
    }
}
