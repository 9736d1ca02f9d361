//! Candidates are best at their prices, and a solver keeps what it learnt for other prices and problems.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../benches/ladder/mod.rs"]
mod ladder;
mod random;

use arbtest::arbtest;
use ladder::{Shape, ladder};
use random::{all_choices, least, problem};
use unisono_solve::{
    Candidate, Cells, Choices, Cost, Failure, Options, Price, Prices, Problem, Solver, evaluate, hideable,
    solve, weigh,
};

/// What choices come to, by sums that no solver took part in.
fn comes_to(problem: &Problem, choices: &Choices, prices: Prices) -> i64 {
    let cost = evaluate(problem, choices);
    if !cost.is_finite() {
        return Cost::INFINITE.0;
    }
    let hidden = hideable(problem, choices).0 * i64::from(1000 - prices.shown) / 1000;
    cost.0 - hidden + weigh(problem, choices) as i64 * prices.weight.numerator as i64
}

#[test]
fn a_candidate_is_best_at_its_prices() {
    arbtest(|u| {
        let problem = problem(u)?;
        let weight = Price { numerator: i128::from(u.int_in_range(0..=40)?), denominator: 1 };
        let prices = Prices { weight, shown: *u.choose(&[0, 500, 1000])? };
        let best =
            all_choices(&problem).iter().map(|choices| comes_to(&problem, choices, prices)).min().unwrap();
        match Solver::new(&problem, Options::default()).solve_at(prices) {
            Ok(Candidate { choices, cost, weight, bound, .. }) => {
                assert_eq!((comes_to(&problem, &choices, prices), bound.0), (best, best));
                assert_eq!((cost, weight), (evaluate(&problem, &choices), weigh(&problem, &choices)));
            }
            Err(failure) => {
                assert!(matches!(failure, Failure::Infeasible { .. }));
                assert_eq!(best, Cost::INFINITE.0);
            }
        }
        Ok(())
    })
    .budget_ms(2000);
}

#[test]
fn candidates_differ_and_the_first_price_comes_first() {
    let mut problem = Problem::new();
    let costs = [Cost(20), Cost(10), Cost(15)];
    problem.variable_of(Cells {
        costs: &costs,
        weights: &[0, 9, 7],
        hideable: &[Cost(16), Cost(2), Cost(0)],
    });
    let weights = [0, 0, 1, 3].map(|numerator| Price { numerator, denominator: 1 });
    let mut prices = weights.map(|weight| Prices { weight, ..Prices::NONE }).to_vec();
    prices.push(Prices { shown: 100, ..Prices::NONE });
    let found = Solver::new(&problem, Options::default()).candidates(&prices).unwrap();
    let seen: Vec<_> =
        found.iter().map(|it| (it.prices, it.choices.values().next().copied(), it.bound.0)).collect();
    assert_eq!(seen, [(prices[0], Some(1), 10), (prices[3], Some(0), 20)]);
    let hidden = Solver::new(&problem, Options::default()).solve_at(prices[4]).unwrap();
    assert_eq!((hidden.cost, hidden.bound), (Cost(20), Cost(5)));
}

#[test]
fn what_is_learnt_of_one_problem_serves_another() {
    let (few, more) = (ladder(Shape::llama(4)), ladder(Shape::llama(8)));
    let mut solver = Solver::new(&few, Options::default());
    solver.solve().unwrap();
    let mut solver = solver.turn_to(&more);
    let solution = solver.solve().unwrap();
    let alone = solve(&more, &Options::default()).unwrap();
    assert_eq!((&solution.choices, solution.cost), (&alone.choices, alone.cost));
    assert!(solution.statistics.cells_computed * 10 < alone.statistics.cells_computed);
    assert_eq!(solver.turn_to(&few).solve().unwrap().statistics.cells_computed, 0);
}

#[test]
fn a_solver_that_turns_to_random_problems_finds_their_optima() {
    arbtest(|u| {
        let problems = [problem(u)?, problem(u)?, problem(u)?];
        let mut solver = Solver::new(&problems[0], Options::default());
        for problem in &problems {
            solver = solver.turn_to(problem);
            solver.set_options(Options { table_limit: *u.choose(&[8, 1 << 20])?, ..Options::default() });
            match solver.solve() {
                Ok(found) => assert!(found.bound <= least(problem) && least(problem) <= found.cost),
                Err(Failure::Infeasible { .. }) => assert_eq!(least(problem), Cost::INFINITE),
                Err(Failure::TooLarge { .. }) => {}
                Err(failure) => panic!("{failure}"),
            }
        }
        Ok(())
    })
    .budget_ms(2000);
}
