//! Depth costs little: layers that are alike are solved once.

#[path = "../benches/ladder/mod.rs"]
mod ladder;

use ladder::{Shape, ladder};
use unisono_solve::{Options, Solution, Solver, Stop, VariableId, evaluate, solve};

fn solved(layers: usize) -> Solution {
    let problem = ladder(Shape::llama(layers));
    let solution = solve(&problem, &Options::default()).expect("a solution");
    assert_eq!(solution.stop, Stop::Optimal);
    assert_eq!(solution.cost, evaluate(&problem, &solution.choices));
    solution
}

#[test]
fn every_further_layer_costs_the_same_and_is_mostly_looked_up() {
    let [few, more, most] = [4, 6, 8].map(solved);
    let (first, second) = (more.cost.0 - few.cost.0, most.cost.0 - more.cost.0);
    // The hub of gradient norms rounds its own kernel time.
    assert!((first - second).abs() <= 1 << 9, "two layers cost {first}, then {second}");
    let computed = most.statistics.cells_computed - more.statistics.cells_computed;
    assert!(computed * 5 < more.statistics.cells_computed, "{computed} more cells were computed");
    assert!(most.statistics.cache_hits * 10 > most.statistics.eliminations * 8);
}

#[test]
fn a_second_solve_is_looked_up_and_a_runner_up_nearly_so() {
    let problem = ladder(Shape::llama(4));
    let mut solver = Solver::new(&problem, Options::default());
    let first = solver.solve().expect("a solution");
    let again = solver.solve().expect("a solution");
    assert_eq!((again.cost, again.statistics.cells_computed), (first.cost, 0));
    let middle = VariableId(problem.sizes().len() as u32 / 2);
    for state in 0..problem.sizes()[middle] {
        if let Ok(other) = solver.solve_fixed(&[(middle, state)]) {
            assert!(other.cost >= first.cost && other.stop == Stop::Optimal);
            assert!(state != first.choices[middle] || other.cost == first.cost);
            assert!(other.statistics.cache_hits * 10 > other.statistics.eliminations * 8);
        }
    }
}

#[test]
fn variables_that_cannot_go_together_are_found_in_a_whole_step() {
    let problem = ladder(Shape::llama(2));
    let mut solver = Solver::new(&problem, Options::default());
    let pair = problem.factors().iter().rev().find(|factor| {
        let (_, costs) = problem.costs(factor.table);
        factor.scope.len() == 2 && costs.iter().any(|cost| !cost.is_finite())
    });
    let pair = pair.expect("something is forbidden");
    let (shape, costs) = problem.costs(pair.table);
    let cell = costs.iter().position(|cost| !cost.is_finite()).expect("a forbidden cell");
    let states = [cell / shape[1], cell % shape[1]];
    let fixed: Vec<(VariableId, u32)> = pair.scope.iter().zip(states).map(|(&x, s)| (x, s as u32)).collect();
    let failure = solver.solve_fixed(&fixed).expect_err("the pair is forbidden");
    assert_eq!(failure, unisono_solve::Failure::Infeasible { variables: pair.scope.to_vec() });
}
