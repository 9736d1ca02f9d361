//! The choices of what to make again as a problem of the solver.

use fixedbitset::FixedBitSet;
use solve::{Cells, Choices, Cost, Problem, VariableId};

use crate::{
    forward::{Forward, Operation},
    segments::Segments,
};

/// What an operation's results are to backward.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Gone,
    Kept,
    Again,
}

/// The choices as a problem of the solver.
pub struct ChoiceTables {
    /// Costs are picoseconds, weights bytes.
    pub problem: Problem,
    /// The variables with their states, by operation.
    variables: Vec<(usize, Vec<State>)>,
    /// What weighs most.
    pub heaviest: u64,
}

impl ChoiceTables {
    /// With weights at the moments at which backward works on these segments.
    pub fn new(forward: &Forward, segments: &Segments, moments: &[usize]) -> Self {
        let mut problem = Problem::new();
        let mut variables = Vec::new();
        let mut states_of: Vec<Option<(VariableId, Vec<State>)>> = vec![None; forward.operations.len()];
        let mut heaviest = 0;
        for (number, operation) in forward.operations.iter().enumerate() {
            let states = states(operation, segments.is_read_early.contains(number));
            if states.is_empty() || forward.follows[number].is_some() {
                continue;
            }
            let segment = segments.of[number];
            let held = |state: State| {
                let counts = |moment: &&usize| match state {
                    State::Gone => false,
                    State::Kept => segment <= **moment,
                    State::Again => segment == **moment,
                };
                operation.bytes * moments.iter().filter(counts).count() as u64
            };
            let time = |state: State| if state == State::Again { operation.time } else { 0 };
            let costs: Vec<Cost> = states.iter().map(|state| Cost::new(time(*state), 0)).collect();
            let weights: Vec<u64> = states.iter().map(|state| held(*state)).collect();
            heaviest += weights.iter().max().copied().unwrap_or(0);
            let variable =
                problem.variable_of(Cells { costs: &costs, weights: &weights, ..Cells::default() });
            for operand in &operation.operands {
                let Some((of, known)) = &states_of[*operand] else { continue };
                let crosses = segments.of[*operand] != segment;
                let forbidden = |operand: State, own: State| {
                    own == State::Again && (operand == State::Gone || operand == State::Again && crosses)
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
        Self { problem, variables, heaviest }
    }

    /// The operations that run again by these choices.
    pub fn again(&self, choices: &Choices) -> FixedBitSet {
        let count = self.variables.last().map_or(0, |(number, _)| number + 1);
        let mut again = FixedBitSet::with_capacity(count);
        for ((number, states), choice) in self.variables.iter().zip(choices.values()) {
            again.set(*number, states[*choice as usize] == State::Again);
        }
        again
    }
}

/// What an operation's results can be; nothing where there is no choice, and they are kept.
fn states(operation: &Operation, is_read_early: bool) -> Vec<State> {
    let mut states = vec![State::Kept];
    if operation.is_pinned {
        return Vec::new();
    }
    if operation.backward.is_none() {
        states.push(State::Gone);
    }
    if operation.is_repeatable && !is_read_early {
        states.push(State::Again);
    }
    if states.len() == 1 { Vec::new() } else { states }
}
