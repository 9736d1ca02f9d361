//! Where tables are not allowed to be large enough, choices and bound are still true, and often equal.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random;

use random::{Random, least, problem};
use unisono_solve::{Cost, Failure, Options, Problem, Solver, Stop, VariableId, evaluate, solve};

#[test]
fn small_problems_are_bracketed() {
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        let options = Options { table_limit: u.int_in_range(4..=16)?, ..Options::default() };
        match solve(&problem, &options) {
            Ok(solution) => {
                let least = least(&problem);
                assert!(solution.bound <= least && least <= solution.cost && solution.cost.is_finite());
                assert_eq!(solution.cost, evaluate(&problem, &solution.choices));
                assert_eq!(solution.stop == Stop::Optimal, solution.cost == solution.bound);
            }
            Err(Failure::Infeasible { .. }) => assert_eq!(least(&problem), Cost::INFINITE),
            Err(Failure::TooLarge { cells }) => assert!(cells > options.table_limit),
            Err(failure) => panic!("{failure}"),
        }
        Ok(())
    });
}

/// A square grid of variables with random costs: its width is its side.
fn grid(side: u32, states: u64, seed: u64) -> Problem {
    let mut random = Random(seed);
    let mut costs =
        |count: u64| (0..count).map(|_| Cost::new(random.below(1000) as i64, 0)).collect::<Vec<_>>();
    let mut problem = Problem::new();
    for _ in 0..side * side {
        problem.variable(&costs(states));
    }
    for i in 0..side * side {
        let mut join = |to: u32| {
            let table = problem.table(states as usize, states as usize, &costs(states * states));
            problem.pair(VariableId(i), VariableId(to), table);
        };
        if i % side + 1 < side {
            join(i + 1);
        }
        if i + side < side * side {
            join(i + side);
        }
    }
    problem
}

#[test]
fn grids_wider_than_the_limit_are_bracketed_closely() {
    for seed in 0..4 {
        let problem = grid(7, 3, seed);
        let optimum = solve(&problem, &Options::default()).unwrap();
        assert_eq!(optimum.stop, Stop::Optimal);
        let solution = solve(&problem, &Options { table_limit: 81, ..Options::default() }).unwrap();
        assert!(solution.bound <= optimum.cost && optimum.cost <= solution.cost);
        let gap = (solution.cost.0 - solution.bound.0) as f64 / optimum.cost.0 as f64;
        assert!(gap < 0.1, "a gap of {gap}");
    }
}

#[test]
fn choices_that_are_close_enough_are_not_improved() {
    let mut is_less = false;
    for seed in 0..8 {
        let problem = grid(7, 3, seed);
        let computed = |enough| {
            let options = Options { table_limit: 81, dual: false, enough, ..Options::default() };
            let mut solver = Solver::new(&problem, options);
            let solution = solver.solve().unwrap();
            (solution.cost, solution.bound, solver.cells_computed())
        };
        let (exact, close) = (computed(0), computed(20));
        let is_close = (close.0.0 - close.1.0) * 20 <= close.0.0;
        assert!(is_close || close == exact, "{close:?} for {exact:?}");
        assert!(close.2 <= exact.2);
        is_less |= close.2 < exact.2;
    }
    assert!(is_less, "close choices took less in none of the grids");
}

#[test]
fn a_search_that_would_compute_too_much_splits_more_and_ends_with_true_bounds() {
    for seed in 0..4 {
        let problem = grid(10, 3, seed);
        let optimum = solve(&problem, &Options::default()).unwrap();
        assert_eq!(optimum.stop, Stop::Optimal);
        let work_limit = optimum.statistics.cells_computed / 8;
        let solution = solve(&problem, &Options { work_limit, ..Options::default() }).unwrap();
        assert!(solution.bound <= optimum.cost && optimum.cost <= solution.cost);
        assert_eq!(solution.cost, evaluate(&problem, &solution.choices));
        let computed = solution.statistics.cells_computed;
        assert!(computed < optimum.statistics.cells_computed, "{computed} cells for {work_limit} at a time");
    }
}
