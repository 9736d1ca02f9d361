//! Takes out states that no optimal choice needs: those that a table forbids, and those that another state dominates.
//!
//! State `a` is dominated by `b` of the same variable where, whatever the neighbours do, `b` costs no more:
//! the sum over its tables of `min (table(a, ·) - table(b, ·))` is not negative (Goldstein 1994). Both are decided once for
//! each distinct table and for each distinct neighbourhood, so that the repeated layers of a model cost look-ups.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    Failure,
    array::{ArrayId, INFINITE, Shape, Store, around},
    network::{Incidence, Network, ids},
};

/// What was learnt about arrays and neighbourhoods. Lives as long as the solver.
#[derive(Default)]
pub(crate) struct Pruner {
    /// Lists of states; the first is unused and stands for all.
    lists: Vec<Box<[u32]>>,
    list_ids: FxHashMap<Box<[u32]>, ListId>,
    verdicts: FxHashMap<Box<[u32]>, ListId>,
    comparisons: FxHashMap<(ArrayId, u32), usize>,
    tables: Vec<Comparison>,
    restricted: FxHashMap<(ArrayId, Lists), Option<(ArrayId, i64)>>,
    squeezed: FxHashMap<ArrayId, ArrayId>,
}

/// A list of states that stay.
type ListId = u32;
const ALL: ListId = 0;
/// A list for each axis of an array.
type Lists = SmallVec<[ListId; 3]>;

/// How the states of one axis of an array compare, whatever the other axes are.
struct Comparison {
    /// The cells of each state, in one order, one state after the other.
    rows: Vec<i64>,
    /// Whether the array forbids the state.
    forbidden: Box<[bool]>,
    /// Per pair of states `a * size + b`: the cost of `a` over that of `b` where `a` costs least, in [`COARSE`] units.
    most: Vec<i64>,
    /// The same for what it costs more at least, where it was asked for.
    least: Vec<Option<i64>>,
}

/// Bounds of differences are in units of so many bits, rounded up, so that those of many tables can be added.
const COARSE: u32 = 16;

fn coarse(excess: i64) -> i64 {
    -(-excess >> COARSE)
}

/// There are neighbours with which `b` is forbidden and `a` is not.
const INCOMPARABLE: i64 = i64::MIN;

/// A network without the states that are not needed, and without variables that have only one.
pub(crate) struct Pruned {
    pub network: Network,
    /// The states that are left of each variable; `None` where all are.
    pub states: Vec<Option<Box<[u32]>>>,
    /// To be added to every sum.
    pub constant: i128,
}

impl Pruned {
    /// The states of the network before pruning that `choices` stand for.
    pub fn original(&self, choices: &[u32]) -> Vec<u32> {
        let original = |(states, &choice): (&Option<Box<[u32]>>, &u32)| {
            states.as_ref().map_or(choice, |states| states[choice as usize])
        };
        self.states.iter().zip(choices).map(original).collect()
    }
}

impl Pruner {
    /// Prunes to a fixed point. The variables of `kept` start with only the given states, in increasing order.
    pub fn prune(
        &mut self,
        network: Network,
        kept: &[(u32, Vec<u32>)],
        store: &mut Store,
    ) -> Result<Pruned, Failure> {
        if let Some(factor) = (0..network.arrays.len()).find(|&factor| !store[network.arrays[factor]].allows)
        {
            return Err(Failure::Infeasible { variables: ids(network.scope(factor)) });
        }
        let count = network.sizes.len();
        let incidence = network.incidence();
        let mut pruned = Pruned { network, states: vec![None; count], constant: 0 };
        let mut cut = vec![ALL; count];
        let cuts: Vec<(u32, ListId)> =
            kept.iter().map(|(variable, states)| (*variable, self.list(states.clone()))).collect();
        self.apply(&cuts, &mut pruned, &incidence, &mut cut, store)?;
        let mut dirty: Vec<u32> = (0..count as u32).collect();
        let mut key = Vec::new();
        while !dirty.is_empty() {
            let mut cuts = Vec::new();
            for &variable in &dirty {
                if pruned.network.sizes[variable as usize] > 1 {
                    neighbourhood(&pruned.network, &incidence, variable, &mut key);
                    let list = self.verdict(&key, store);
                    if list != ALL {
                        cuts.push((variable, list));
                    }
                }
            }
            dirty = self.apply(&cuts, &mut pruned, &incidence, &mut cut, store)?;
        }
        pruned.network = self.squeeze(&pruned.network, store);
        Ok(pruned)
    }

    /// The states that stay in this neighbourhood.
    fn verdict(&mut self, key: &[u32], store: &Store) -> ListId {
        if let Some(&list) = self.verdicts.get(key) {
            return list;
        }
        let kept = self.undominated(key, store);
        let list = kept.map_or(ALL, |kept| self.list(kept));
        self.verdicts.insert(key.into(), list);
        list
    }

    /// The states that nothing dominates, or `None` where all are such. Of equals the first stays.
    fn undominated(&mut self, key: &[u32], store: &Store) -> Option<Vec<u32>> {
        let tables: Vec<usize> =
            key.chunks_exact(2).map(|entry| self.comparison(ArrayId(entry[0]), entry[1], store)).collect();
        let size = self.tables[tables[0]].forbidden.len();
        let mut alive: Vec<bool> =
            (0..size).map(|a| !tables.iter().any(|&t| self.tables[t].forbidden[a])).collect();
        let mut most = vec![0_i64; size];
        for a in (0..size).rev().filter(|&a| alive[a]).collect::<Vec<_>>() {
            most.fill(0);
            for &table in &tables {
                let sums = most.iter_mut().zip(self.tables[table].most_excess(a));
                sums.for_each(|(most, excess)| *most += excess);
            }
            let dominates = |b: usize| b != a && alive[b] && self.dominates(&tables, (b, a), most[b]);
            alive[a] = !(0..size).any(dominates);
        }
        let kept: Vec<u32> = (0..size as u32).filter(|&a| alive[a as usize]).collect();
        (kept.len() < size).then_some(kept)
    }

    /// Whether one state dominates another, where `most` is what the costs of that are above its own at most, in [`COARSE`] units.
    fn dominates(&mut self, tables: &[usize], (better, worse): (usize, usize), mut most: i64) -> bool {
        let mut sum = 0_i128;
        for &table in tables {
            if most < 0 {
                return false;
            }
            let table = &mut self.tables[table];
            let excess = table.most_excess(worse)[better];
            match table.least_excess(worse, better) {
                INCOMPARABLE => return false,
                least => {
                    most -= excess - coarse(least);
                    sum += i128::from(least);
                }
            }
        }
        sum >= 0
    }

    fn comparison(&mut self, array: ArrayId, axis: u32, store: &Store) -> usize {
        *self.comparisons.entry((array, axis)).or_insert_with(|| {
            self.tables.push(Comparison::new(store, array, axis as usize));
            self.tables.len() - 1
        })
    }

    fn list(&mut self, states: Vec<u32>) -> ListId {
        if self.lists.is_empty() {
            self.lists.push(Box::default());
        }
        let lists = &mut self.lists;
        *self.list_ids.entry(states.into()).or_insert_with_key(|states| {
            lists.push(states.clone());
            lists.len() as ListId - 1
        })
    }

    /// Takes states out of the network; returns the variables whose neighbourhood changed.
    fn apply(
        &mut self,
        cuts: &[(u32, ListId)],
        pruned: &mut Pruned,
        incidence: &Incidence,
        cut: &mut [ListId],
        store: &mut Store,
    ) -> Result<Vec<u32>, Failure> {
        let mut factors = Vec::new();
        for &(variable, list) in cuts {
            let states = &self.lists[list as usize];
            let factors_of = incidence.of(variable);
            if states.is_empty() {
                return Err(Failure::Infeasible { variables: neighbours(&pruned.network, factors_of) });
            }
            let old = &mut pruned.states[variable as usize];
            let original = |&state: &u32| old.as_ref().map_or(state, |old| old[state as usize]);
            *old = Some(states.iter().map(original).collect());
            pruned.network.sizes[variable as usize] = states.len() as u32;
            cut[variable as usize] = list;
            factors.extend(factors_of.iter().map(|&(factor, _)| factor));
        }
        factors.sort_unstable();
        factors.dedup();
        let mut dirty = Vec::new();
        for factor in factors {
            let scope = pruned.network.scope(factor as usize);
            let lists: Lists = scope.iter().map(|&x| cut[x as usize]).collect();
            let array = self.restrict(pruned.network.arrays[factor as usize], lists, store);
            let (array, minimum) = array.ok_or_else(|| Failure::Infeasible { variables: ids(scope) })?;
            dirty.extend_from_slice(scope);
            pruned.network.arrays[factor as usize] = array;
            pruned.constant += i128::from(minimum);
        }
        for &(variable, _) in cuts {
            cut[variable as usize] = ALL;
        }
        dirty.sort_unstable();
        dirty.dedup();
        Ok(dirty)
    }

    /// The array on the states that stay along each axis.
    fn restrict(&mut self, array: ArrayId, lists: Lists, store: &mut Store) -> Option<(ArrayId, i64)> {
        if let Some(&known) = self.restricted.get(&(array, lists.clone())) {
            return known;
        }
        let source = &store[array];
        let mut cells = source.cells.to_vec();
        let mut shape = source.shape.clone();
        for (axis, &list) in lists.iter().enumerate().filter(|&(_, &list)| list != ALL) {
            let states = &self.lists[list as usize];
            cells = take(&shape, &cells, axis, states);
            shape[axis] = states.len() as u32;
        }
        let restricted = store.intern_normalised(shape, &mut cells);
        self.restricted.insert((array, lists), restricted);
        restricted
    }

    /// The network without the axes that have one state left. What has no other axis is a zero, being normalised.
    fn squeeze(&mut self, network: &Network, store: &mut Store) -> Network {
        let mut result = Network::new(network.sizes.clone());
        let mut scope = Vec::new();
        for (factor, &array) in network.arrays.iter().enumerate() {
            scope.clear();
            scope.extend(network.scope(factor).iter().copied().filter(|&x| network.sizes[x as usize] > 1));
            if scope.len() == network.scope(factor).len() {
                result.push(array, &scope);
            } else if !scope.is_empty() {
                let squeezed = *self.squeezed.entry(array).or_insert_with(|| {
                    let (shape, cells) = (&store[array].shape, store[array].cells.to_vec());
                    let shape = shape.iter().copied().filter(|&size| size > 1).collect();
                    store.intern(shape, &cells)
                });
                result.push(squeezed, &scope);
            }
        }
        result
    }
}

/// The cells whose index along `axis` is one of `states`.
fn take(shape: &Shape, cells: &[i64], axis: usize, states: &[u32]) -> Vec<i64> {
    let inner: usize = shape[axis + 1..].iter().map(|&size| size as usize).product();
    let blocks = cells.chunks_exact(inner * shape[axis] as usize);
    blocks
        .flat_map(|block| states.iter().flat_map(move |&state| &block[state as usize * inner..][..inner]))
        .copied()
        .collect()
}

/// Arrays and axes of a variable, in an order that depends on nothing else.
fn neighbourhood(network: &Network, incidence: &Incidence, variable: u32, key: &mut Vec<u32>) {
    let factors = incidence.of(variable).iter();
    let mut entries: SmallVec<[(u32, u32); 16]> =
        factors.map(|&(factor, axis)| (network.arrays[factor as usize].0, axis)).collect();
    entries.sort_unstable();
    key.clear();
    key.extend(entries.iter().flat_map(|&(array, axis)| [array, axis]));
}

fn neighbours(network: &Network, factors: &[(u32, u32)]) -> Vec<crate::VariableId> {
    let mut scope: Vec<u32> =
        factors.iter().flat_map(|&(factor, _)| network.scope(factor as usize)).copied().collect();
    scope.sort_unstable();
    scope.dedup();
    ids(&scope)
}

impl Comparison {
    fn new(store: &Store, array: ArrayId, axis: usize) -> Self {
        let (blocks, size, run) = around(&store[array].shape, axis);
        let cells = &store[array].cells;
        let mut rows = Vec::with_capacity(cells.len());
        for state in 0..size {
            if run == 1 {
                rows.extend(cells[state..].iter().step_by(size));
                continue;
            }
            for block in 0..blocks {
                rows.extend_from_slice(&cells[(block * size + state) * run..][..run]);
            }
        }
        let row = |state: usize| &rows[state * blocks * run..][..blocks * run];
        let forbidden = (0..size).map(|state| row(state).iter().all(|&cell| cell >= INFINITE)).collect();
        let mut most = Vec::with_capacity(size * size);
        for a in (0..size).map(row) {
            let cheapest = (0..a.len()).min_by_key(|&at| a[at]).unwrap_or(0);
            let excess = |cell: i64| coarse(if cell >= INFINITE { -INFINITE } else { a[cheapest] - cell });
            most.extend((0..size).map(|b| excess(row(b)[cheapest])));
        }
        Self { forbidden, most, least: vec![None; size * size], rows }
    }

    /// What the cost of `a` over that of each other state is at most at the least, for one that is allowed.
    fn most_excess(&self, a: usize) -> &[i64] {
        let size = self.forbidden.len();
        &self.most[a * size..][..size]
    }

    fn least_excess(&mut self, a: usize, b: usize) -> i64 {
        let size = self.forbidden.len();
        let row = |state: usize| &self.rows[state * self.rows.len() / size..][..self.rows.len() / size];
        *self.least[a * size + b].get_or_insert_with(|| least_excess(row(a), row(b)))
    }
}

/// The least cost of a cell of `a` over that of `b` where `a` is allowed.
fn least_excess(a: &[i64], b: &[i64]) -> i64 {
    const PIECE: usize = 64;
    let mut least = INFINITE;
    for (a, b) in a.chunks(PIECE).zip(b.chunks(PIECE)) {
        let mut incomparable = false;
        for (&a, &b) in a.iter().zip(b) {
            incomparable |= a < INFINITE && b >= INFINITE;
            least = least.min(if a < INFINITE { a - b } else { INFINITE });
        }
        if incomparable {
            return INCOMPARABLE;
        }
    }
    least
}
