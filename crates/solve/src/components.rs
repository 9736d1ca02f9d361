//! Two choices that differ do so in independent components, each of which can be exchanged alone.

use crate::{
    Choices, Problem, VariableId,
    knapsack::Exchange,
    problem::{Factor, cost_of, weight_of},
};

/// Variables whose exchange changes a sum of its own.
pub(crate) struct Component {
    pub variables: Vec<VariableId>,
    /// What going from the first to the second choices gains in cost and adds in weight.
    pub exchange: Exchange,
}

/// The components in which `to` differs from `from`: no factor has differing variables of two of them.
pub(crate) fn components(problem: &Problem, from: &Choices, to: &Choices) -> Vec<Component> {
    let count = problem.sizes().len();
    let differs = |x: VariableId| from[x] != to[x];
    let mut parent: Vec<u32> = (0..count as u32).collect();
    let touched = || problem.factors().iter().filter(|factor| factor.scope.iter().any(|&x| differs(x)));
    for factor in touched() {
        let mut members = factor.scope.iter().filter(|&&x| differs(x));
        let Some(first) = members.next() else { continue };
        for other in members {
            let (a, b) = (root(&mut parent, first.0), root(&mut parent, other.0));
            parent[a.max(b) as usize] = a.min(b);
        }
    }
    let mut components = Vec::new();
    let mut numbers = vec![usize::MAX; count];
    for variable in problem.sizes().ids().filter(|&x| differs(x)) {
        let root = root(&mut parent, variable.0) as usize;
        if numbers[root] == usize::MAX {
            numbers[root] = components.len();
            components.push(Component { variables: Vec::new(), exchange: Exchange { gain: 0, weight: 0 } });
        }
        components[numbers[root]].variables.push(variable);
    }
    for factor in touched() {
        if let Some(member) = factor.scope.iter().find(|&&x| differs(x)) {
            let exchange = &mut components[numbers[root(&mut parent, member.0) as usize]].exchange;
            let (gain, weight) = difference(problem, factor, from, to);
            exchange.gain += gain;
            exchange.weight += weight;
        }
    }
    components
}

fn difference(problem: &Problem, factor: &Factor, from: &Choices, to: &Choices) -> (i128, i128) {
    let cost = |choices| i128::from(cost_of(problem, factor, choices).0);
    let weight = |choices| i128::from(weight_of(problem, factor, choices));
    (cost(from) - cost(to), weight(to) - weight(from))
}

fn root(parent: &mut [u32], mut variable: u32) -> u32 {
    while parent[variable as usize] != variable {
        parent[variable as usize] = parent[parent[variable as usize] as usize];
        variable = parent[variable as usize];
    }
    variable
}
