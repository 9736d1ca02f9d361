//! Attention of short sequences: all scores of a head are in the caches at once, so that each head is a few products of small matrices.
//!
//! Scores stand with a row for each key, so that what is joined over the keys of a query is joined number by number. Results have the same
//! bits however long the vectors are that these loops are compiled for.

#![allow(
    clippy::needless_range_loop,
    reason = "iterators that are not inlined are not compiled for the vectors of the caller"
)]

use std::{cell::Cell, ops::Range};

use crate::math::{self, Scalar};

/// Numbers that are computed side by side.
const LANES: usize = 16;
/// Rows of a block of a product.
const ROWS: usize = 4;
/// What [`Attention::features`] is a multiple of.
pub const FEATURES: usize = 8;
/// Rows of a matrix that become columns at once.
const TURNED: usize = 4;

/// Attention of queries to keys, for each head of each sample.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attention {
    /// How many samples.
    pub batch: usize,
    /// How many heads.
    pub heads: usize,
    /// How many queries.
    pub queries: usize,
    /// How many keys, which have a value each.
    pub keys: usize,
    /// How many numbers a query, a key and a value have: a multiple of [`FEATURES`].
    pub features: usize,
    /// Whether a query sees no key at a later position than its own.
    pub causal: bool,
    /// What products of queries and keys are multiplied by.
    pub scale: f32,
}

/// A tensor `[batch, heads, rows, columns]` in memory.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// Its elements.
    pub cells: &'a [Cell<f32>],
    /// The strides of its dimensions, in elements.
    pub strides: [usize; 4],
}

/// What attention is computed of. Numbers of a query, a key and a value lie side by side.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// `[batch, heads, queries, features]`
    pub queries: Heads<'a>,
    /// `[batch, heads, keys, features]`
    pub keys: Heads<'a>,
    /// `[batch, heads, keys, features]`
    pub values: Heads<'a>,
    /// `[batch, heads, queries, keys]`, added to scores.
    pub mask: Option<Heads<'a>>,
}

/// What attention gives.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    /// `[batch, heads, queries, features]`, numbers of a query side by side.
    pub result: Heads<'a>,
    /// `[batch, heads, queries, 1]`: the logarithm of the sum of the exponentials of a query's scores.
    pub logs: Heads<'a>,
}

/// What backward is given.
#[derive(Clone, Copy, Debug)]
pub struct Backward<'a> {
    /// What forward was given.
    pub given: Given<'a>,
    /// `[batch, heads, queries, 1]`: the logarithms that it has made.
    pub logs: Heads<'a>,
    /// `[batch, heads, queries, features]`: the gradient of the result, numbers of a query side by side.
    pub gradient: Heads<'a>,
}

/// Computes the result and its logarithms. A query that the mask hides all keys from has 0 for both, as in PyTorch.
#[inline(always)]
pub fn forward(what: &Attention, given: &Given<'_>, made: &Made<'_>) {
    let Attention { queries, keys, features, .. } = *what;
    let mut query = Matrix::new(features, queries);
    let mut shares = Matrix::new(keys, queries);
    let (mut factors, mut logs) = (Matrix::new(1, queries), Matrix::new(1, queries));
    for head in what.all() {
        let (key, value) = (given.keys.of(head), given.values.of(head));
        query.load_columns(given.queries.of(head), queries, what.scale);
        for start in (0..queries).step_by(LANES) {
            what.scores(head, given, &query, key, &mut shares, start);
            let seen = what.seen(start + LANES);
            let most = most(&shares, start, seen);
            let sums = exponentials(&mut shares, start, seen, &most);
            let (factors, logs) = (factors.block_mut(0, start), logs.block_mut(0, start));
            for lane in 0..LANES {
                let sum = if sums[lane] == 0.0 { 1.0 } else { sums[lane] };
                factors[lane] = 1.0 / sum;
                logs[lane] = most[lane] + math::log(&mut Scalar, sum);
            }
        }
        product_of_columns(what, &shares, value, made.result.of(head), &factors.numbers);
        let to = made.logs.of(head);
        for (at, log) in logs.numbers[..queries].iter().enumerate() {
            to.cells[at * to.row].set(*log);
        }
    }
}

/// Computes the gradients of queries, keys and values, in this order; numbers of a query, key or value lie side by side.
#[inline(always)]
pub fn backward(what: &Attention, of: &Backward<'_>, gradients: [Heads<'_>; 3]) {
    let Attention { queries, keys, features, scale, .. } = *what;
    let Backward { given, logs, gradient } = of;
    let (mut query, mut slope) = (Matrix::new(features, queries), Matrix::new(features, queries));
    let (mut shares, mut slopes) = (Matrix::new(keys, queries), Matrix::new(keys, queries));
    let (mut log, mut factors) = (Matrix::new(1, queries), Matrix::new(1, queries));
    factors.numbers.fill(scale);
    for head in what.all() {
        let (key, value) = (given.keys.of(head), given.values.of(head));
        query.load_columns(given.queries.of(head), queries, scale);
        slope.load_columns(gradient.of(head), queries, 1.0);
        let from = logs.of(head);
        for (at, log) in log.numbers[..queries].iter_mut().enumerate() {
            *log = from.cells[at * from.row].get();
        }
        for start in (0..queries).step_by(LANES) {
            what.scores(head, given, &query, key, &mut shares, start);
            let seen = what.seen(start + LANES);
            exponentials(&mut shares, start, seen, log.block(0, start));
            product_of_rows(value, &slope, &mut slopes, start, seen);
            softmax_backward(&mut slopes, &shares, start, seen);
        }
        let [of_query, of_key, of_value] = &gradients;
        product_of_columns(what, &slopes, key, of_query.of(head), &factors.numbers);
        product_of_lines(what, &slopes, given.queries.of(head), of_key.of(head), scale);
        product_of_lines(what, &shares, gradient.of(head), of_value.of(head), 1.0);
    }
}

impl Attention {
    /// All heads of all samples.
    fn all(&self) -> impl Iterator<Item = (usize, usize)> {
        let heads = self.heads;
        (0..self.batch).flat_map(move |sample| (0..heads).map(move |head| (sample, head)))
    }

    /// How many keys the first `queries` queries see.
    #[inline(always)]
    fn seen(&self, queries: usize) -> usize {
        if self.causal { queries.min(self.keys) } else { self.keys }
    }

    /// The scores of a block of queries, for the keys that they see.
    #[inline(always)]
    fn scores(
        &self,
        head: (usize, usize),
        given: &Given<'_>,
        query: &Matrix,
        key: Strided<'_>,
        scores: &mut Matrix,
        start: usize,
    ) {
        let seen = self.seen(start + LANES);
        product_of_rows(key, query, scores, start, seen);
        if let Some(mask) = given.mask {
            let mask = mask.of(head);
            for at in 0..seen {
                let queries = start..(start + LANES).min(self.queries);
                for (query, score) in queries.zip(scores.block_mut(at, start)) {
                    *score += mask.cells[query * mask.row + at * mask.column].get();
                }
            }
        }
        if self.causal {
            for at in start..seen {
                let (hidden, scores) = (at - start, scores.block_mut(at, start));
                for lane in 0..LANES {
                    scores[lane] = if lane < hidden { f32::NEG_INFINITY } else { scores[lane] };
                }
            }
        }
    }
}

/// The matrix of one head in memory.
#[derive(Clone, Copy)]
struct Strided<'a> {
    cells: &'a [Cell<f32>],
    row: usize,
    column: usize,
}

impl<'a> Heads<'a> {
    #[inline(always)]
    fn of(&self, (sample, head): (usize, usize)) -> Strided<'a> {
        let [by_sample, by_head, row, column] = self.strides;
        Strided { cells: &self.cells[sample * by_sample + head * by_head..], row, column }
    }
}

/// Rows of numbers, with unspecified numbers behind them to whole blocks.
struct Matrix {
    numbers: Vec<f32>,
    width: usize,
}

impl Matrix {
    fn new(rows: usize, columns: usize) -> Self {
        let width = columns.next_multiple_of(LANES);
        Self { numbers: vec![0.0; rows * width], width }
    }

    #[inline(always)]
    fn block(&self, row: usize, column: usize) -> &[f32; LANES] {
        self.numbers[row * self.width + column..].first_chunk().expect("a row has whole blocks")
    }

    #[inline(always)]
    fn block_mut(&mut self, row: usize, column: usize) -> &mut [f32; LANES] {
        self.numbers[row * self.width + column..].first_chunk_mut().expect("a row has whole blocks")
    }

    /// Takes each of some rows of a matrix as a column, times a factor.
    #[inline(always)]
    fn load_columns(&mut self, from: Strided<'_>, count: usize, factor: f32) {
        let mut start = 0;
        while start < count {
            if start + TURNED <= count {
                self.load_block::<TURNED>(from, start, factor);
                start += TURNED;
            } else {
                self.load_block::<1>(from, start, factor);
                start += 1;
            }
        }
    }

    #[inline(always)]
    fn load_block<const N: usize>(&mut self, from: Strided<'_>, start: usize, factor: f32) {
        let rows = self.numbers.len() / self.width;
        let lines = lines::<N>(from, start, rows);
        for row in 0..rows {
            let to = &mut self.numbers[row * self.width + start..][..N];
            for index in 0..N {
                to[index] = lines[index][row].get() * factor;
            }
        }
    }
}

/// The first columns of some rows.
#[inline(always)]
fn lines<const N: usize>(of: Strided<'_>, row: usize, columns: usize) -> [&[Cell<f32>]; N] {
    let mut lines = [&of.cells[..0]; N];
    for index in 0..N {
        lines[index] = &of.cells[(row + index) * of.row..][..columns];
    }
    lines
}

/// Computes a block of columns of `to = a b` for the first rows.
#[inline(always)]
fn product_of_rows(a: Strided<'_>, b: &Matrix, to: &mut Matrix, start: usize, rows: usize) {
    let mut row = 0;
    while row + ROWS <= rows {
        some_rows::<ROWS>(a, b, to, start, row);
        row += ROWS;
    }
    while row < rows {
        some_rows::<1>(a, b, to, start, row);
        row += 1;
    }
}

#[inline(always)]
fn some_rows<const N: usize>(a: Strided<'_>, b: &Matrix, to: &mut Matrix, start: usize, row: usize) {
    let inner = b.numbers.len() / b.width;
    let lines = lines::<N>(a, row, inner);
    let mut sums = [[0.0_f32; LANES]; N];
    for at in 0..inner {
        let numbers = b.block(at, start);
        for index in 0..N {
            let factor = lines[index][at].get();
            for lane in 0..LANES {
                sums[index][lane] = factor.mul_add(numbers[lane], sums[index][lane]);
            }
        }
    }
    for index in 0..N {
        *to.block_mut(row + index, start) = sums[index];
    }
}

/// Computes `to`, which has a row for each query, as the product of the columns of `a`, where it has rows for the keys that a query sees, and
/// `b`; each row times a factor.
#[inline(always)]
fn product_of_columns(what: &Attention, a: &Matrix, b: Strided<'_>, to: Strided<'_>, factors: &[f32]) {
    let mut row = 0;
    while row + ROWS <= what.queries {
        by_columns::<ROWS>(what, a, b, to, row, factors);
        row += ROWS;
    }
    while row < what.queries {
        by_columns::<1>(what, a, b, to, row, factors);
        row += 1;
    }
}

#[inline(always)]
fn by_columns<const N: usize>(
    what: &Attention,
    a: &Matrix,
    b: Strided<'_>,
    to: Strided<'_>,
    row: usize,
    factors: &[f32],
) {
    let factors: &[f32; N] = factors[row..].first_chunk().expect("a row has whole blocks");
    let seen = what.seen(row + N);
    let mut column = 0;
    while column + LANES <= what.features {
        store(&block_by_columns::<N, LANES>(a, b, seen, row, column), to, row, column, factors);
        column += LANES;
    }
    if column < what.features {
        store(&block_by_columns::<N, FEATURES>(a, b, seen, row, column), to, row, column, factors);
    }
}

#[inline(always)]
fn block_by_columns<const N: usize, const W: usize>(
    a: &Matrix,
    b: Strided<'_>,
    inner: usize,
    row: usize,
    column: usize,
) -> [[f32; W]; N] {
    let mut sums = [[0.0; W]; N];
    for at in 0..inner {
        let factors: &[f32; N] =
            a.numbers[at * a.width + row..].first_chunk().expect("a row has whole blocks");
        multiply(&mut sums, *factors, b, at, column);
    }
    sums
}

/// Computes `to`, which has a row for each key, as the product of the rows of `a`, where they have numbers for the queries that see a key,
/// and `b`, times a factor.
#[inline(always)]
fn product_of_lines(what: &Attention, a: &Matrix, b: Strided<'_>, to: Strided<'_>, factor: f32) {
    let mut row = 0;
    while row + ROWS <= what.keys {
        by_lines::<ROWS>(what, a, b, to, row, factor);
        row += ROWS;
    }
    while row < what.keys {
        by_lines::<1>(what, a, b, to, row, factor);
        row += 1;
    }
}

#[inline(always)]
fn by_lines<const N: usize>(
    what: &Attention,
    a: &Matrix,
    b: Strided<'_>,
    to: Strided<'_>,
    row: usize,
    factor: f32,
) {
    let first = if what.causal { row.min(what.queries) } else { 0 };
    let inner = first..what.queries;
    let mut column = 0;
    while column + LANES <= what.features {
        let sums = block_by_lines::<N, LANES>(a, b, inner.clone(), row, column);
        store(&sums, to, row, column, &[factor; N]);
        column += LANES;
    }
    if column < what.features {
        let sums = block_by_lines::<N, FEATURES>(a, b, inner, row, column);
        store(&sums, to, row, column, &[factor; N]);
    }
}

#[inline(always)]
fn block_by_lines<const N: usize, const W: usize>(
    a: &Matrix,
    b: Strided<'_>,
    inner: Range<usize>,
    row: usize,
    column: usize,
) -> [[f32; W]; N] {
    let count = inner.len();
    let mut lines = [&a.numbers[..0]; N];
    for index in 0..N {
        lines[index] = &a.numbers[(row + index) * a.width + inner.start..][..count];
    }
    let mut sums = [[0.0; W]; N];
    for at in 0..count {
        let mut factors = [0.0; N];
        for index in 0..N {
            factors[index] = lines[index][at];
        }
        multiply(&mut sums, factors, b, inner.start + at, column);
    }
    sums
}

/// Adds the products of some factors and numbers of a row.
#[inline(always)]
fn multiply<const N: usize, const W: usize>(
    sums: &mut [[f32; W]; N],
    factors: [f32; N],
    b: Strided<'_>,
    at: usize,
    column: usize,
) {
    let cells: &[Cell<f32>; W] = b.cells[at * b.row + column..].first_chunk().expect("a row has the block");
    let mut numbers = [0.0; W];
    for lane in 0..W {
        numbers[lane] = cells[lane].get();
    }
    for row in 0..N {
        for lane in 0..W {
            sums[row][lane] = factors[row].mul_add(numbers[lane], sums[row][lane]);
        }
    }
}

#[inline(always)]
fn store<const N: usize, const W: usize>(
    sums: &[[f32; W]; N],
    to: Strided<'_>,
    row: usize,
    column: usize,
    factors: &[f32; N],
) {
    for index in 0..N {
        let start = (row + index) * to.row + column;
        let to: &[Cell<f32>; W] = to.cells[start..].first_chunk().expect("a row has the block");
        for lane in 0..W {
            to[lane].set(sums[index][lane] * factors[index]);
        }
    }
}

/// The greatest score of each query of a block; 0 where all are hidden.
#[inline(always)]
fn most(scores: &Matrix, start: usize, seen: usize) -> [f32; LANES] {
    let mut most = [f32::NEG_INFINITY; LANES];
    for at in 0..seen {
        let scores = scores.block(at, start);
        for lane in 0..LANES {
            most[lane] = if scores[lane] > most[lane] { scores[lane] } else { most[lane] };
        }
    }
    for lane in 0..LANES {
        most[lane] = if most[lane] == f32::NEG_INFINITY { 0.0 } else { most[lane] };
    }
    most
}

/// Makes scores the exponentials of what they are more than a number for each query, and gives their sums.
#[inline(always)]
fn exponentials(scores: &mut Matrix, start: usize, seen: usize, than: &[f32; LANES]) -> [f32; LANES] {
    let mut sums = [0.0_f32; LANES];
    for at in 0..seen {
        let scores = scores.block_mut(at, start);
        for lane in 0..LANES {
            scores[lane] = math::exp(&mut Scalar, scores[lane] - than[lane]);
            sums[lane] += scores[lane];
        }
    }
    sums
}

/// Makes gradients of shares those of scores.
#[inline(always)]
fn softmax_backward(slopes: &mut Matrix, shares: &Matrix, start: usize, seen: usize) {
    let mut means = [0.0_f32; LANES];
    for at in 0..seen {
        let (slopes, shares) = (slopes.block(at, start), shares.block(at, start));
        for lane in 0..LANES {
            means[lane] = slopes[lane].mul_add(shares[lane], means[lane]);
        }
    }
    for at in 0..seen {
        let (slopes, shares) = (slopes.block_mut(at, start), shares.block(at, start));
        for lane in 0..LANES {
            slopes[lane] = (slopes[lane] - means[lane]) * shares[lane];
        }
    }
}
