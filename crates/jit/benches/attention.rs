//! Attention of short sequences, forward and backward: microseconds of CPU of a call, the least of many, on each instruction set.
//!
//! `cargo bench -p unisono-jit --bench attention`
#![allow(unsafe_code, reason = "the clock of this thread's CPU time")]
#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::cell::Cell;

use loops::attention::{Attention, Backward, Given, Heads, Made};
use unisono_jit::{Tier, attention, attention_backward};

const SHAPES: [(usize, usize, usize, usize, bool); 6] = [
    (1, 4, 8, 16, true),
    (2, 4, 16, 32, false),
    (8, 4, 32, 16, true),
    (8, 4, 32, 16, false),
    (2, 8, 64, 64, true),
    (2, 8, 64, 64, false),
];

/// CPU time of this thread, in nanoseconds.
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes the time where it is told to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The least microseconds of a call.
fn least(mut call: impl FnMut()) -> f64 {
    let timed = |_| {
        let start = now();
        call();
        now() - start
    };
    (0..300).map(timed).min().unwrap_or(0) as f64 / 1e3
}

fn numbers(count: usize, seed: usize) -> Vec<Cell<f32>> {
    (0..count).map(|at| Cell::new(((at * 37 + seed * 11) % 29) as f32 / 7.0 - 2.0)).collect()
}

fn main() {
    println!("| batch, heads, queries and keys, features | tier | forward | backward |\n|---|---|---|---|");
    for (batch, heads, rows, features, causal) in SHAPES {
        let scale = 1.0 / (features as f32).sqrt();
        let what = Attention { batch, heads, queries: rows, keys: rows, features, causal, scale };
        let size = batch * heads * rows * features;
        let tensors: Vec<_> = (0..8).map(|seed| numbers(size, seed)).collect();
        // As a projection to queries, keys and values lays them: heads of a position side by side.
        let of = |at: usize| {
            let strides = [heads * rows * features, features, heads * features, 1];
            Heads { cells: &tensors[at], strides }
        };
        let logs = numbers(batch * heads * rows, 9);
        let logs = Heads { cells: &logs, strides: [heads * rows, rows, 1, 1] };
        let given = Given { queries: of(0), keys: of(1), values: of(2), mask: None };
        for tier in Tier::all() {
            let forward = least(|| attention(tier, &what, &given, &Made { result: of(3), logs }));
            let backward = Backward { given, logs, gradient: of(4) };
            let backward = least(|| attention_backward(tier, &what, &backward, [of(5), of(6), of(7)]));
            let causal = if causal { ", causal" } else { "" };
            println!(
                "| {batch}, {heads}, {rows}, {features}{causal} | {tier:?} | {forward:.1} | {backward:.1} |"
            );
        }
    }
}
