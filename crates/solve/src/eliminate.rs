//! Bucket elimination with a cache: a bucket that was minimised before, in this or an earlier run, costs a look-up.
//!
//! A variable with many factors (a hub: what gradients are clipped by, for one) is in the messages of all layers of a model, and what one
//! of its states costs more than another grows from layer to layer. So that messages repeat all the same, what a message costs by the state
//! of a hub alone is taken out of it and added up beside.
//!
//! A bucket over the limit is [split](crate::split): the sum of the minima of its groups is a lower bound of its minimum.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    Cost, Failure, Statistics,
    array::{ArrayId, INFINITE, Shape, Store, around, normalise},
    kernel::{Bucket, Mask, Scratch},
    network::{Network, ids},
    split::{Group, equalise, split},
};

/// Messages by what they were made from. Lives as long as the solver.
#[derive(Default)]
pub(crate) struct Cache {
    messages: FxHashMap<Box<[u32]>, Message>,
    marginals: FxHashMap<Box<[u32]>, ArrayId>,
    scratch: Scratch,
}

/// The minimum over the pivot of a bucket.
#[derive(Clone)]
struct Message {
    /// The normalised array; [`ArrayId::NONE`] where no axis is left.
    array: ArrayId,
    /// What was subtracted.
    minimum: i64,
    /// What was taken out for hubs: the axis and an array on it.
    of_hubs: SmallVec<[(usize, ArrayId); 1]>,
}

/// A variable is a hub from so many factors on.
const HUB: u32 = 16;

/// Which variables are hubs, and what each of their states costs beside the factors.
struct Hubs {
    is_hub: Vec<bool>,
    costs: FxHashMap<u32, Vec<i64>>,
}

impl Hubs {
    fn new(network: &Network) -> Self {
        let mut degrees = vec![0; network.sizes.len()];
        for factor in 0..network.arrays.len() {
            network.scope(factor).iter().for_each(|&variable| degrees[variable as usize] += 1);
        }
        let is_hub = degrees.into_iter().map(|degree: u32| degree >= HUB).collect();
        Self { is_hub, costs: FxHashMap::default() }
    }

    /// The axes of `scope` that are hubs, the pivot aside.
    fn axes(&self, scope: &[u32], pivot: u32) -> Mask {
        let hubs = scope.iter().enumerate().filter(|&(_, &x)| x != pivot && self.is_hub[x as usize]);
        hubs.fold(0, |mask, (axis, _)| mask | 1 << axis)
    }

    fn add(&mut self, hub: u32, cells: &[i64]) -> Result<(), Failure> {
        let costs = self.costs.entry(hub).or_insert_with(|| vec![0; cells.len()]);
        for (cost, &cell) in costs.iter_mut().zip(cells) {
            let possible = *cost < INFINITE && cell < INFINITE;
            *cost = if possible { *cost + cell } else { INFINITE };
            if possible && *cost >= Cost::LIMIT.0 {
                return Err(Failure::CostOverflow);
            }
        }
        Ok(())
    }
}

/// A network that was eliminated: its messages, and who took part in which bucket.
pub(crate) struct Elimination {
    network: Network,
    order: Vec<u32>,
    bucket_starts: Vec<u32>,
    bucket_factors: Vec<u32>,
    /// The least sum of all factors, or a bound of it where a bucket was split.
    pub minimum: i128,
}

/// For each variable, the factors that are still there, as a chain through the members of scopes.
struct Chains {
    head: Vec<u32>,
    /// The next entry, and the factor of this one.
    links: Vec<(u32, u32)>,
    gone: Vec<bool>,
}

const END: u32 = u32::MAX;

impl Chains {
    fn new(network: &Network) -> Self {
        let mut chains = Self { head: vec![END; network.sizes.len()], links: Vec::new(), gone: Vec::new() };
        for factor in 0..network.arrays.len() {
            chains.add(factor as u32, network.scope(factor));
        }
        chains
    }

    fn add(&mut self, factor: u32, scope: &[u32]) {
        for &variable in scope {
            let head = &mut self.head[variable as usize];
            self.links.push((*head, factor));
            *head = self.links.len() as u32 - 1;
        }
        self.gone.push(false);
    }

    /// Takes the factors of `variable` out, into `bucket`.
    fn take(&mut self, variable: u32, bucket: &mut Vec<u32>) {
        let mut at = self.head[variable as usize];
        while at != END {
            let (next, factor) = self.links[at as usize];
            if !self.gone[factor as usize] {
                self.gone[factor as usize] = true;
                bucket.push(factor);
            }
            at = next;
        }
    }
}

/// What an elimination works with.
pub(crate) struct Resources<'a> {
    pub store: &'a mut Store,
    pub cache: &'a mut Cache,
    pub statistics: &'a mut Statistics,
    /// The most cells of a bucket; what would have more is split.
    pub limit: u64,
    /// The most cells that are computed; fails where there would be more.
    pub work: u64,
}

/// An elimination on its way.
struct Run<'a> {
    done: Elimination,
    chains: Chains,
    hubs: Hubs,
    with: Resources<'a>,
    scope: Vec<u32>,
    key: Vec<u32>,
}

/// Eliminates all variables of `order`: all that have more than one state.
pub(crate) fn eliminate(
    network: Network,
    order: Vec<u32>,
    with: Resources<'_>,
) -> Result<Elimination, Failure> {
    let (chains, hubs) = (Chains::new(&network), Hubs::new(&network));
    let done = Elimination { network, order, bucket_starts: vec![0], bucket_factors: Vec::new(), minimum: 0 };
    let mut run = Run { done, chains, hubs, with, scope: Vec::new(), key: Vec::new() };
    for i in 0..run.done.order.len() {
        run.eliminate(run.done.order[i])?;
    }
    Ok(run.done)
}

impl Run<'_> {
    fn eliminate(&mut self, pivot: u32) -> Result<(), Failure> {
        if let Some(costs) = self.hubs.costs.remove(&pivot) {
            let factor = self.add_to_pivot(pivot, costs)?;
            self.chains.add(factor, &[pivot]);
        }
        let start = self.done.bucket_factors.len();
        self.chains.take(pivot, &mut self.done.bucket_factors);
        self.done.bucket_starts.push(self.done.bucket_factors.len() as u32);
        let factors = Group::from_slice(&self.done.bucket_factors[start..]);
        union_of_scopes(&self.done.network, &factors, &mut self.scope);
        if self.done.network.cells(&self.scope) <= self.with.limit {
            return self.send(pivot, &factors);
        }
        let mut groups = self.groups(&factors);
        self.balance(pivot, &mut groups)?;
        for group in &groups {
            self.send(pivot, group)?;
        }
        Ok(())
    }

    /// The factors of a bucket over the limit in groups.
    fn groups(&self, factors: &[u32]) -> SmallVec<[Group; 2]> {
        let network = &self.done.network;
        let scopes: SmallVec<[&[u32]; 8]> =
            factors.iter().map(|&factor| network.scope(factor as usize)).collect();
        let numbers = split(&scopes, network, self.with.limit);
        let mut groups: SmallVec<[Group; 2]> = SmallVec::new();
        for (&factor, number) in factors.iter().zip(numbers) {
            groups.resize_with(groups.len().max(number + 1), Group::new);
            groups[number].push(factor);
        }
        groups
    }

    /// Adds a factor on the pivot that has these costs, its minimum taken out.
    fn add_to_pivot(&mut self, pivot: u32, mut costs: Vec<i64>) -> Result<u32, Failure> {
        let shape = Shape::from_slice(&[costs.len() as u32]);
        let (array, minimum) = self
            .with
            .store
            .intern_normalised(shape, &mut costs)
            .ok_or_else(|| Failure::Infeasible { variables: ids(&[pivot]) })?;
        self.done.minimum += i128::from(minimum);
        Ok(self.done.network.push(array, &[pivot]))
    }

    /// Moves costs between groups until all agree on what each state of the pivot costs at least.
    fn balance(&mut self, pivot: u32, groups: &mut [Group]) -> Result<(), Failure> {
        if groups.len() < 2 {
            return Ok(());
        }
        let marginals =
            groups.iter().map(|group| self.marginal(pivot, group)).collect::<Result<Vec<_>, Failure>>()?;
        for (group, costs) in groups.iter_mut().zip(equalise(&marginals)) {
            group.push(self.add_to_pivot(pivot, costs)?);
            // It belongs to this group alone and is taken by no bucket.
            self.chains.gone.push(true);
        }
        Ok(())
    }

    /// What each state of the pivot costs at least in a group.
    fn marginal(&mut self, pivot: u32, group: &[u32]) -> Result<Vec<i64>, Failure> {
        let bucket = self.bucket(pivot, group);
        write_key(&bucket, 0, &mut self.key);
        let Resources { store, cache, statistics, work, .. } = &mut self.with;
        if let Some(known) = cache.marginals.get(self.key.as_slice()) {
            return Ok(store[*known].cells.to_vec());
        }
        let marginal = bucket.marginal(store, &mut cache.scratch)?;
        spend(work, statistics, &bucket)?;
        let array = store.intern(Shape::from_slice(&[marginal.len() as u32]), &marginal);
        cache.marginals.insert(self.key.as_slice().into(), array);
        Ok(marginal)
    }

    /// The bucket of some factors; their variables are in `scope` then.
    fn bucket(&mut self, pivot: u32, factors: &[u32]) -> Bucket {
        union_of_scopes(&self.done.network, factors, &mut self.scope);
        describe(&self.done.network, factors, &self.scope, pivot)
    }

    /// Minimises over the pivot, and adds the message to the network.
    fn send(&mut self, pivot: u32, factors: &[u32]) -> Result<(), Failure> {
        let bucket = self.bucket(pivot, factors);
        let hub_axes = self.hubs.axes(&self.scope, pivot);
        write_key(&bucket, hub_axes, &mut self.key);
        let Resources { store, cache, statistics, work, .. } = &mut self.with;
        statistics.count(&bucket.sizes);
        let message = if let Some(message) = cache.messages.get(self.key.as_slice()) {
            statistics.cache_hits += 1;
            message
        } else {
            let message = minimise(&bucket, hub_axes, store, &mut cache.scratch)?;
            let message = message.ok_or_else(|| Failure::Infeasible { variables: ids(&self.scope) })?;
            spend(work, statistics, &bucket)?;
            cache.messages.entry(self.key.as_slice().into()).or_insert(message)
        };
        self.done.minimum += i128::from(message.minimum);
        self.scope.retain(|&x| x != pivot);
        for &(axis, array) in &message.of_hubs {
            self.hubs.add(self.scope[axis], &store[array].cells)?;
        }
        if message.array.is_some() {
            let factor = self.done.network.push(message.array, &self.scope);
            self.chains.add(factor, &self.scope);
        }
        Ok(())
    }
}

/// Counts the cells of a bucket that was computed.
fn spend(left: &mut u64, statistics: &mut Statistics, bucket: &Bucket) -> Result<(), Failure> {
    let cells = bucket.sizes.iter().map(|&size| u64::from(size)).fold(1, u64::saturating_mul);
    statistics.cells_computed += cells;
    *left = left.checked_sub(cells).ok_or(Failure::TooLarge { cells })?;
    Ok(())
}

fn union_of_scopes(network: &Network, factors: &[u32], scope: &mut Vec<u32>) {
    scope.clear();
    for &factor in factors {
        scope.extend_from_slice(network.scope(factor as usize));
    }
    scope.sort_unstable();
    scope.dedup();
}

/// The bucket in positions instead of variables, in an order that depends on nothing else.
fn describe(network: &Network, factors: &[u32], scope: &[u32], pivot: u32) -> Bucket {
    let position = |variable: u32| scope.partition_point(|&x| x < variable);
    let mask =
        |factor: u32| network.scope(factor as usize).iter().fold(0, |mask: Mask, &x| mask | 1 << position(x));
    let mut operands: SmallVec<[(ArrayId, Mask); 8]> =
        factors.iter().map(|&factor| (network.arrays[factor as usize], mask(factor))).collect();
    operands.sort_unstable_by_key(|&(array, mask)| (mask, array));
    let sizes = scope.iter().map(|&x| network.sizes[x as usize]).collect();
    Bucket { sizes, pivot: position(pivot), operands }
}

/// Arrays imply the sizes of their axes, and every axis belongs to an array.
fn write_key(bucket: &Bucket, hub_axes: Mask, key: &mut Vec<u32>) {
    key.clear();
    key.extend([bucket.pivot as u32, hub_axes as u32, (hub_axes >> 32) as u32]);
    for &(array, mask) in &bucket.operands {
        key.extend([array.0, mask as u32, (mask >> 32) as u32]);
    }
}

fn minimise(
    bucket: &Bucket,
    hub_axes: Mask,
    store: &mut Store,
    scratch: &mut Scratch,
) -> Result<Option<Message>, Failure> {
    let mut cells = bucket.minimise(store, scratch)?;
    let Some(minimum) = normalise(&mut cells) else { return Ok(None) };
    let axes: SmallVec<[usize; 12]> = (0..bucket.sizes.len()).filter(|axis| *axis != bucket.pivot).collect();
    let shape: Shape = axes.iter().map(|axis| bucket.sizes[*axis]).collect();
    let mut of_hubs = SmallVec::new();
    for (axis, _) in axes.iter().enumerate().filter(|(_, position)| hub_axes >> **position & 1 == 1) {
        let costs = take_out(&shape, &mut cells, axis);
        if costs.iter().any(|&cost| cost > 0) {
            of_hubs.push((axis, store.intern(Shape::from_slice(&[shape[axis]]), &costs)));
        }
    }
    let nothing_left = shape.is_empty() || (shape.len() == 1 && hub_axes != 0);
    let array = if nothing_left { ArrayId::NONE } else { store.intern(shape, &cells) };
    scratch.give(cells);
    Ok(Some(Message { array, minimum, of_hubs }))
}

/// Subtracts from the cells of each state along `axis` their minimum, and returns these. Where all are forbidden, the minimum says it all.
fn take_out(shape: &Shape, cells: &mut [i64], axis: usize) -> Vec<i64> {
    let (_, size, run) = around(shape, axis);
    let mut least = vec![INFINITE; size];
    for (row, state) in cells.chunks_exact(run).zip((0..size).cycle()) {
        least[state] = row.iter().copied().fold(least[state], i64::min);
    }
    for (row, state) in cells.chunks_exact_mut(run).zip((0..size).cycle()) {
        let least = least[state];
        for cell in row {
            *cell = if least == INFINITE {
                0
            } else if *cell < INFINITE {
                *cell - least
            } else {
                INFINITE
            };
        }
    }
    least
}

impl Elimination {
    /// A state for each variable that reaches the minimum: the last eliminated first, of equal states the smallest.
    pub fn choose(&self, store: &Store) -> Vec<u32> {
        let mut choices = vec![0; self.network.sizes.len()];
        let mut sums = Vec::new();
        for (i, &variable) in self.order.iter().enumerate().rev() {
            sums.clear();
            sums.resize(self.network.sizes[variable as usize] as usize, 0_i64);
            let bucket = self.bucket_starts[i] as usize..self.bucket_starts[i + 1] as usize;
            for &factor in &self.bucket_factors[bucket] {
                self.add_row(factor, variable, &choices, store, &mut sums);
            }
            let best = (0..sums.len()).min_by_key(|&state| sums[state]);
            choices[variable as usize] = best.expect("a variable has a state") as u32;
        }
        choices
    }

    /// Adds the costs of all states of `variable`, all others being as chosen.
    fn add_row(&self, factor: u32, variable: u32, choices: &[u32], store: &Store, sums: &mut [i64]) {
        let array = &store[self.network.arrays[factor as usize]];
        let scope = self.network.scope(factor as usize);
        let (mut offset, mut step, mut stride) = (0, 0, 1);
        for (&x, &size) in scope.iter().zip(&array.shape).rev() {
            if x == variable {
                step = stride;
            } else {
                offset += choices[x as usize] as usize * stride;
            }
            stride *= size as usize;
        }
        for (state, sum) in sums.iter_mut().enumerate() {
            *sum = sum.saturating_add(array.cells[offset + state * step]);
        }
    }
}
