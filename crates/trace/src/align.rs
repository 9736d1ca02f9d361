//! Clocks of ranks, aligned by the ends of collectives.
//!
//! A collective in which everyone needs everyone ends on all ranks at nearly the same time. So a rank's clock is off by the
//! median, over all such collectives, of how far its ends are from the others'.

use serde::Serialize;

use crate::{
    collective::{Collective, Part},
    stats::{median, median_and_deviation, micros},
};

/// Fewer collectives say little of clocks.
const MANY: usize = 16;

/// The clock of a rank against the common one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Clock {
    /// Nanoseconds by which the clock is ahead at `since`.
    pub offset: i64,
    /// By how many parts per thousand million it runs fast.
    pub drift: i64,
    /// The moment, in its own clock, at which `offset` holds.
    pub since: i64,
    /// Median distance of the ends of collectives from each other after correction, in nanoseconds.
    pub residual: i64,
    /// How many collectives say so.
    pub collectives: usize,
}

impl Clock {
    /// A time of this clock in the common one.
    pub fn common(&self, time: i64) -> i64 {
        if self.drift == 0 {
            return time - self.offset;
        }
        let drifted = i128::from(time - self.since) * i128::from(self.drift) / 1_000_000_000;
        time - self.offset - drifted as i64
    }
}

/// A clock as results show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClockRow {
    /// The rank.
    pub rank: u32,
    /// Microseconds by which its clock is ahead.
    pub offset_us: f64,
    /// Parts per million by which it runs fast.
    pub drift_ppm: f64,
    /// Median distance of ends after correction, in microseconds.
    pub residual_us: f64,
    /// How many collectives say so.
    pub collectives: usize,
}

/// How `clock` is shown.
pub fn row(rank: u32, clock: &Clock) -> ClockRow {
    ClockRow {
        rank,
        offset_us: micros(clock.offset),
        drift_ppm: clock.drift as f64 / 1000.0,
        residual_us: micros(clock.residual),
        collectives: clock.collectives,
    }
}

/// Whether all ranks need all others before they can end.
fn is_symmetric(operation: &str) -> bool {
    matches!(operation, "all_reduce" | "all_gather" | "all_to_all" | "reduce_scatter" | "barrier")
        // NCCL runs all-to-all exchanges as grouped sends and receives
        || operation == "send_recv"
}

/// The clocks of `ranks` ranks. The median of clocks that drift apart bends where two of them meet: the second round takes it
/// of ends that the first has corrected.
pub fn clocks(collectives: &[Collective], ranks: usize) -> Vec<Clock> {
    let first = against(collectives, &vec![Clock::default(); ranks]);
    against(collectives, &first)
}

/// Clocks against the middle of all ends as `known` corrects them.
fn against(collectives: &[Collective], known: &[Clock]) -> Vec<Clock> {
    let mut distances: Vec<Vec<(i64, i64)>> = vec![Vec::new(); known.len()];
    for collective in
        collectives.iter().filter(|c| is_symmetric(&c.key.operation) && c.parts.len() == c.group_size)
    {
        let common = |part: &Part| known[part.frame].common(part.end);
        let middle = median(&mut collective.parts.iter().map(common).collect::<Vec<i64>>());
        for part in &collective.parts {
            distances[part.frame].push((part.end, part.end - middle));
        }
    }
    distances.iter().map(|distances| clock(distances)).collect()
}

/// The clock whose ends are at these distances (second) from the others' at these times (first).
fn clock(distances: &[(i64, i64)]) -> Clock {
    let Some(&(since, _)) = distances.first() else { return Clock::default() };
    let fit = |drift: i64| {
        let left = |&(time, distance): &(i64, i64)| {
            distance - (i128::from(time - since) * i128::from(drift) / 1_000_000_000) as i64
        };
        let mut left: Vec<i64> = distances.iter().map(left).collect();
        let (offset, residual) = median_and_deviation(&mut left);
        Clock { offset, drift, since, residual, collectives: distances.len() }
    };
    let steady = fit(0);
    // a drift counts only where it moves the clock by several times what noise over that number of collectives explains, and of few
    // collectives an offset, too: ranks that had to wait for a processor end late
    let noise = |clock: &Clock, times: i64| times * clock.residual / distances.len().isqrt() as i64;
    if distances.len() < MANY {
        if steady.offset.abs() > noise(&steady, 8) {
            return steady;
        }
        let residual = median(&mut distances.iter().map(|distance| distance.1.abs()).collect::<Vec<i64>>());
        return Clock { offset: 0, residual, ..steady };
    }
    let drifting = fit(drift(distances));
    let span = distances.last().map_or(0, |last| last.0 - since);
    let moved = (i128::from(drifting.drift) * i128::from(span) / 1_000_000_000).unsigned_abs() as i64;
    let believed = moved > noise(&drifting, 16) && drifting.residual < steady.residual;
    if believed { drifting } else { steady }
}

/// The median slope between collectives half the list apart, in parts per thousand million.
fn drift(distances: &[(i64, i64)]) -> i64 {
    let half = distances.len() / 2;
    let mut slopes: Vec<i64> = distances[half..]
        .iter()
        .zip(distances)
        .filter(|(late, early)| late.0 > early.0)
        .map(|(late, early)| {
            (i128::from(late.1 - early.1) * 1_000_000_000 / i128::from(late.0 - early.0)) as i64
        })
        .collect();
    median(&mut slopes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Key;

    /// The ends of three collectives on two ranks of a machine with six other busy processes.
    #[test]
    fn ranks_that_end_late_for_want_of_a_processor_have_no_other_clock() {
        let ends =
            [[4_187_054_000, 4_186_825_000], [4_697_280_000, 4_693_673_000], [5_206_268_000, 5_201_425_000]];
        let of = |late: i64| {
            let collectives = ends.iter().enumerate().map(|(number, ends)| {
                let part = |frame: usize, end: i64| Part {
                    frame,
                    row: 0,
                    call: None,
                    begin: end - 1000,
                    end,
                    bytes: 0,
                };
                let parts = vec![part(0, ends[0]), part(1, ends[1] + late)];
                let key = Key { group: String::new(), operation: "all_reduce".into(), number: number as i64 };
                Collective { key, parts, group_size: 2 }
            });
            let found = clocks(&collectives.collect::<Vec<_>>(), 2);
            [found[0].offset, found[1].offset]
        };
        assert_eq!(of(0), [0, 0]);
        let [ahead, behind] = of(-1_000_000_000);
        assert!((ahead - behind - 1_000_000_000).abs() < 5_000_000, "{ahead} {behind}");
    }

    #[test]
    fn offsets_and_drift_that_were_put_in_come_out() {
        base::testing::cases(1000, |u| {
            let ranks = 4;
            let offsets: Vec<i64> =
                (0..ranks).map(|_| u.int_in_range(-5_000_000..=5_000_000)).collect::<Result<_, _>>()?;
            let drifts: Vec<i64> =
                (0..ranks).map(|_| u.int_in_range(-20_000..=20_000)).collect::<Result<_, _>>()?;
            let mut collectives = Vec::new();
            for number in 0..200_i64 {
                let true_end = number * 10_000_000;
                let mut parts = Vec::new();
                for frame in 0..ranks {
                    let noise = u.int_in_range(-1500..=1500)?;
                    let end =
                        true_end + noise + offsets[frame] + (true_end / 1000) * drifts[frame] / 1_000_000;
                    parts.push(Part { frame, row: 0, call: None, begin: end - 1000, end, bytes: 0 });
                }
                let key = Key { group: String::new(), operation: "all_reduce".into(), number };
                collectives.push(Collective { key, parts, group_size: ranks });
            }
            let clocks = clocks(&collectives, ranks);
            for collective in &collectives {
                let common = |part: &Part| clocks[part.frame].common(part.end);
                let least = collective.parts.iter().map(common).min().unwrap();
                let most = collective.parts.iter().map(common).max().unwrap();
                assert!(most - least < 10_000, "{} {clocks:?}", most - least);
            }
            Ok(())
        });
    }
}
