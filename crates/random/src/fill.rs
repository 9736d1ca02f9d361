//! Filling memory with what is drawn at positions one after the other.

use std::cell::Cell;

use crate::{
    Distribution, Stream, distribution,
    philox::{GROUP, Words},
};

/// Memory that numbers go to.
#[derive(Clone, Copy, Debug)]
pub enum Out<'a> {
    /// `f32`
    F32(&'a [Cell<f32>]),
    /// `bf16`, by its bits.
    Bf16(&'a [Cell<u16>]),
    /// `i64`
    I64(&'a [Cell<i64>]),
}

impl Out<'_> {
    /// How many numbers it holds.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(cells) => cells.len(),
            Self::Bf16(cells) => cells.len(),
            Self::I64(cells) => cells.len(),
        }
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A range of it.
    #[must_use]
    pub fn range(&self, range: std::ops::Range<usize>) -> Self {
        match self {
            Self::F32(cells) => Self::F32(&cells[range]),
            Self::Bf16(cells) => Self::Bf16(&cells[range]),
            Self::I64(cells) => Self::I64(&cells[range]),
        }
    }
}

/// Fills `out` with what is drawn at the positions from `start` on.
#[inline(always)]
pub fn fill(stream: Stream, drawn: Distribution, start: u64, out: Out<'_>) {
    match drawn {
        Distribution::Bernoulli { p } => {
            let threshold = distribution::threshold(p);
            numbers(stream, start, out, |words| distribution::bernoulli(words, threshold));
        }
        Distribution::Uniform { low, high, digits } => {
            numbers(stream, start, out, |words| distribution::uniform(words, low, high, digits));
        }
        Distribution::Normal { mean, std } => {
            numbers(stream, start, out, |words| distribution::normal(words, mean, std));
        }
        Distribution::Exponential { rate } => {
            numbers(stream, start, out, |words| distribution::exponential(words, rate));
        }
        Distribution::Cauchy { median, sigma } => {
            numbers(stream, start, out, |words| distribution::cauchy(words, median, sigma));
        }
        Distribution::Geometric { p } => {
            let per_log = distribution::per_log(p);
            numbers(stream, start, out, |words| distribution::geometric(words, per_log));
        }
        Distribution::Integers { low, high } => integers(stream, start, out, low, high),
    }
}

#[inline(always)]
fn numbers(stream: Stream, start: u64, out: Out<'_>, drawn: impl Fn(&Words) -> [f32; GROUP]) {
    match out {
        Out::F32(cells) => groups(stream, start, cells, drawn, |number| number),
        Out::Bf16(cells) => groups(stream, start, cells, drawn, bf16),
        Out::I64(cells) => groups(stream, start, cells, drawn, |number| number as i64),
    }
}

#[inline(always)]
fn integers(stream: Stream, start: u64, out: Out<'_>, low: i64, high: i64) {
    let range = high.wrapping_sub(low) as u64;
    let drawn = |words: &Words| {
        let mut made = [0; GROUP];
        for i in 0..GROUP {
            // `range` is at most 2^32, so that nothing overflows.
            made[i] = low.wrapping_add((u64::from(words[i]).wrapping_mul(range) >> 32) as i64);
        }
        made
    };
    match out {
        Out::F32(cells) => groups(stream, start, cells, drawn, |number| number as f32),
        Out::Bf16(cells) => groups(stream, start, cells, drawn, |number| bf16(number as f32)),
        Out::I64(cells) => groups(stream, start, cells, drawn, |number| number),
    }
}

#[inline(always)]
fn groups<N: Copy, E>(
    stream: Stream,
    start: u64,
    cells: &[Cell<E>],
    drawn: impl Fn(&Words) -> [N; GROUP],
    element: impl Fn(N) -> E,
) {
    let (mut group, mut skipped) = (start / GROUP as u64, (start % GROUP as u64) as usize);
    let mut rest = cells;
    while !rest.is_empty() {
        let made = drawn(&stream.group(group));
        if let (0, Some((whole, behind))) = (skipped, rest.split_first_chunk::<GROUP>()) {
            for (cell, number) in whole.iter().zip(made) {
                cell.set(element(number));
            }
            rest = behind;
        } else {
            let (part, behind) = rest.split_at(rest.len().min(GROUP - skipped));
            for (cell, number) in part.iter().zip(&made[skipped..]) {
                cell.set(element(*number));
            }
            (rest, skipped) = (behind, 0);
        }
        group += 1;
    }
}

/// The nearest number of the type, ties to even.
#[inline(always)]
fn bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    let last = (bits >> 16) & 1;
    (bits.wrapping_add(0x7fff + last) >> 16) as u16
}
