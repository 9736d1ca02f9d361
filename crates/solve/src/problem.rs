//! The problem: variables with finitely many states, and tables of costs on small sets of them.

use base::{PrimaryMap, define_id};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    Cost, VariableId,
    array::{ArrayId, Shape, Store, permute, strides},
};

define_id!(
    /// A table of costs, and of weights where given. Equal tables have equal ids.
    TableId, "t"
);

/// The states chosen, by variable.
pub type Choices = PrimaryMap<VariableId, u32>;

/// A table with the variables that it is applied to, in increasing order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Factor {
    /// The variables, one for each axis of the table.
    pub scope: SmallVec<[VariableId; 2]>,
    /// The table.
    pub table: TableId,
}

/// What the costs of a table are of: [`Problem::scaled`] scales those of a class together.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub struct ClassId(pub u8);

/// Costs and weights of one table, each interned on its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TableArrays {
    pub costs: ArrayId,
    /// [`ArrayId::NONE`] where all weights are 0.
    pub weights: ArrayId,
    class: ClassId,
}

/// What the cells of a table cost and weigh.
#[derive(Clone, Copy, Default, Debug)]
pub struct Cells<'a> {
    /// Their costs.
    pub costs: &'a [Cost],
    /// Their weights; none means that all are 0.
    pub weights: &'a [u64],
    /// What the costs are of.
    pub class: ClassId,
}

/// A sum of tables over variables, to be minimised.
///
/// A *weight* is a second quantity (bytes, in the planner) that adds up just as the costs do, and of which there may be a
/// budget. The costs of a table may be of a *class* (communication, in the planner) that counts for more or less in a [scaled](Self::scaled) problem.
/// Shapes are the caller's invariant: a table whose number of cells or sizes do not fit panics.
#[derive(Clone, Default)]
pub struct Problem {
    sizes: PrimaryMap<VariableId, u32>,
    factors: Vec<Factor>,
    tables: PrimaryMap<TableId, TableArrays>,
    ids: FxHashMap<TableArrays, TableId>,
    pub(crate) store: Store,
}

impl Problem {
    /// A problem without variables, whose only solution costs nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable with one state for each of `costs`, its own costs.
    pub fn variable(&mut self, costs: &[Cost]) -> VariableId {
        self.weighted_variable(costs, &[])
    }

    /// Adds a variable whose states have weights too. No weights means that all are 0.
    pub fn weighted_variable(&mut self, costs: &[Cost], weights: &[u64]) -> VariableId {
        self.variable_of(Cells { costs, weights, ..Cells::default() })
    }

    /// Adds a variable with a state for each cell.
    pub fn variable_of(&mut self, cells: Cells<'_>) -> VariableId {
        let size = u32::try_from(cells.costs.len()).expect("a variable has at most u32::MAX states");
        let table = self.table_of(&[cells.costs.len()], cells);
        let variable = self.sizes.push(size);
        self.factors.push(Factor { scope: SmallVec::from_slice(&[variable]), table });
        variable
    }

    /// A table on two variables: `costs[row * cols + col]`, rows being the states of the first.
    pub fn table(&mut self, rows: usize, cols: usize, costs: &[Cost]) -> TableId {
        self.weighted_table(&[rows, cols], costs, &[])
    }

    /// A table with one axis for each of `shape`, in row-major order, with weights too. No weights means that all are 0.
    pub fn weighted_table(&mut self, shape: &[usize], costs: &[Cost], weights: &[u64]) -> TableId {
        self.table_of(shape, Cells { costs, weights, ..Cells::default() })
    }

    /// A table with one axis for each of `shape`, its cells in row-major order.
    pub fn table_of(&mut self, shape: &[usize], cells: Cells<'_>) -> TableId {
        assert_eq!(shape.iter().product::<usize>(), cells.costs.len(), "a table has a cost for every cell");
        let shape: Shape = shape.iter().map(|&size| u32::try_from(size).expect("axis size")).collect();
        let costs: Vec<i64> =
            cells.costs.iter().map(|cost| cost.0.clamp(-Cost::LIMIT.0, Cost::INFINITE.0)).collect();
        let weight =
            |&weight: &u64| i64::try_from(weight).map_or(Cost::LIMIT.0, |weight| weight.min(Cost::LIMIT.0));
        let weights: Vec<i64> = cells.weights.iter().map(weight).collect();
        let arrays = TableArrays {
            costs: self.store.intern(shape.clone(), &costs),
            weights: self.intern_unless_0(&shape, &weights, costs.len()),
            class: cells.class,
        };
        self.table_id(arrays)
    }

    fn intern_unless_0(&mut self, shape: &Shape, cells: &[i64], count: usize) -> ArrayId {
        if cells.iter().all(|&cell| cell == 0) {
            return ArrayId::NONE;
        }
        assert_eq!(cells.len(), count, "a table says something of every cell or of none");
        self.store.intern(shape.clone(), cells)
    }

    fn table_id(&mut self, arrays: TableArrays) -> TableId {
        let next = self.tables.next_id();
        let id = *self.ids.entry(arrays).or_insert(next);
        if id == next {
            self.tables.push(arrays);
        }
        id
    }

    /// The table on one variable that a square table on two is where both are the same.
    pub fn diagonal(&mut self, table: TableId) -> TableId {
        let arrays = self.tables[table];
        let mut diagonal = |id: ArrayId| {
            if !id.is_some() {
                return id;
            }
            let array = &self.store[id];
            let cells: Vec<i64> = array.cells.iter().step_by(array.shape[0] as usize + 1).copied().collect();
            let shape = array.shape[..1].iter().copied().collect();
            self.store.intern(shape, &cells)
        };
        let arrays = TableArrays {
            costs: diagonal(arrays.costs),
            weights: diagonal(arrays.weights),
            class: arrays.class,
        };
        self.table_id(arrays)
    }

    /// Adds the cost `table[state of a, state of b]`.
    pub fn pair(&mut self, a: VariableId, b: VariableId, table: TableId) {
        self.factor(&[a, b], table);
    }

    /// Adds the cost of `table` at the states of `scope`: distinct variables, one for each axis.
    pub fn factor(&mut self, scope: &[VariableId], table: TableId) {
        let shape = &self.store[self.tables[table].costs].shape;
        assert_eq!(shape.len(), scope.len(), "a table has an axis for every variable");
        let fits = shape.iter().zip(scope).all(|(&size, &variable)| size == self.sizes[variable]);
        assert!(fits, "{table} of shape {shape:?} does not fit the sizes of {scope:?}");
        let mut axes: SmallVec<[usize; 4]> = (0..scope.len()).collect();
        axes.sort_by_key(|&axis| scope[axis]);
        let sorted: SmallVec<[VariableId; 2]> = axes.iter().map(|&axis| scope[axis]).collect();
        assert!(sorted.windows(2).all(|pair| pair[0] < pair[1]), "{scope:?} names a variable twice");
        let table = if axes.is_sorted() { table } else { self.permuted(table, &axes) };
        self.factors.push(Factor { scope: sorted, table });
    }

    fn permuted(&mut self, table: TableId, axes: &[usize]) -> TableId {
        let arrays = self.tables[table];
        let mut permuted = |id: ArrayId| {
            if !id.is_some() {
                return id;
            }
            let (shape, cells) = permute(&self.store[id].shape, &self.store[id].cells, axes);
            self.store.intern(shape, &cells)
        };
        let arrays = TableArrays {
            costs: permuted(arrays.costs),
            weights: permuted(arrays.weights),
            class: arrays.class,
        };
        self.table_id(arrays)
    }

    /// The same problem with the costs of each class at a percentage; variables keep their ids. What is forbidden stays so, and the
    /// secondary quantity as it is.
    #[must_use]
    pub fn scaled(&self, percent: impl Fn(ClassId) -> u32) -> Self {
        let mut store = self.store.clone();
        let mut scaled = |arrays: TableArrays| {
            let percent = percent(arrays.class);
            if percent == 100 {
                return arrays;
            }
            let array = &store[arrays.costs];
            let cells: Vec<i64> = array.cells.iter().map(|&cell| Cost(cell).at(percent).0).collect();
            let shape = array.shape.clone();
            TableArrays { costs: store.intern(shape, &cells), ..arrays }
        };
        let mut problem = Self { sizes: self.sizes.clone(), ..Self::default() };
        let tables: PrimaryMap<TableId, TableArrays> = self.tables.values().map(|&it| scaled(it)).collect();
        problem.store = store;
        let ids: PrimaryMap<TableId, TableId> = tables.values().map(|&it| problem.table_id(it)).collect();
        let factor = |factor: &Factor| Factor { table: ids[factor.table], ..factor.clone() };
        problem.factors = self.factors.iter().map(factor).collect();
        problem
    }

    /// How many states each variable has.
    pub fn sizes(&self) -> &PrimaryMap<VariableId, u32> {
        &self.sizes
    }

    /// All factors, those of single variables included.
    pub fn factors(&self) -> &[Factor] {
        &self.factors
    }

    /// Shape and costs of a table.
    pub fn costs(&self, table: TableId) -> (Vec<usize>, Vec<Cost>) {
        let array = &self.store[self.tables[table].costs];
        let shape = array.shape.iter().map(|&size| size as usize).collect();
        (shape, array.cells.iter().map(|&cell| Cost(cell)).collect())
    }

    /// How many distinct tables there are.
    pub fn table_count(&self) -> usize {
        self.tables.len()
    }

    pub(crate) fn arrays(&self, table: TableId) -> TableArrays {
        self.tables[table]
    }

    /// The cell of `array` that the choices select through `scope`.
    fn cell(&self, array: ArrayId, scope: &[VariableId], choices: &Choices) -> i64 {
        let array = &self.store[array];
        let steps = strides(&array.shape);
        array.cells[scope.iter().zip(&steps).map(|(&x, step)| choices[x] as usize * step).sum::<usize>()]
    }
}

pub(crate) fn cost_of(problem: &Problem, factor: &Factor, choices: &Choices) -> Cost {
    Cost(problem.cell(problem.tables[factor.table].costs, &factor.scope, choices))
}

pub(crate) fn weight_of(problem: &Problem, factor: &Factor, choices: &Choices) -> u64 {
    match problem.tables[factor.table].weights {
        ArrayId::NONE => 0,
        weights => problem.cell(weights, &factor.scope, choices) as u64,
    }
}

/// What `choices` cost: a straight sum over all tables, independent of every solver.
pub fn evaluate(problem: &Problem, choices: &Choices) -> Cost {
    problem.factors.iter().map(|factor| cost_of(problem, factor, choices)).sum()
}

/// What `choices` weigh: a straight sum over all tables.
pub fn weigh(problem: &Problem, choices: &Choices) -> u64 {
    problem.factors.iter().map(|factor| weight_of(problem, factor, choices)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_in_either_order_is_the_same_factor() {
        let costs = |numbers: &[i64]| numbers.iter().map(|&n| Cost::new(n, 0)).collect::<Vec<_>>();
        let mut problem = Problem::new();
        let a = problem.variable(&costs(&[0, 0]));
        let b = problem.variable(&costs(&[0, 0, 0]));
        let tall = problem.table(3, 2, &costs(&[1, 2, 3, 4, 5, 6]));
        let wide = problem.table(2, 3, &costs(&[1, 3, 5, 2, 4, 6]));
        problem.pair(b, a, tall);
        problem.pair(a, b, wide);
        assert_eq!(problem.factors()[2], problem.factors()[3]);
        let choices = Choices::from_iter([1, 2]);
        assert_eq!(evaluate(&problem, &choices), Cost::new(12, 0));
    }
}
