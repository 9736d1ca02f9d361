//! What it takes to place decoders of growing depth, and what the solver did: `cargo bench -p unisono-solve`.
#![allow(clippy::print_stdout, reason = "a measurement prints what it measured")]

mod ladder;

use std::{
    sync::LazyLock,
    time::{Duration, Instant},
};

use ladder::{Shape, ladder};
use unisono_solve::{Failure, Options, Problem, Solver, VariableId, solve};

const RUNS: usize = 9;

fn main() {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--print");
    if let Some(layers) = arguments.nth(1).and_then(|layers| layers.parse().ok()) {
        return print(layers);
    }
    by_depth();
    variants();
    small_tables();
}

/// For other solvers: sizes; then for each factor its variables and costs, -1 where forbidden; then our time and cost.
fn print(layers: usize) {
    let problem = ladder(Shape::llama(layers));
    let line = |numbers: &mut dyn Iterator<Item = i64>| {
        println!("{}", numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" "));
    };
    line(&mut problem.sizes().values().map(|&size| i64::from(size)));
    for factor in problem.factors() {
        line(&mut factor.scope.iter().map(|x| i64::from(x.0)));
        let costs = problem.costs(factor.table).1;
        line(&mut costs.into_iter().map(|cost| if cost.is_finite() { cost.0 } else { -1 }));
    }
    let (time, solution) = least(RUNS, || solve(&problem, &Options::default()).expect("a solution"));
    println!("solved {} {}", time.as_micros(), solution.cost.0);
}

/// The least processor time of several runs, and what they answer.
fn least<T>(runs: usize, mut run: impl FnMut() -> T) -> (Duration, T) {
    let timed = |()| {
        let start = processor_time();
        let answer = run();
        (processor_time().saturating_sub(start), answer)
    };
    std::iter::repeat_n((), runs).map(timed).min_by_key(|(time, _)| *time).expect("a run")
}

/// What this thread has spent on a processor, where the system says it; wall time elsewhere.
fn processor_time() -> Duration {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let scheduled = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = scheduled.and_then(|line| line.split(' ').next()?.parse().ok());
    nanoseconds.map_or_else(|| START.elapsed(), Duration::from_nanos)
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn by_depth() {
    println!("layers variables factors CPU ms  us/layer  cost/layer     cells  computed width  hits");
    let mut last = (0, 0);
    for layers in [2, 4, 8, 16, 32, 80] {
        let problem = ladder(Shape::llama(layers));
        let (time, solution) = least(RUNS, || solve(&problem, &Options::default()).expect("a solution"));
        let did = solution.statistics;
        println!(
            "{layers:>6} {:>9} {:>7} {:>6.1} {:>9.0} {:>11} {:>9.1e} {:>9.1e} {:>5} {:>4.1}%",
            did.variables,
            problem.factors().len(),
            milliseconds(time),
            milliseconds(time) * 1e3 / layers as f64,
            (solution.cost.0 - last.1) / (layers - last.0) as i64,
            did.cells as f64,
            did.cells_computed as f64,
            did.width,
            100.0 * f64::from(did.cache_hits) / f64::from(did.eliminations.max(1)),
        );
        last = (layers, solution.cost.0);
    }
}

/// Runners-up and budgets at 32 layers.
fn variants() {
    let problem = ladder(Shape::llama(32));
    let mut solver = Solver::new(&problem, Options::default());
    let best = solver.solve().expect("a solution");
    let (time, ()) = least(20, || fix_another(&mut solver, &problem));
    println!("\nrunner-up, 32 layers: {:.1} ms", milliseconds(time));
    let free = solver.solve_within(u64::MAX).expect("a solution").weight;
    let Err(Failure::OverBudget { least: lightest }) = solver.solve_within(0) else { return };
    for share in [90, 50, 10] {
        let limit = lightest + (free - lightest) / 100 * share;
        let budgeted = || Solver::new(&problem, Options::default()).solve_within(limit).expect("a solution");
        let (time, found) = least(3, budgeted);
        println!(
            "budget {share} % of the way from {lightest} to {free} bytes: {:.0} ms, {} solves, {} exchanges, \
             cost {:+.3} %, gap {:.4} %",
            milliseconds(time),
            found.solution.statistics.solves,
            found.exchanges,
            100.0 * (found.solution.cost.0 as f64 / best.cost.0 as f64 - 1.0),
            100.0 * (found.solution.cost.0 as f64 / found.solution.bound.0 as f64 - 1.0),
        );
    }
}

/// Solves with the next variable in another state than the first, as an explanation does.
fn fix_another(solver: &mut Solver<'_>, problem: &Problem) {
    let variable = VariableId(problem.sizes().len() as u32 / 3);
    for state in 0..problem.sizes()[variable] {
        if solver.solve_fixed(&[(variable, state)]).is_ok() {
            return;
        }
    }
}

/// What is left of exactness where tables have to be small.
fn small_tables() {
    println!();
    for layers in [2, 8] {
        let problem = ladder(Shape::llama(layers));
        let optimum = solve(&problem, &Options::default()).expect("a solution").cost.0 as f64;
        for bits in [18, 14, 10, 8] {
            let options = Options { table_limit: 1 << bits, ..Options::default() };
            match least(1, || solve(&problem, &options)) {
                (time, Ok(found)) => println!(
                    "{layers} layers, tables of 2^{bits}: {:.0} ms, cost {:+.4} %, bound {:+.4} %",
                    milliseconds(time),
                    100.0 * (found.cost.0 as f64 / optimum - 1.0),
                    100.0 * (found.bound.0 as f64 / optimum - 1.0),
                ),
                (time, Err(failure)) => {
                    println!("{layers} layers, 2^{bits}: {:.0} ms, {failure}", milliseconds(time));
                }
            }
        }
    }
}
