//! On random problems too large to try everything, the solver agrees with an integer programming solver.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod random;

use microlp::{ComparisonOp, OptimizationDirection, Variable};
use random::Random;
use unisono_solve::{Cost, Options, Problem, Solver, VariableId, evaluate};

/// Cost and weight, unless forbidden.
type Cell = Option<(i64, u64)>;

/// A tree with extra edges: 14 to 20 variables of 2 to 5 states; a tenth of the pairs of states is forbidden.
struct Instance {
    problem: Problem,
    unary: Vec<Vec<(i64, u64)>>,
    pairs: Vec<(usize, usize, Vec<Cell>)>,
}

impl Instance {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let mut this = Self { problem: Problem::new(), unary: Vec::new(), pairs: Vec::new() };
        for _ in 0..14 + random.below(7) {
            let unary: Vec<_> =
                (0..2 + random.below(4)).map(|_| (random.below(100) as i64, random.below(50))).collect();
            let (costs, weights): (Vec<_>, Vec<_>) = unary.iter().map(|&(c, w)| (Cost::new(c, 0), w)).unzip();
            this.problem.weighted_variable(&costs, &weights);
            this.unary.push(unary);
        }
        for b in 1..this.unary.len() {
            this.join(random.below(b as u64) as usize, b, &mut random);
        }
        for _ in 0..this.unary.len() / 2 {
            let a = random.below(this.unary.len() as u64 - 1) as usize;
            let b = a + 1 + random.below((this.unary.len() - a - 1) as u64) as usize;
            this.join(a, b, &mut random);
        }
        this
    }

    fn join(&mut self, a: usize, b: usize, random: &mut Random) {
        let (rows, cols) = (self.unary[a].len(), self.unary[b].len());
        // The first states go with all others, so that there is a solution.
        let mut cell = |i: usize| {
            let free = i < cols || i.is_multiple_of(cols) || random.below(10) > 0;
            free.then(|| (random.below(100) as i64, random.below(50)))
        };
        let cells: Vec<_> = (0..rows * cols).map(&mut cell).collect();
        let cost = |cell: &Cell| cell.map_or(Cost::INFINITE, |(cost, _)| Cost::new(cost, 0));
        let costs: Vec<Cost> = cells.iter().map(cost).collect();
        let weights: Vec<u64> = cells.iter().map(|cell| cell.map_or(0, |(_, weight)| weight)).collect();
        let table = self.problem.weighted_table(&[rows, cols], &costs, &weights);
        self.problem.pair(VariableId(a as u32), VariableId(b as u32), table);
        self.pairs.push((a, b, cells));
    }

    /// The least cost within the limit, by a linear program with a binary variable for each state.
    fn by_integer_program(&self, limit: Option<u64>) -> Option<i64> {
        let mut program = microlp::Problem::new(OptimizationDirection::Minimize);
        let mut weights: Vec<(Variable, f64)> = Vec::new();
        let mut states: Vec<Vec<Variable>> = Vec::new();
        for unary in &self.unary {
            let own: Vec<Variable> =
                unary.iter().map(|&(cost, _)| program.add_binary_var(cost as f64)).collect();
            weights.extend(own.iter().zip(unary).map(|(&x, &(_, weight))| (x, weight as f64)));
            program.add_constraint(own.iter().map(|&x| (x, 1.0)), ComparisonOp::Eq, 1.0);
            states.push(own);
        }
        for (a, b, cells) in &self.pairs {
            let bound = |cell: &Option<_>| (0.0, if cell.is_some() { 1.0 } else { 0.0 });
            let cost = |cell: &Cell| cell.map_or(0.0, |(cost, _)| cost as f64);
            let edges: Vec<Variable> = cells.iter().map(|c| program.add_var(cost(c), bound(c))).collect();
            let weight = |cell: &Cell| cell.map_or(0.0, |(_, weight)| weight as f64);
            weights.extend(edges.iter().zip(cells).map(|(&x, cell)| (x, weight(cell))));
            let cols = states[*b].len();
            for (i, &x) in states[*a].iter().enumerate() {
                let row = edges[i * cols..][..cols].iter().map(|&e| (e, 1.0)).chain([(x, -1.0)]);
                program.add_constraint(row, ComparisonOp::Eq, 0.0);
            }
            for (j, &x) in states[*b].iter().enumerate() {
                let column = edges.iter().skip(j).step_by(cols).map(|&e| (e, 1.0)).chain([(x, -1.0)]);
                program.add_constraint(column, ComparisonOp::Eq, 0.0);
            }
        }
        if let Some(limit) = limit {
            program.add_constraint(weights, ComparisonOp::Le, limit as f64);
        }
        let solution = program.solve().ok()?.into_solution().ok()?;
        Some(solution.objective().round() as i64)
    }
}

#[test]
fn the_optimum_is_that_of_the_integer_program() {
    for seed in 0..24 {
        let instance = Instance::new(seed);
        let solution = Solver::new(&instance.problem, Options::default()).solve().unwrap();
        assert_eq!(solution.cost, solution.bound);
        assert_eq!(solution.cost, evaluate(&instance.problem, &solution.choices));
        assert_eq!(Some(solution.cost.primary()), instance.by_integer_program(None), "seed {seed}");
    }
}

#[test]
fn within_a_budget_the_optimum_is_between_bound_and_cost() {
    for seed in 100..108 {
        let instance = Instance::new(seed);
        let mut solver = Solver::new(&instance.problem, Options::default());
        let free = solver.solve_within(u64::MAX).unwrap().weight;
        let found = solver.solve_within(free * 3 / 4).unwrap();
        let least = Cost::new(instance.by_integer_program(Some(free * 3 / 4)).unwrap(), 0);
        assert!(found.solution.bound <= least && least <= found.solution.cost, "seed {seed}");
    }
}
