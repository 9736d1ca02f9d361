//! A small knapsack: what fits best into the rest of a group.

/// A sample that could fill up a group.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// What it takes.
    pub time: u64,
    /// What it saves elsewhere.
    pub saved: u64,
    /// Its name.
    pub sample: u32,
}

/// Up to three candidates that take at most `room` together and save most. Candidates fall in time and in what they save, and
/// each takes at most `room`.
pub fn best_three(candidates: &[Candidate], room: u64) -> [Option<u32>; 3] {
    let mut best = (0, [None; 3]);
    for (index, first) in candidates.iter().enumerate() {
        if first.saved.saturating_mul(3) <= best.0 {
            break;
        }
        if best.0 < first.saved {
            best = (first.saved, [Some(first.sample), None, None]);
        }
        let (others, room) = (&candidates[index + 1..], room - first.time);
        let mut third = others.len();
        for (index, second) in others.iter().enumerate().filter(|(_, second)| second.time <= room) {
            // The shorter the second, the longer the third may be.
            while third > 0 && others[third - 1].time <= room - second.time {
                third -= 1;
            }
            let third = others.get(third.max(index + 1));
            let saved = first.saved + second.saved + third.map_or(0, |third| third.saved);
            if best.0 < saved {
                best = (saved, [Some(first.sample), Some(second.sample), third.map(|third| third.sample)]);
            }
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_savings_are_times_it_is_as_good_as_all_triples() {
        base::testing::cases(500, |u| {
            let room = u.int_in_range(1..=60)?;
            let mut times: Vec<u64> =
                (0..u.int_in_range(0..=12)?).map(|_| u.int_in_range(1..=room)).collect::<Result<_, _>>()?;
            times.sort_unstable_by(|a, b| b.cmp(a));
            let candidate = |(time, sample): (&u64, u32)| Candidate { time: *time, saved: *time, sample };
            let candidates: Vec<Candidate> = times.iter().zip(0..).map(candidate).collect();
            let found =
                best_three(&candidates, room).into_iter().flatten().map(|sample| times[sample as usize]);
            let mut best = 0;
            for bits in (0_u32..1 << times.len()).filter(|bits| bits.count_ones() <= 3) {
                let sum = (0..times.len()).filter(|index| bits >> index & 1 == 1).map(|index| times[index]);
                best = best.max(Some(sum.sum::<u64>()).filter(|sum| *sum <= room).unwrap_or(0));
            }
            assert_eq!(found.sum::<u64>(), best, "{times:?} into {room}");
            Ok(())
        });
    }
}
