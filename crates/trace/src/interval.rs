//! Arithmetic of half-open intervals in integer nanoseconds.

/// Merged intervals in ascending order. Intervals that touch are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Union {
    /// Begin and end of each.
    pub pieces: Vec<(i64, i64)>,
}

impl Union {
    /// Of intervals in ascending order of their begin.
    pub fn of_sorted(intervals: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut pieces: Vec<(i64, i64)> = Vec::new();
        for (begin, end) in intervals {
            match pieces.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => pieces.push((begin, end)),
            }
        }
        Self { pieces }
    }

    /// Of intervals in any order.
    pub fn of(intervals: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut intervals: Vec<_> = intervals.into_iter().collect();
        intervals.sort_unstable();
        Self::of_sorted(intervals)
    }

    /// Their length. A damaged event of negative duration that stands alone counts negative.
    pub fn length(&self) -> i64 {
        self.pieces.iter().map(|(begin, end)| end - begin).sum()
    }

    /// From the first begin to the last end; `None` of nothing.
    pub fn span(&self) -> Option<(i64, i64)> {
        Some((self.pieces.first()?.0, self.pieces.last()?.1))
    }

    /// What both cover.
    #[must_use]
    pub fn intersect(&self, other: &Self) -> Self {
        let (mut i, mut j) = (0, 0);
        let mut pieces = Vec::new();
        while let (Some(a), Some(b)) = (self.pieces.get(i), other.pieces.get(j)) {
            let (begin, end) = (a.0.max(b.0), a.1.min(b.1));
            if begin < end {
                pieces.push((begin, end));
            }
            if a.1 <= b.1 { i += 1 } else { j += 1 }
        }
        Self { pieces }
    }

    /// What is covered here and not there.
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        let mut pieces = Vec::new();
        let mut j = 0;
        for &(mut begin, end) in &self.pieces {
            while other.pieces.get(j).is_some_and(|b| b.1 <= begin) {
                j += 1;
            }
            let mut k = j;
            while let Some(b) = other.pieces.get(k).filter(|b| b.0 < end) {
                if begin < b.0 {
                    pieces.push((begin, b.0));
                }
                begin = begin.max(b.1);
                k += 1;
            }
            if begin < end {
                pieces.push((begin, end));
            }
        }
        Self { pieces }
    }

    /// How much of `begin..end` is covered.
    pub fn covered(&self, begin: i64, end: i64) -> i64 {
        let first = self.pieces.partition_point(|piece| piece.1 <= begin);
        self.pieces[first..]
            .iter()
            .take_while(|piece| piece.0 < end)
            .map(|piece| piece.1.min(end) - piece.0.max(begin))
            .sum()
    }
}

/// For each set of unions that cover a moment at once, as a bit mask, the time that exactly these cover.
pub fn time_by_mask(unions: &[Union]) -> Vec<i64> {
    let mut edges: Vec<(i64, usize)> = Vec::new();
    for (number, union) in unions.iter().enumerate() {
        edges.extend(
            union
                .pieces
                .iter()
                .filter(|(begin, end)| begin < end)
                .flat_map(|&(begin, end)| [(begin, number), (end, number)]),
        );
    }
    edges.sort_unstable();
    let mut times = vec![0; 1 << unions.len()];
    let (mut mask, mut last) = (0_usize, 0);
    for (time, number) in edges {
        times[mask] += time - last;
        mask ^= 1 << number;
        last = time;
    }
    times[0] = 0;
    times
}

/// As [`time_by_mask`], for unions with damaged pieces that end before they begin, as HTA sums them up: each union counts 1 from
/// a begin on and 1 less from an end on, whichever comes first.
pub fn time_by_sum(unions: &[Union]) -> Vec<i64> {
    let mut edges: Vec<(i64, i64)> = Vec::new();
    for (number, union) in unions.iter().enumerate() {
        edges.extend(
            union.pieces.iter().flat_map(|&(begin, end)| [(begin, 1 << number), (end, -(1 << number))]),
        );
    }
    edges.sort_unstable();
    let mut times = vec![0; 1 << unions.len()];
    let (mut running, mut last) = (0_i64, 0);
    for (time, change) in edges {
        if running > 0 {
            times[running as usize & ((1 << unions.len()) - 1)] += time - last;
        }
        running += change;
        last = time;
    }
    times
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The moments of `0..64` that intervals cover, one by one.
    fn moments(intervals: &[(i64, i64)]) -> [bool; 64] {
        std::array::from_fn(|t| intervals.iter().any(|(begin, end)| (*begin..*end).contains(&(t as i64))))
    }

    #[test]
    fn unions_agree_with_counting_every_moment() {
        base::testing::cases(500, |u| {
            let mut set = || -> arbtest::arbitrary::Result<Vec<(i64, i64)>> {
                (0..u.int_in_range(0..=6)?)
                    .map(|_| {
                        let begin = u.int_in_range(0..=60)?;
                        Ok((begin, begin + u.int_in_range(0..=3)?))
                    })
                    .collect()
            };
            let (a, b) = (set()?, set()?);
            let (ma, mb) = (moments(&a), moments(&b));
            let count = |f: fn(bool, bool) -> bool| (0..64).filter(|&t| f(ma[t], mb[t])).count() as i64;
            let (ua, ub) = (Union::of(a), Union::of(b));
            assert_eq!(ua.length(), count(|x, _| x));
            assert_eq!(ua.intersect(&ub).length(), count(|x, y| x && y));
            assert_eq!(ua.subtract(&ub).length(), count(|x, y| x && !y));
            let covered: i64 = ub.pieces.iter().map(|(begin, end)| ua.covered(*begin, *end)).sum();
            assert_eq!(covered, count(|x, y| x && y));
            let times = time_by_mask(&[ua.clone(), ub.clone()]);
            assert_eq!(times[1..], time_by_sum(&[ua, ub])[1..]);
            assert_eq!(times[1..], [count(|x, y| x && !y), count(|x, y| !x && y), count(|x, y| x && y)]);
            Ok(())
        });
    }
}
