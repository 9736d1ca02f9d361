//! What no assignment can beat.

/// A lower bound on the slowest rank's sum, and which argument gives it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// In units of cost.
    pub value: u64,
    /// Which of the arguments is the strongest.
    pub limit: Limit,
}

/// What limits a balance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// All ranks work all the time.
    Mean,
    /// One giant sample takes longer than the mean.
    Giant,
    /// Of the `j·K + 1` largest samples, some rank has `j + 1`.
    Pigeonhole,
    /// Long samples need large groups of ranks, which take more rank-time.
    LargeGroups,
}

impl Limit {
    /// As the command prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mean => "mean",
            Self::Giant => "giant sample",
            Self::Pigeonhole => "few samples per rank",
            Self::LargeGroups => "long samples on large groups",
        }
    }
}

/// The largest of: the mean, the largest item, and for each `j` the sum of the `j + 1` smallest among the `j·K + 1` largest
/// items. `falling` is sorted from the largest to the smallest; `ranks` is positive.
pub fn lower_bound(falling: &[u64], ranks: usize) -> Bound {
    let total: u64 = falling.iter().sum();
    let mut best = Bound { value: total.div_ceil(ranks as u64), limit: Limit::Mean };
    let largest = falling.first().copied().unwrap_or(0);
    if largest > best.value {
        best = Bound { value: largest, limit: Limit::Giant };
    }
    let mut prefix = 0_u64;
    let sums: Vec<u64> = std::iter::once(0)
        .chain(falling.iter().map(|cost| {
            prefix += cost;
            prefix
        }))
        .collect();
    for j in (1..).take_while(|j| j * ranks < falling.len()) {
        let crowd = sums[j * ranks + 1] - sums[j * ranks - j];
        if crowd > best.value {
            best = Bound { value: crowd, limit: Limit::Pigeonhole };
        }
    }
    best
}

/// A lower bound where every rank must take `falling.len() / ranks` samples (one more on some ranks if that does not
/// divide): the rank of the largest sample takes the smallest ones besides.
pub fn equal_count_bound(falling: &[u64], ranks: usize) -> Bound {
    let plain = lower_bound(falling, ranks);
    let count = falling.len() / ranks;
    let Some(largest) = falling.first().filter(|_| count > 0) else { return plain };
    let rest: u64 = falling.iter().rev().take(count - 1).sum();
    let crowded = largest + rest;
    if crowded > plain.value { Bound { value: crowded, limit: Limit::Giant } } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_argument_binds_where_it_should() {
        assert_eq!(lower_bound(&[4, 3, 3, 2], 2), Bound { value: 6, limit: Limit::Mean });
        assert_eq!(lower_bound(&[9, 1, 1], 2), Bound { value: 9, limit: Limit::Giant });
        assert_eq!(lower_bound(&[5, 5, 5], 2), Bound { value: 10, limit: Limit::Pigeonhole });
        assert_eq!(lower_bound(&[], 2).value, 0);
    }

    #[test]
    fn equal_counts_add_the_smallest_to_the_largest() {
        assert_eq!(equal_count_bound(&[9, 3, 2, 1], 2).value, 10);
    }
}
