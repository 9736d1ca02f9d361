//! How long it takes to place decoders of growing depth, and what the solver did: `cargo bench -p unisono-solve`.

#![allow(clippy::print_stdout, reason = "a measurement prints what it measured")]

mod ladder;

use std::time::Instant;

use ladder::{Shape, ladder};
use unisono_solve::{Options, Solution, solve};

const RUNS: usize = 9;

fn main() {
    println!(
        "{:>6} {:>9} {:>8} {:>10} {:>9} {:>9} {:>10} {:>10} {:>5} {:>6}",
        "layers",
        "variables",
        "factors",
        "least ms",
        "us/layer",
        "ms/layer",
        "cells",
        "computed",
        "width",
        "hits"
    );
    let mut last: Option<(usize, i64)> = None;
    for layers in [2, 4, 8, 16, 32, 80] {
        let problem = ladder(Shape::llama(layers));
        let run = || {
            let start = Instant::now();
            let solution = solve(&problem, &Options::default()).expect("a solution");
            (start.elapsed(), solution)
        };
        let runs: Vec<_> = (0..RUNS).map(|_| run()).collect();
        let (time, solution) = runs.into_iter().min_by_key(|(time, _)| *time).expect("a run");
        let Solution { cost, statistics, .. } = solution;
        let per_layer =
            last.map_or(0, |(before, earlier)| (cost.primary() - earlier) / (layers - before) as i64);
        println!(
            "{layers:>6} {:>9} {:>8} {:>10.2} {:>9.0} {:>9.6} {:>10} {:>10} {:>5} {:>5.1}%",
            statistics.variables,
            problem.factors().len(),
            time.as_secs_f64() * 1e3,
            time.as_secs_f64() * 1e6 / layers as f64,
            per_layer as f64 / 1e9,
            statistics.cells,
            statistics.cells_computed,
            statistics.width,
            100.0 * f64::from(statistics.cache_hits) / f64::from(statistics.eliminations.max(1)),
        );
        last = Some((layers, cost.primary()));
    }
}
