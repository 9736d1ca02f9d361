//! The choices of what to make again as a problem of the solver.

use solve::{Cells, Choices, Cost, Problem, VariableId};

use crate::{
    chosen::{Chosen, State},
    forward::{Forward, Operation},
    segments::Segments,
};

/// What an operation's results are to backward in tables.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Gone,
    Kept,
    Again,
    OnHost,
}

/// The choices as a problem of the solver.
pub struct ChoiceTables {
    /// Costs are picoseconds, weights bytes.
    pub problem: Problem,
    /// The variables with their states, by operation.
    variables: Vec<(usize, Vec<Cell>)>,
    /// What weighs most.
    pub heaviest: u64,
    /// How copies are waited for.
    on_host: State,
}

impl ChoiceTables {
    /// With weights at the moments at which backward works on these segments. `on_host` says how copies are waited for, and how many hundredths of
    /// what they take count.
    pub fn new(forward: &Forward, segments: &Segments, moments: &[usize], on_host: (State, i64)) -> Self {
        let mut problem = Problem::new();
        let mut variables = Vec::new();
        let mut states_of: Vec<Option<(VariableId, Vec<Cell>)>> = vec![None; forward.operations.len()];
        let mut heaviest = 0;
        for (number, operation) in forward.operations.iter().enumerate() {
            let states = states(operation, segments.is_read_early.contains(number));
            if states.is_empty() || forward.follows[number].is_some() {
                continue;
            }
            let segment = segments.of[number];
            let held = |state: Cell| {
                let counts = |moment: &&usize| match state {
                    Cell::Gone => false,
                    Cell::Kept => segment <= **moment,
                    Cell::Again | Cell::OnHost => segment == **moment,
                };
                operation.bytes * moments.iter().filter(counts).count() as u64
            };
            let time = |state: Cell| match state {
                Cell::Gone | Cell::Kept => 0,
                Cell::Again => operation.time,
                Cell::OnHost => 2 * operation.copy.unwrap_or(0) * on_host.1 / 100,
            };
            let costs: Vec<Cost> = states.iter().map(|state| Cost::new(time(*state), 0)).collect();
            let weights: Vec<u64> = states.iter().map(|state| held(*state)).collect();
            heaviest += weights.iter().max().copied().unwrap_or(0);
            let variable =
                problem.variable_of(Cells { costs: &costs, weights: &weights, ..Cells::default() });
            for operand in &operation.operands {
                let Some((of, known)) = &states_of[*operand] else { continue };
                let crosses = segments.of[*operand] != segment;
                let forbidden = |operand: Cell, own: Cell| {
                    own == Cell::Again && (operand == Cell::Gone || operand == Cell::Again && crosses)
                };
                let cells: Vec<Cost> = known
                    .iter()
                    .flat_map(|operand| states.iter().map(move |own| (*operand, *own)))
                    .map(|(operand, own)| if forbidden(operand, own) { Cost::INFINITE } else { Cost::ZERO })
                    .collect();
                if cells.iter().any(|cell| !cell.is_finite()) {
                    let table = problem.table(known.len(), states.len(), &cells);
                    problem.pair(*of, variable, table);
                }
            }
            states_of[number] = Some((variable, states.clone()));
            variables.push((number, states));
        }
        Self { problem, variables, heaviest, on_host: on_host.0 }
    }

    /// The operations that run again by these choices, and those whose results are on the host.
    pub fn chosen(&self, choices: &Choices) -> Chosen {
        let count = self.variables.last().map_or(0, |(number, _)| number + 1);
        let mut chosen = Chosen::of(count);
        for ((number, states), choice) in self.variables.iter().zip(choices.values()) {
            let state = match states[*choice as usize] {
                Cell::Gone | Cell::Kept => State::Kept,
                Cell::Again => State::Again,
                Cell::OnHost => self.on_host,
            };
            chosen.set(*number, state);
        }
        chosen
    }
}

/// What an operation's results can be; nothing where there is no choice, and they are kept.
fn states(operation: &Operation, is_read_early: bool) -> Vec<Cell> {
    let mut states = vec![Cell::Kept];
    if operation.is_pinned {
        return Vec::new();
    }
    if operation.backward.is_none() {
        states.push(Cell::Gone);
    }
    if operation.is_repeatable && !is_read_early {
        states.push(Cell::Again);
    }
    if operation.copy.is_some() {
        states.push(Cell::OnHost);
    }
    if states.len() == 1 { Vec::new() } else { states }
}
