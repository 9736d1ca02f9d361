//! Stretches of a sequence in which a piece comes back, one after the other.

use std::{cmp::Reverse, ops::Range};

use rustc_hash::FxHashMap;

/// Runs of fewer operations are not worth it.
const LEAST_OPERATIONS: usize = 8;

/// So many distances between equal operations are tried as the length of a layer.
const MOST_PERIODS: usize = 12;

/// A stretch of a program that repeats a piece.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Its first position.
    pub begin: usize,
    /// Operations of a piece.
    pub period: usize,
    /// How many pieces there are.
    pub pieces: usize,
    /// Which layer the first piece is of.
    pub first: i64,
    /// How many layers on the next piece is: one, or one back.
    pub step: i64,
}

impl Run {
    /// The layer of a position, and the position within it.
    pub fn layer(&self, at: usize) -> (i64, usize) {
        let from = at - self.begin;
        (self.first + self.step * (from / self.period) as i64, from % self.period)
    }

    /// The position of an operation of a layer.
    pub fn at(&self, layer: i64, within: usize) -> Option<usize> {
        let piece = usize::try_from((layer - self.first) * self.step).ok().filter(|at| *at < self.pieces)?;
        Some(self.begin + piece * self.period + within)
    }

    /// How many operations it has.
    pub const fn covered(&self) -> usize {
        self.period * self.pieces
    }

    /// Where they are.
    pub const fn positions(&self) -> Range<usize> {
        self.begin..self.begin + self.covered()
    }

    /// Its first and its last layer.
    pub const fn layers(&self) -> (i64, i64) {
        let last = self.first + self.step * (self.pieces as i64 - 1);
        if self.step > 0 { (self.first, last) } else { (last, self.first) }
    }
}

/// The stretch of a range that repeats a piece over most operations, of the shortest piece, of those that can be numbered.
pub fn longest_run(
    signatures: &[u64],
    range: Range<usize>,
    least: usize,
    numbered: impl Fn(Run) -> Option<Run>,
) -> Option<Run> {
    let (begin, signatures) = (range.start, &signatures[range]);
    let runs = periods(signatures).into_iter().flat_map(|period| runs_of(signatures, period, least));
    runs.filter(|run| run.covered() >= LEAST_OPERATIONS)
        .filter_map(|run| numbered(Run { begin: begin + run.begin, ..run }))
        .min_by_key(|run| (Reverse(run.covered()), run.period))
}

/// The commonest distances from an operation to the next equal one.
fn periods(signatures: &[u64]) -> Vec<usize> {
    let mut last: FxHashMap<u64, usize> = FxHashMap::default();
    let mut counts: FxHashMap<usize, usize> = FxHashMap::default();
    for (at, signature) in signatures.iter().enumerate() {
        if let Some(before) = last.insert(*signature, at) {
            *counts.entry(at - before).or_default() += 1;
        }
    }
    let mut periods: Vec<(usize, usize)> = counts.into_iter().collect();
    // What a distance covers.
    periods.sort_unstable_by_key(|(period, count)| (Reverse(period * count), *period));
    periods.into_iter().take(MOST_PERIODS).map(|(period, _)| period).collect()
}

/// The stretches that come back after a distance, in at least so many whole pieces.
fn runs_of(signatures: &[u64], period: usize, least: usize) -> Vec<Run> {
    let (mut found, mut length) = (Vec::new(), 0);
    let end = signatures.len().saturating_sub(period);
    for at in 0..=end {
        if at < end && signatures[at] == signatures[at + period] {
            length += 1;
            continue;
        }
        let pieces = (length + period) / period;
        if pieces >= least {
            found.push(Run { begin: at - length, period, pieces, first: 0, step: 1 });
        }
        length = 0;
    }
    found
}
