//! On small random problems the solver finds what trying everything finds.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use arbtest::{arbitrary::Unstructured, arbtest};
use unisono_solve::{Choices, Cost, Failure, Options, Problem, VariableId, evaluate, solve};

type Draw<T> = arbtest::arbitrary::Result<T>;

fn costs(u: &mut Unstructured<'_>, count: usize) -> Draw<Vec<Cost>> {
    let range = if u.ratio(1, 2)? { 3 } else { 1000 };
    let cost = |u: &mut Unstructured<'_>| {
        Ok(if u.ratio(1, 5)? { Cost::INFINITE } else { Cost::new(u.int_in_range(-range..=range)?, 0) })
    };
    (0..count).map(|_| cost(u)).collect()
}

/// Up to six variables of up to four states, with pairs and triples in any order of variables.
fn problem(u: &mut Unstructured<'_>) -> Draw<Problem> {
    let mut problem = Problem::new();
    let count = u.int_in_range(1..=6)?;
    for _ in 0..count {
        let size = u.int_in_range(1..=4)?;
        let costs = costs(u, size)?;
        problem.variable(&costs);
    }
    for _ in 0..u.int_in_range(0..=9)? {
        let mut scope: Vec<u32> = (0..count).collect();
        for i in (1..scope.len()).rev() {
            scope.swap(i, u.int_in_range(0..=i)?);
        }
        scope.truncate(u.int_in_range(1..=3)?);
        let scope: Vec<VariableId> = scope.into_iter().map(VariableId).collect();
        let shape: Vec<usize> = scope.iter().map(|&x| problem.sizes()[x] as usize).collect();
        let costs = costs(u, shape.iter().product())?;
        let table = problem.weighted_table(&shape, &costs, &[]);
        problem.factor(&scope, table);
    }
    Ok(problem)
}

/// All choices, in lexicographic order.
fn all_choices(problem: &Problem) -> Vec<Choices> {
    let mut all = vec![vec![]];
    for &size in problem.sizes().values() {
        let extend = |prefix: Vec<u32>| (0..size).map(move |state| [&prefix[..], &[state]].concat());
        all = all.into_iter().flat_map(extend).collect();
    }
    all.into_iter().map(Choices::from_iter).collect()
}

fn least(problem: &Problem) -> Cost {
    all_choices(problem).iter().map(|choices| evaluate(problem, choices)).min().unwrap()
}

#[test]
fn the_solver_finds_the_least_cost() {
    arbtest(|u| {
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
    })
    .budget_ms(4000);
}
