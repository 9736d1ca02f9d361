//! The solver's own view of a problem: numbered variables, and interned non-negative arrays on sorted scopes.

use base::Id;
use rustc_hash::FxHashMap;

use crate::{
    Price, Problem, TableId, VariableId,
    array::{ArrayId, INFINITE, Store, normalise},
};

/// Factors on numbered variables. Scopes are sorted and stand one after the other in one list.
#[derive(Clone, Default)]
pub(crate) struct Network {
    /// How many states each variable has.
    pub sizes: Vec<u32>,
    /// The array of each factor.
    pub arrays: Vec<ArrayId>,
    starts: Vec<u32>,
    members: Vec<u32>,
}

impl Network {
    /// A network of variables without factors.
    pub fn new(sizes: Vec<u32>) -> Self {
        Self { sizes, arrays: Vec::new(), starts: vec![0], members: Vec::new() }
    }

    /// Adds a factor and returns its number.
    pub fn push(&mut self, array: ArrayId, scope: &[u32]) -> u32 {
        self.members.extend_from_slice(scope);
        self.starts.push(self.members.len() as u32);
        self.arrays.push(array);
        self.arrays.len() as u32 - 1
    }

    /// The variables of a factor, in increasing order.
    pub fn scope(&self, factor: usize) -> &[u32] {
        &self.members[self.starts[factor] as usize..self.starts[factor + 1] as usize]
    }

    /// What tells which factors are on which variables: the scopes, one after the other, and where each starts.
    pub fn scopes(&self) -> [&[u32]; 2] {
        [&self.starts, &self.members]
    }

    /// How many cells a table on these variables has; `u64::MAX` where they are beyond counting.
    pub fn cells(&self, scope: &[u32]) -> u64 {
        scope.iter().map(|&x| u64::from(self.sizes[x as usize])).fold(1, u64::saturating_mul)
    }

    /// For every variable, its factors in increasing order, each with the axis that the variable is.
    pub fn incidence(&self) -> Incidence {
        let mut starts = vec![0_u32; self.sizes.len() + 1];
        for &variable in &self.members {
            starts[variable as usize + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut entries = vec![(0, 0); self.members.len()];
        for factor in 0..self.arrays.len() {
            for (axis, &variable) in self.scope(factor).iter().enumerate() {
                entries[next[variable as usize] as usize] = (factor as u32, axis as u32);
                next[variable as usize] += 1;
            }
        }
        Incidence { starts, entries }
    }
}

/// The factors of each variable.
pub(crate) struct Incidence {
    starts: Vec<u32>,
    entries: Vec<(u32, u32)>,
}

impl Incidence {
    /// Factors of `variable`, each with the axis that it is there.
    pub fn of(&self, variable: u32) -> &[(u32, u32)] {
        let variable = variable as usize;
        &self.entries[self.starts[variable] as usize..self.starts[variable + 1] as usize]
    }
}

/// What is to be minimised. Nothing that the costs forbid is ever allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Objective {
    /// The costs plus the weights at a price; rounded down in every cell.
    Priced(Price),
    /// The weights, whatever they cost.
    Weights,
}

impl Objective {
    /// The costs.
    pub const COSTS: Self = Self::Priced(Price::FREE);

    /// The array of a table, its minimum subtracted, in units of so many bits, rounded down; and that minimum.
    fn array(self, problem: &Problem, store: &mut Store, table: TableId, unit: u32) -> (ArrayId, i64) {
        let arrays = problem.arrays(table);
        let costs = &problem.store[arrays.costs];
        let of =
            |array: ArrayId, cell: usize| if array.is_some() { problem.store[array].cells[cell] } else { 0 };
        let objective = |(cell, &cost): (usize, &i64)| match self {
            _ if cost >= INFINITE => INFINITE,
            Self::Weights => of(arrays.weights, cell),
            Self::Priced(price) => price.sum(cost, of(arrays.weights, cell)),
        };
        let mut cells: Vec<i64> = costs.cells.iter().enumerate().map(objective).collect();
        let shape = costs.shape.clone();
        let minimum = normalise(&mut cells).unwrap_or(0);
        cells.iter_mut().filter(|cell| **cell < INFINITE).for_each(|cell| *cell >>= unit);
        (store.intern(shape, &cells), minimum)
    }
}

/// The network of a problem in units of so many bits, and the sum of the minima of its tables, in units of one.
pub(crate) fn build(
    problem: &Problem,
    store: &mut Store,
    objective: Objective,
    unit: u32,
) -> (Network, i128) {
    let mut network = Network::new(problem.sizes().values().copied().collect());
    let mut constant = 0;
    let mut arrays: FxHashMap<TableId, (ArrayId, i64)> = FxHashMap::default();
    let mut scope: Vec<u32> = Vec::new();
    for factor in problem.factors() {
        let (array, minimum) = *arrays
            .entry(factor.table)
            .or_insert_with(|| objective.array(problem, store, factor.table, unit));
        constant += i128::from(minimum);
        scope.clear();
        scope.extend(factor.scope.iter().map(|x| x.0));
        network.push(array, &scope);
    }
    (network, constant)
}

/// The ids of numbered variables.
pub(crate) fn ids(variables: &[u32]) -> Vec<VariableId> {
    variables.iter().map(|&x| VariableId::from_index(x as usize)).collect()
}
