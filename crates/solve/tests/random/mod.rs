//! Small random problems that can be solved by trying everything.
#![allow(clippy::unwrap_used, dead_code, reason = "shared by tests, each of which uses a part")]

use arbtest::arbitrary::{self, Unstructured};
use unisono_solve::{Cells, Choices, ClassId, Cost, Problem, VariableId, evaluate};

/// What drawing can fail with.
type Draw<T> = arbitrary::Result<T>;

/// Costs in a narrow range, where ties abound, or in a wide one; a fifth of them forbidden.
fn costs(u: &mut Unstructured<'_>, count: usize) -> Draw<Vec<Cost>> {
    let range = if u.ratio(1, 2)? { 3 } else { 1000 };
    let cost = |u: &mut Unstructured<'_>| {
        Ok(if u.ratio(1, 5)? { Cost::INFINITE } else { Cost::new(u.int_in_range(-range..=range)?, 0) })
    };
    (0..count).map(|_| cost(u)).collect()
}

fn weights(u: &mut Unstructured<'_>, count: usize) -> Draw<Vec<u64>> {
    if u.ratio(1, 3)? { Ok(vec![]) } else { (0..count).map(|_| u.int_in_range(0..=50)).collect() }
}

/// Up to six variables of up to four states, with pairs and triples in any order of variables.
pub fn problem(u: &mut Unstructured<'_>) -> Draw<Problem> {
    let mut problem = Problem::new();
    let count = u.int_in_range(1..=6)?;
    for _ in 0..count {
        let size = u.int_in_range(1..=4)?;
        let costs = costs(u, size)?;
        let weights = weights(u, size)?;
        let class = ClassId(u.int_in_range(0..=2)?);
        problem.variable_of(Cells { costs: &costs, weights: &weights, class });
    }
    for _ in 0..u.int_in_range(0..=9)? {
        let mut scope: Vec<u32> = (0..count).collect();
        for i in (1..scope.len()).rev() {
            scope.swap(i, u.int_in_range(0..=i)?);
        }
        scope.truncate(u.int_in_range(1..=3)?);
        let scope: Vec<VariableId> = scope.into_iter().map(VariableId).collect();
        let shape: Vec<usize> = scope.iter().map(|&x| problem.sizes()[x] as usize).collect();
        let cells = shape.iter().product();
        let (costs, weights) = (costs(u, cells)?, weights(u, cells)?);
        let class = ClassId(u.int_in_range(0..=2)?);
        let table = problem.table_of(&shape, Cells { costs: &costs, weights: &weights, class });
        problem.factor(&scope, table);
    }
    Ok(problem)
}

/// All choices, in lexicographic order.
pub fn all_choices(problem: &Problem) -> Vec<Choices> {
    let mut all = vec![vec![]];
    for &size in problem.sizes().values() {
        let extend = |prefix: Vec<u32>| (0..size).map(move |state| [&prefix[..], &[state]].concat());
        all = all.into_iter().flat_map(extend).collect();
    }
    all.into_iter().map(Choices::from_iter).collect()
}

/// The least cost of all choices.
pub fn least(problem: &Problem) -> Cost {
    all_choices(problem).iter().map(|choices| evaluate(problem, choices)).min().unwrap()
}

/// Numbers that a seed determines (`SplitMix64`).
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % end
    }
}
