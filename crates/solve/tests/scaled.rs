//! Scaled problems cost what they should, and a solver keeps what it learnt for other problems.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../benches/ladder/mod.rs"]
mod ladder;
mod random;

use ladder::{Shape, ladder};
use random::{all_choices, least, problem};
use unisono_solve::{
    Cells, Choices, ClassId, Cost, Failure, Options, Problem, Solver, evaluate, solve, weigh,
};

/// Percentages for the classes of random problems.
fn percent(class: ClassId) -> u32 {
    [100, 10, 400][usize::from(class.0)]
}

#[test]
fn a_scaled_problem_costs_what_its_tables_cost_at_the_percentages() {
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        let scaled = problem.scaled(percent);
        for choices in all_choices(&problem) {
            let (plain, forbidden) = (evaluate(&problem, &choices), evaluate(&scaled, &choices));
            assert_eq!(plain.is_finite(), forbidden.is_finite());
            assert_eq!(weigh(&problem, &choices), weigh(&scaled, &choices));
        }
        assert_eq!(evaluated(&problem.scaled(|_| 100)), evaluated(&problem));
        Ok(())
    });
}

fn evaluated(problem: &Problem) -> Vec<Cost> {
    all_choices(problem).iter().map(|choices| evaluate(problem, choices)).collect()
}

#[test]
fn only_the_tables_of_a_class_are_scaled() {
    let mut problem = Problem::new();
    let costs = [Cost::new(20, 3), Cost::new(-10, 0), Cost::INFINITE];
    let class = |class| Cells { costs: &costs, class: ClassId(class), ..Cells::default() };
    problem.variable_of(class(0));
    problem.variable_of(class(1));
    problem.variable_of(class(2));
    let scaled = problem.scaled(percent);
    let cost = |states: [u32; 3]| evaluate(&scaled, &Choices::from_iter(states));
    assert_eq!(cost([0, 0, 0]), Cost::new(20 + 2 + 80, 9));
    assert_eq!(cost([1, 1, 1]), Cost::new(-10 - 1 - 40, 0));
    assert_eq!(cost([0, 2, 0]), Cost::INFINITE);
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
    base::testing::cases(2000, |u| {
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
    });
}
