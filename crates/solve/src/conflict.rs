//! Which variables are at fault where nothing is allowed: a set from which none can be left out.

use rustc_hash::FxHashMap;

use crate::{
    Failure, Options, Statistics,
    array::{ArrayId, INFINITE, Store},
    eliminate::{Cache, Resources, eliminate},
    network::Network,
    order::min_weight,
    prune::Pruner,
};

/// Finds what forbids everything, around where that was noticed.
pub(crate) struct Conflict<'a> {
    network: Network,
    kept: FxHashMap<u32, Vec<u32>>,
    store: &'a mut Store,
    cache: Cache,
    pruner: Pruner,
    options: &'a Options,
}

impl<'a> Conflict<'a> {
    /// A search in `network`, where the variables of `kept` have only the given states.
    pub fn new(
        network: &Network,
        kept: &[(u32, Vec<u32>)],
        store: &'a mut Store,
        options: &'a Options,
    ) -> Self {
        let network = prohibitions(network, store);
        let kept = kept.iter().cloned().collect();
        Self { network, kept, store, cache: Cache::default(), pruner: Pruner::default(), options }
    }

    /// A set of variables whose tables forbid everything, none of which can be left out. Begins at `noticed`.
    pub fn narrow(&mut self, noticed: &[u32]) -> Vec<u32> {
        let mut around = noticed.to_vec();
        loop {
            if self.forbids(&around) {
                break;
            }
            let size = around.len();
            for _ in 0..2 {
                self.grow(&mut around);
            }
            if around.len() == size {
                // Elimination would need too large a table to tell: what was noticed has to do.
                return noticed.to_vec();
            }
        }
        let mut fault = self.explain(&[], false, &around);
        fault.sort_unstable();
        fault
    }

    /// Adds the neighbours of a sorted set.
    fn grow(&self, set: &mut Vec<u32>) {
        let mut grown = set.clone();
        for factor in 0..self.network.arrays.len() {
            let scope = self.network.scope(factor);
            if scope.iter().any(|x| set.binary_search(x).is_ok()) {
                grown.extend_from_slice(scope);
            }
        }
        grown.sort_unstable();
        grown.dedup();
        *set = grown;
    }

    /// The candidates without which the background forbids nothing (`QuickXplain`, Junker 2004).
    fn explain(&mut self, background: &[u32], grew: bool, candidates: &[u32]) -> Vec<u32> {
        if grew && self.forbids(background) {
            return Vec::new();
        }
        if candidates.len() <= 1 {
            return candidates.to_vec();
        }
        let (first, second) = candidates.split_at(candidates.len() / 2);
        let mut fault = self.explain(&[background, first].concat(), true, second);
        let more = self.explain(&[background, &fault].concat(), !fault.is_empty(), first);
        fault.extend(more);
        fault
    }

    /// Whether the tables among these variables forbid everything, as far as small tables tell.
    fn forbids(&mut self, variables: &[u32]) -> bool {
        let mut variables = variables.to_vec();
        variables.sort_unstable();
        let part = restrict(&self.network, &variables);
        let kept: Vec<(u32, Vec<u32>)> = (0..)
            .zip(&variables)
            .filter_map(|(i, variable)| Some((i, self.kept.get(variable)?.clone())))
            .collect();
        let pruned = match self.pruner.prune(part, &kept, self.store) {
            Ok(pruned) => pruned,
            Err(failure) => return matches!(failure, Failure::Infeasible { .. }),
        };
        let order = min_weight(&pruned.network, |_| 0);
        if order.largest > self.options.table_limit {
            return false;
        }
        let mut statistics = Statistics::default();
        let (store, cache, limit) = (&mut *self.store, &mut self.cache, u64::MAX);
        let with =
            Resources { store, cache, statistics: &mut statistics, limit, work: self.options.work_limit };
        let done = eliminate(pruned.network, order.variables, with);
        matches!(done, Err(Failure::Infeasible { .. }))
    }
}

/// The network with cost 0 for all that is allowed.
fn prohibitions(network: &Network, store: &mut Store) -> Network {
    let mut known: FxHashMap<ArrayId, ArrayId> = FxHashMap::default();
    let mut result = Network::new(network.sizes.clone());
    for (factor, &array) in network.arrays.iter().enumerate() {
        let array = *known.entry(array).or_insert_with(|| {
            let array = &store[array];
            let cell = |&cell: &i64| if cell >= INFINITE { INFINITE } else { 0 };
            let (shape, cells): (_, Vec<i64>) = (array.shape.clone(), array.cells.iter().map(cell).collect());
            store.intern(shape, &cells)
        });
        result.push(array, network.scope(factor));
    }
    result
}

/// The factors among sorted variables, which are numbered anew.
fn restrict(network: &Network, variables: &[u32]) -> Network {
    let mut part = Network::new(variables.iter().map(|&x| network.sizes[x as usize]).collect());
    let mut scope = Vec::new();
    for (factor, &array) in network.arrays.iter().enumerate() {
        scope.clear();
        scope.extend(
            network.scope(factor).iter().filter_map(|x| variables.binary_search(x).ok()).map(|i| i as u32),
        );
        if scope.len() == network.scope(factor).len() {
            part.push(array, &scope);
        }
    }
    part
}
