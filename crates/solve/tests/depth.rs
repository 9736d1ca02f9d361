//! Depth costs little: layers that are alike are solved once.

#[path = "../benches/ladder/mod.rs"]
mod ladder;

use ladder::{Shape, ladder};
use unisono_solve::{Cost, Options, Problem, Solution, Solver, Stop, VariableId, evaluate, solve};

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

/// Layers in a row, each tied to the one before and to a variable that all share; with what is least by trying each state of the latter.
fn chain_with_hub(layers: usize) -> (Problem, Cost) {
    const STATES: usize = 3;
    let cost = |i: usize, j: usize| Cost::new([[5, 9, 1], [2, 4, 8], [7, 3, 6]][i][j], 0);
    // The third state of the hub allows the third state of no layer.
    let hub_cost = |state: usize, hub: usize| match (state, hub) {
        (2, 2) => Cost::INFINITE,
        (state, hub) => Cost::new([4, 0, 1][hub] + i64::from(state == hub), 0),
    };
    let table = |cost: &dyn Fn(usize, usize) -> Cost| -> Vec<Cost> {
        (0..STATES * STATES).map(|cell| cost(cell / STATES, cell % STATES)).collect()
    };
    let mut problem = Problem::new();
    let hub = problem.variable(&[Cost::ZERO, Cost::new(70, 0), Cost::new(1, 0)]);
    let (along, to_hub) =
        (problem.table(STATES, STATES, &table(&cost)), problem.table(STATES, STATES, &table(&hub_cost)));
    let chain: Vec<VariableId> = (0..layers).map(|_| problem.variable(&[Cost::ZERO; STATES])).collect();
    for (k, layer) in chain.iter().enumerate() {
        problem.pair(*layer, hub, to_hub);
        if k > 0 {
            problem.pair(chain[k - 1], *layer, along);
        }
    }
    let least = |state: usize| {
        let mut sums: Vec<Cost> = (0..STATES).map(|own| hub_cost(own, state)).collect();
        for _ in 1..layers {
            let before = |own: usize| (0..STATES).map(|other| sums[other] + cost(other, own)).min();
            sums =
                (0..STATES).map(|own| before(own).unwrap_or(Cost::INFINITE) + hub_cost(own, state)).collect();
        }
        sums.into_iter().min().unwrap_or(Cost::INFINITE)
    };
    let best = least(0).min(least(1) + Cost::new(70, 0)).min(least(2) + Cost::new(1, 0));
    (problem, best)
}

#[test]
fn what_a_shared_variable_costs_more_with_every_layer_is_not_computed_again() {
    let solved = [8, 15, 16, 40, 80].map(|layers| {
        let (problem, least) = chain_with_hub(layers);
        let solution = solve(&problem, &Options::default()).expect("a solution");
        assert_eq!((solution.cost, solution.stop), (least, Stop::Optimal), "{layers} layers");
        assert_eq!(evaluate(&problem, &solution.choices), least);
        solution.statistics.cells_computed
    });
    let [.., some, twice] = solved;
    assert_eq!(some, twice, "cells computed of 40 layers, then of 80");
}
