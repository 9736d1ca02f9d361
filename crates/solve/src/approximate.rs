//! What to do where exact elimination needs too large a table: a lower bound, good choices, and elimination of what lies
//! between them. Exact where the bound leaves few enough states; otherwise choices and bound differ, and both are said.

use rustc_hash::FxHashMap;

use crate::{
    Failure, Statistics,
    array::{ArrayId, INFINITE, Store, strides},
    dual::{minima, reparametrise},
    eliminate::{Cache, Resources, eliminate},
    failure::within_limits,
    good_order::{self, noise},
    network::{Incidence, Network},
    order::{Order, min_weight},
    orders::Orders,
    prune::{Pruned, Pruner},
    split_order::min_weight_split,
};

/// Rounds of bound, choices and pruning.
const ROUNDS: u32 = 6;
/// Sweeps forward and backward in each round.
const SWEEPS: u32 = 15;
/// Moves that improve the choices in each round.
const MOVES: u64 = 6;
/// Moves that gain nothing one after the other, after which no more are tried.
const IDLE: u32 = 3;
/// A gap is small where cost is at least so many times as large.
const SMALL_GAP: i128 = 256;
/// A gap is wide where cost is less than so many times as large: the dual bound, which takes long, has to narrow it.
const WIDE_GAP: i128 = 4;
/// Networks of at most so many cells in all get the dual bound too.
const DUAL_CELLS: u64 = 1 << 16;
/// Table limits are lowered by so many times where an elimination computes too many cells.
const LOWER: u64 = 16;
/// The least that a table limit is lowered to: eliminations under it compute as many cells as they have to.
const LEAST_LIMIT: u64 = 1 << 10;
/// No more is tried behind so many times the work of one elimination at most.
const TRIES: u64 = 4;
/// Moves use smaller tables than the exact elimination.
const MOVE_LIMIT: u64 = 1 << 18;

/// What the solver lends.
pub(crate) struct Means<'a> {
    pub store: &'a mut Store,
    pub cache: &'a mut Cache,
    pub pruner: &'a mut Pruner,
    pub known_orders: &'a mut Orders,
    pub statistics: &'a mut Statistics,
    pub table_limit: u64,
    pub work_limit: u64,
    pub orders: u32,
    pub dual: bool,
    pub enough: u32,
}

impl Means<'_> {
    /// The most cells that an elimination computes.
    fn work(&self) -> u64 {
        if self.table_limit > LEAST_LIMIT { self.work_limit } else { u64::MAX }
    }
}

/// Choices and their sum in the network that was given, and what no choices fall below.
pub(crate) struct Bracket {
    pub choices: Vec<u32>,
    pub bound: i128,
}

/// The search: a network that shrinks, and the best choices in terms of the first one.
struct Search<'a, 'b> {
    means: &'a mut Means<'b>,
    /// The cells that were computed before.
    computed: u64,
    first: Network,
    network: Network,
    /// The states of the first network that those of the present one are; `None` where they are the same.
    states: Vec<Option<Box<[u32]>>>,
    /// The sums of the first network are those of the present one plus this.
    lower: i128,
    /// A bound of the first network that another way gave.
    proved: i128,
    best: Option<(i128, Vec<u32>)>,
    /// Whether something was too large to be added.
    overflows: bool,
}

/// Bounds the least sum of a network from both sides. Fails where no choices were found that are allowed.
pub(crate) fn bracket(network: Network, means: &mut Means<'_>) -> Result<Bracket, Failure> {
    let states = vec![None; network.sizes.len()];
    let (computed, first) = (means.statistics.cells_computed, network.clone());
    let (lower, proved, best, overflows) = (0, 0, None, false);
    let mut search = Search { means, computed, first, network, states, lower, proved, best, overflows };
    search.split_buckets()?;
    let mut largest = 0;
    if !search.is_over()
        && !search.is_enough()
        && (search.means.dual && search.is_wide() || search.is_small())
    {
        largest = search.narrow()?;
    }
    let lower = search.lower.max(search.proved);
    match search.best {
        Some((value, choices)) => Ok(Bracket { choices, bound: lower.min(value) }),
        None if search.overflows => Err(Failure::CostOverflow),
        None => Err(Failure::TooLarge { cells: largest }),
    }
}

impl Search<'_, '_> {
    fn gap(&self) -> Option<i128> {
        self.best.as_ref().map(|(value, _)| value - self.lower)
    }

    /// Whether nothing better than the best choices is left.
    fn is_closed(&self) -> bool {
        self.best.as_ref().is_some_and(|&(value, _)| value <= self.lower.max(self.proved))
    }

    /// Whether nothing better is left, or enough was tried for the choices that are known.
    fn is_over(&self) -> bool {
        let Means { statistics, work_limit, .. } = &*self.means;
        let tried = statistics.cells_computed - self.computed;
        self.is_closed() || self.best.is_some() && tried / TRIES > *work_limit
    }

    /// Whether the best choices are as close to the bound as was asked for.
    fn is_enough(&self) -> bool {
        let parts = i128::from(self.means.enough);
        parts > 0 && self.best.as_ref().is_some_and(|&(value, _)| (value - self.proved) * parts <= value)
    }

    /// Whether no other order can gain much.
    fn is_nearly_closed(&self) -> bool {
        self.best.as_ref().is_some_and(|&(value, _)| (value - self.proved) * SMALL_GAP <= value)
    }

    /// Whether there are no choices yet, or far from the bound.
    fn is_wide(&self) -> bool {
        self.best.as_ref().is_none_or(|&(value, _)| (value - self.proved) * WIDE_GAP > value)
    }

    /// Whether the dual bound takes no longer than the rest.
    fn is_small(&self) -> bool {
        let cells =
            (0..self.network.arrays.len()).map(|factor| self.network.cells(self.network.scope(factor)));
        cells.fold(0, u64::saturating_add) <= DUAL_CELLS
    }

    /// Bounds and choices from elimination with split buckets, in several orders; then moves from the best choices, or from the last
    /// where all are forbidden. Where one order is enough, allowed choices are too: moves take longer than they gain.
    fn split_buckets(&mut self) -> Result<(), Failure> {
        let mut colours = None;
        let mut choices = Vec::new();
        for seed in 0..u64::from(self.means.orders.max(1)) {
            let mut order_below = |search: &mut Self, limit| match seed {
                0 => search.means.known_orders.split(&search.first, limit).clone(),
                seed => {
                    let colours = colours.get_or_insert_with(|| good_order::colours(&search.first));
                    min_weight_split(&search.first, limit, |x| noise(seed, colours[x as usize]))
                }
            };
            let (minimum, found) = loop {
                let limit = self.means.table_limit;
                let order = order_below(self, limit);
                match self.split_elimination(order, seed == 0) {
                    Ok(found) => break found,
                    // What was moved between groups is too large to be added.
                    Err(Failure::CostOverflow) => {
                        self.overflows = true;
                        return Ok(());
                    }
                    Err(Failure::TooLarge { .. }) if limit > LEAST_LIMIT => {
                        self.means.table_limit = (limit / LOWER).max(LEAST_LIMIT);
                    }
                    Err(failure) => return Err(failure),
                }
            };
            self.proved = self.proved.max(minimum);
            choices = found;
            self.consider(&choices);
            if self.is_nearly_closed() || self.is_over() {
                return Ok(());
            }
        }
        let best = self.best.as_ref().map(|(_, best)| best.clone());
        if best.is_some() && self.means.orders <= 1 {
            return Ok(());
        }
        self.improve(best.unwrap_or(choices), 0);
        Ok(())
    }

    /// A bound and choices. What is not `kept` for later solves is forgotten, to save memory.
    fn split_elimination(&mut self, order: Order, kept: bool) -> Result<(i128, Vec<u32>), Failure> {
        let network = self.first.clone();
        if kept {
            let done = eliminate(network, order.variables, self.resources())?;
            return Ok((done.minimum, done.choose(self.means.store)));
        }
        let (mut store, mut cache) = (self.means.store.clone(), Cache::default());
        let work = self.means.work();
        let Means { statistics, table_limit: limit, .. } = &mut *self.means;
        let with = Resources { store: &mut store, cache: &mut cache, statistics, limit: *limit, work };
        let done = eliminate(network, order.variables, with)?;
        Ok((done.minimum, done.choose(&store)))
    }

    fn resources(&mut self) -> Resources<'_> {
        let work = self.means.work();
        let Means { store, cache, statistics, table_limit, .. } = &mut *self.means;
        Resources { store, cache, statistics, limit: *table_limit, work }
    }

    /// Rounds of the dual bound, choices read off it, and elimination of the states between both. Returns the largest bucket at
    /// the end.
    fn narrow(&mut self) -> Result<u64, Failure> {
        let mut largest = 0;
        for round in 0..ROUNDS {
            let (network, gained) = reparametrise(&self.network, self.means.store, SWEEPS);
            self.network = network;
            self.lower += gained;
            let choices = decode(&self.network, self.means.store);
            self.improve(choices, u64::from(round) * MOVES);
            if self.is_over() {
                break;
            }
            self.near_bound();
            largest = self.prune_by_bound()?;
            if self.is_over() {
                break;
            }
            if largest <= self.means.table_limit {
                self.finish()?;
                break;
            }
        }
        Ok(largest)
    }

    /// Takes choices of the present network into account.
    fn consider(&mut self, choices: &[u32]) {
        let original = |(states, &choice): (&Option<Box<[u32]>>, &u32)| {
            states.as_ref().map_or(choice, |states| states[choice as usize])
        };
        let choices: Vec<u32> = self.states.iter().zip(choices).map(original).collect();
        let better = |&value: &i128| self.best.as_ref().is_none_or(|&(best, _)| value < best);
        if let Some(value) = value(&self.first, self.means.store, &choices).filter(better) {
            self.best = Some((value, choices));
        }
    }

    /// Improves choices by exact elimination of all but a few variables at a time.
    fn improve(&mut self, mut choices: Vec<u32>, seed: u64) {
        let mut present = value(&self.network, self.means.store, &choices);
        self.consider(&choices);
        let mut idle = 0;
        for turn in 0..MOVES {
            if self.is_over() || idle == IDLE {
                break;
            }
            let network = match present {
                Some(_) => self.network.clone(),
                None => soften(&self.network, self.means.store),
            };
            let limit = MOVE_LIMIT.min(self.means.table_limit);
            let (order, fixed) = self.means.known_orders.fixing(&network, limit, seed + turn);
            let kept: Vec<_> = fixed.iter().map(|&x| (x, vec![choices[x as usize]])).collect();
            let order = order.variables.clone();
            let Ok((moved, _)) = self.minimise_in(order, network, &kept) else { continue };
            choices = moved;
            let before = present;
            present = value(&self.network, self.means.store, &choices);
            idle = if present.is_some() && present == before { idle + 1 } else { 0 };
            self.consider(&choices);
        }
    }

    /// Exact elimination of the given states, unless a table is over the limit: then `None`.
    fn minimise(
        &mut self,
        network: Network,
        kept: &[(u32, Vec<u32>)],
        limit: u64,
    ) -> Result<Option<(Vec<u32>, i128)>, Failure> {
        let pruned = self.means.pruner.prune(network, kept, self.means.store)?;
        let order = min_weight(&pruned.network, |_| 0);
        if order.largest > limit.min(self.means.table_limit) {
            return Ok(None);
        }
        self.eliminated(pruned, order.variables).map(Some)
    }

    /// Exact elimination of the given states in an order of the network without those that have one state.
    fn minimise_in(
        &mut self,
        mut order: Vec<u32>,
        network: Network,
        kept: &[(u32, Vec<u32>)],
    ) -> Result<(Vec<u32>, i128), Failure> {
        let pruned = self.means.pruner.prune(network, kept, self.means.store)?;
        order.retain(|variable| pruned.network.sizes[*variable as usize] > 1);
        self.eliminated(pruned, order)
    }

    fn eliminated(&mut self, mut pruned: Pruned, order: Vec<u32>) -> Result<(Vec<u32>, i128), Failure> {
        let network = std::mem::take(&mut pruned.network);
        let done = eliminate(network, order, self.resources())?;
        Ok((pruned.original(&done.choose(self.means.store)), pruned.constant + done.minimum))
    }

    /// Per variable, the states in which the sum is at most `excess` over the bound, for all that is known.
    fn states_within(&self, excess: i128) -> Vec<(u32, Vec<u32>)> {
        let incidence = self.network.incidence();
        let mut kept = Vec::new();
        for variable in 0..self.network.sizes.len() as u32 {
            let slack = slack(&self.network, &incidence, self.means.store, variable);
            let near: Vec<u32> =
                (0..slack.len() as u32).filter(|&state| slack[state as usize] <= excess).collect();
            if near.len() < slack.len() {
                kept.push((variable, near));
            }
        }
        kept
    }

    /// Eliminates the states nearest to the bound, as many as tables allow.
    fn near_bound(&mut self) {
        let mut excess = self.gap().unwrap_or(i128::from(INFINITE) - 1);
        for _ in 0..40 {
            let kept = self.states_within(excess);
            match self.minimise(self.network.clone(), &kept, MOVE_LIMIT) {
                Ok(Some((choices, _))) => return self.consider(&choices),
                // With fewer states there is no solution either.
                Err(Failure::Infeasible { .. }) => return,
                _ => excess /= 2,
            }
        }
    }

    /// Takes out the states that are in no choices better than the best known; returns the largest table of what is left.
    fn prune_by_bound(&mut self) -> Result<u64, Failure> {
        let kept = self.gap().map_or_else(Vec::new, |gap| self.states_within(gap));
        let network = std::mem::take(&mut self.network);
        let Pruned { network, states, constant } =
            self.means.pruner.prune(network, &kept, self.means.store)?;
        for (old, new) in self.states.iter_mut().zip(states) {
            let Some(new) = new else { continue };
            *old = Some(match old {
                Some(old) => new.iter().map(|&state| old[state as usize]).collect(),
                None => new,
            });
        }
        self.lower += constant;
        self.network = network;
        Ok(min_weight(&self.network, |_| 0).largest)
    }

    /// Eliminates what is left: the optimum is there, or it is the best choices known.
    fn finish(&mut self) -> Result<(), Failure> {
        let network = std::mem::take(&mut self.network);
        if let Some((choices, minimum)) = within_limits(self.minimise(network, &[], u64::MAX))?.flatten() {
            self.consider(&choices);
            self.lower += minimum;
        }
        Ok(())
    }
}

/// The sum of a network's tables, or `None` where one forbids the choices.
pub(crate) fn value(network: &Network, store: &Store, choices: &[u32]) -> Option<i128> {
    let cell = |factor: usize| {
        let array = &store[network.arrays[factor]];
        let steps = strides(&array.shape);
        let offsets =
            network.scope(factor).iter().zip(&steps).map(|(&x, step)| choices[x as usize] as usize * step);
        array.cells[offsets.sum::<usize>()]
    };
    let cells = (0..network.arrays.len()).map(cell);
    cells.map(|cell| (cell < INFINITE).then_some(i128::from(cell))).sum()
}

/// Per state, what the tables around a variable cost at least: all others are at least 0.
fn slack(network: &Network, incidence: &Incidence, store: &Store, variable: u32) -> Vec<i128> {
    let mut slack = vec![0; network.sizes[variable as usize] as usize];
    for &(factor, axis) in incidence.of(variable) {
        let array = &store[network.arrays[factor as usize]];
        for (slack, minimum) in slack.iter_mut().zip(minima(&array.shape, &array.cells, axis as usize)) {
            *slack += i128::from(minimum);
        }
    }
    slack
}

/// Chooses one variable after the other, each as cheap as the tables and the choices before allow.
fn decode(network: &Network, store: &Store) -> Vec<u32> {
    let incidence = network.incidence();
    let mut choices = vec![0; network.sizes.len()];
    for variable in 0..network.sizes.len() as u32 {
        let mut sums = vec![0_i128; network.sizes[variable as usize] as usize];
        for &(factor, axis) in incidence.of(variable) {
            let array = &store[network.arrays[factor as usize]];
            let scope = network.scope(factor as usize);
            let (mut shape, mut cells) = (array.shape.clone(), array.cells.to_vec());
            for (axis, &x) in scope.iter().enumerate().take(axis as usize) {
                cells = select(&shape, &cells, axis, choices[x as usize]);
                shape[axis] = 1;
            }
            for (sum, minimum) in sums.iter_mut().zip(minima(&shape, &cells, axis as usize)) {
                *sum += i128::from(minimum);
            }
        }
        choices[variable as usize] = (0..sums.len()).min_by_key(|&state| sums[state]).unwrap_or(0) as u32;
    }
    choices
}

/// The cells of one state of an axis.
fn select(shape: &[u32], cells: &[i64], axis: usize, state: u32) -> Vec<i64> {
    let run: usize = shape[axis + 1..].iter().map(|&size| size as usize).product();
    let blocks = cells.chunks_exact(run * shape[axis] as usize);
    blocks.flat_map(|block| &block[state as usize * run..][..run]).copied().collect()
}

/// The network with a penalty instead of every prohibition, greater than all that is allowed where that fits.
fn soften(network: &Network, store: &mut Store) -> Network {
    let total: i64 = network.arrays.iter().map(|&array| store[array].max).fold(1, i64::saturating_add);
    let penalty = total.min(1 << 48);
    let mut softened: FxHashMap<ArrayId, ArrayId> = FxHashMap::default();
    let mut result = Network::new(network.sizes.clone());
    for (factor, &array) in network.arrays.iter().enumerate() {
        let soft = *softened.entry(array).or_insert_with(|| {
            let array = &store[array];
            let soft = |&cell: &i64| if cell >= INFINITE { penalty } else { cell };
            let (shape, cells): (_, Vec<i64>) = (array.shape.clone(), array.cells.iter().map(soft).collect());
            store.intern(shape, &cells)
        });
        result.push(soft, network.scope(factor));
    }
    result
}
