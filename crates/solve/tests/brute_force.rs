//! On small random problems the solver finds what trying everything finds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random;

use random::{all_choices, least, problem};
use unisono_solve::{
    Choices, Cost, Failure, Options, Price, Problem, Solver, VariableId, evaluate, solve, weigh,
};

#[test]
fn the_solver_finds_the_least_cost() {
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        match solve(&problem, &Options::default()) {
            Ok(solution) => {
                assert_eq!(solution.cost, least(&problem));
                assert_eq!(solution.cost, solution.bound);
                assert_eq!(solution.cost, evaluate(&problem, &solution.choices));
            }
            Err(Failure::Infeasible { .. }) => assert_eq!(least(&problem), Cost::INFINITE),
            Err(failure) => panic!("{failure}"),
        }
        Ok(())
    });
}

#[test]
fn costs_that_are_too_large_to_be_added_are_added_in_coarser_units() {
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        let large = problem.scaled(|_| 100 << 19).scaled(|_| 100 << 19);
        for dual in [false, true] {
            match solve(
                &large,
                &Options { dual, table_limit: *u.choose(&[8, 1 << 20])?, ..Options::default() },
            ) {
                Ok(solution) => {
                    let least = least(&large);
                    assert!(solution.bound <= least && least <= solution.cost);
                    assert_eq!(solution.cost, evaluate(&large, &solution.choices));
                }
                Err(Failure::Infeasible { .. }) => assert_eq!(least(&large), Cost::INFINITE),
                Err(Failure::TooLarge { .. }) => {}
                Err(failure) => panic!("{failure}"),
            }
        }
        Ok(())
    });
}

#[test]
fn runners_up_are_the_least_among_the_choices_that_have_the_state() {
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        let variable = VariableId(u.choose_index(problem.sizes().len())? as u32);
        let state = u.int_in_range(0..=problem.sizes()[variable] - 1)?;
        let mut solver = Solver::new(&problem, Options::default());
        // What was learnt before must not matter.
        let _ = solver.solve();
        let among = all_choices(&problem).into_iter().filter(|choices| choices[variable] == state);
        let least = among.map(|choices| evaluate(&problem, &choices)).min().unwrap();
        match solver.solve_fixed(&[(variable, state)]) {
            Ok(solution) => {
                assert_eq!(solution.choices[variable], state);
                assert_eq!((solution.cost, solution.bound), (least, least));
            }
            Err(failure) => {
                assert!(matches!(failure, Failure::Infeasible { .. }));
                assert_eq!(least, Cost::INFINITE);
            }
        }
        Ok(())
    });
}

#[test]
fn choices_within_a_budget_keep_it_and_the_bound_holds() {
    let (mut tight, mut all) = (0, 0);
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        let limit = u.int_in_range(0..=300)?;
        let within = all_choices(&problem).into_iter().filter(|choices| weigh(&problem, choices) <= limit);
        let least = within.map(|choices| evaluate(&problem, &choices)).min().unwrap_or(Cost::INFINITE);
        match Solver::new(&problem, Options::default()).solve_within(limit) {
            Ok(found) => {
                let cost = found.solution.cost;
                assert!(found.weight <= limit && found.weight == weigh(&problem, &found.solution.choices));
                assert!(found.solution.bound <= least && least <= cost && cost.is_finite());
                assert_eq!(cost, evaluate(&problem, &found.solution.choices));
                tight += u32::from(cost == least);
                all += 1;
            }
            Err(Failure::OverBudget { least: weight }) => {
                assert_eq!(least, Cost::INFINITE);
                assert!(weight > limit);
            }
            Err(failure) => {
                assert!(matches!(failure, Failure::Infeasible { .. }));
                assert_eq!(least, Cost::INFINITE);
            }
        }
        Ok(())
    });
    assert!(all > 50 && tight * 10 > all * 8, "{tight} of {all} are optimal");
}

#[test]
fn what_was_found_for_one_budget_changes_nothing_for_another() {
    let mut fewer = 0;
    base::testing::cases(500, |u| {
        let problem = problem(u)?;
        let limits = [u.int_in_range(0..=300)?, u.int_in_range(0..=300)?];
        let new = || Solver::new(&problem, Options::default());
        let mut first = new();
        let _ = first.solve_within(limits[0]);
        let (knowing, alone) =
            (new().knowing(first.into_known()).solve_within(limits[1]), new().solve_within(limits[1]));
        if let (Ok(knowing), Ok(alone)) = (&knowing, &alone) {
            assert_eq!(knowing.solution.choices, alone.solution.choices);
            assert_eq!(knowing.solution.bound, alone.solution.bound);
            fewer += u32::from(knowing.solution.statistics.solves < alone.solution.statistics.solves);
        }
        assert_eq!(knowing.is_ok(), alone.is_ok());
        Ok(())
    });
    assert!(fewer > 50, "{fewer}");
}

#[test]
fn what_weight_costs_is_paid_and_between_two_plans_the_budget_is_kept() {
    let mut between = 0;
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        let (cost, parts) = (i128::from(u.int_in_range(0..=400)?), i128::from(u.int_in_range(1..=4)?));
        let price = Price { numerator: cost, denominator: parts };
        let mut solver = Solver::new(&problem, Options::default());
        let (Ok(light), Ok(heavy)) = (solver.solve_priced(price), solver.solve_priced(Price::FREE)) else {
            assert_eq!(least(&problem), Cost::INFINITE);
            return Ok(());
        };
        let cost_of = |choices: &Choices| i128::from(evaluate(&problem, choices).0);
        let weight_of = |choices: &Choices| i128::from(weigh(&problem, choices));
        assert_eq!(cost_of(&heavy), i128::from(least(&problem).0));
        // Each table is rounded down.
        let value = |choices: &Choices| cost_of(choices) * parts + weight_of(choices) * cost;
        let allowed = all_choices(&problem).into_iter().filter(|one| evaluate(&problem, one).is_finite());
        let least = allowed.map(|choices| value(&choices)).min().unwrap();
        assert!(value(&light) - least <= parts * problem.factors().len() as i128);
        if weight_of(&light) < weight_of(&heavy) {
            let limit = weight_of(&light).midpoint(weight_of(&heavy)) as u64;
            let some = solver.between((&light, &heavy), limit);
            assert!(weigh(&problem, &some) <= limit && cost_of(&some) <= cost_of(&light));
            between += u32::from(some != light);
        }
        Ok(())
    });
    assert!(between > 5, "{between}");
}

/// The problem of some variables and the factors among them.
fn part(problem: &Problem, variables: &[VariableId]) -> Problem {
    let mut part = Problem::new();
    for &variable in variables {
        part.variable(&vec![Cost::ZERO; problem.sizes()[variable] as usize]);
    }
    for factor in problem.factors() {
        let place = |x: &VariableId| variables.iter().position(|y| x == y).map(|i| VariableId(i as u32));
        if let Some(scope) = factor.scope.iter().map(place).collect::<Option<Vec<_>>>() {
            let (shape, costs) = problem.costs(factor.table);
            let table = part.weighted_table(&shape, &costs, &[]);
            part.factor(&scope, table);
        }
    }
    part
}

#[test]
fn variables_at_fault_forbid_everything_and_none_can_be_left_out() {
    let mut conflicts = 0;
    base::testing::cases(2000, |u| {
        let problem = problem(u)?;
        if let Err(Failure::Infeasible { variables }) = solve(&problem, &Options::default()) {
            assert_eq!(least(&part(&problem, &variables)), Cost::INFINITE);
            for i in 0..variables.len() {
                let without = [&variables[..i], &variables[i + 1..]].concat();
                assert!(least(&part(&problem, &without)).is_finite(), "{variables:?} is not minimal");
            }
            conflicts += 1;
        }
        Ok(())
    });
    assert!(conflicts > 20, "{conflicts} conflicts are too few to tell");
}
