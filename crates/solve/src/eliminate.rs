//! Bucket elimination with a cache: a bucket that was minimised before, in this or an earlier run, costs a look-up.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    Failure, Statistics,
    array::{ArrayId, Shape, Store, normalise},
    kernel::{Bucket, Mask, Scratch},
    network::{Network, ids},
};

/// Messages by what they were made from. Lives as long as the solver.
#[derive(Default)]
pub(crate) struct Cache {
    messages: FxHashMap<Box<[u32]>, Message>,
    scratch: Scratch,
}

/// The minimum over the pivot of a bucket.
#[derive(Clone, Copy)]
struct Message {
    /// The normalised array; [`ArrayId::NONE`] where no axis is left.
    array: ArrayId,
    /// What was subtracted.
    minimum: i64,
}

/// A network that was eliminated: its messages, and who took part in which bucket.
pub(crate) struct Elimination {
    network: Network,
    order: Vec<u32>,
    bucket_starts: Vec<u32>,
    bucket_factors: Vec<u32>,
    /// The least sum of all factors.
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

/// Eliminates all variables of `order`: all that have more than one state.
pub(crate) fn eliminate(
    network: Network,
    order: Vec<u32>,
    store: &mut Store,
    cache: &mut Cache,
    statistics: &mut Statistics,
) -> Result<Elimination, Failure> {
    let mut chains = Chains::new(&network);
    let mut done =
        Elimination { network, order, bucket_starts: vec![0], bucket_factors: Vec::new(), minimum: 0 };
    let (mut scope, mut key) = (Vec::new(), Vec::new());
    for i in 0..done.order.len() {
        let pivot = done.order[i];
        let start = done.bucket_factors.len();
        chains.take(pivot, &mut done.bucket_factors);
        let factors = &done.bucket_factors[start..];
        done.bucket_starts.push(done.bucket_factors.len() as u32);
        union_of_scopes(&done.network, factors, &mut scope);
        let bucket = describe(&done.network, factors, &scope, pivot);
        write_key(&bucket, &mut key);
        statistics.count(&bucket.sizes);
        let message = if let Some(&message) = cache.messages.get(key.as_slice()) {
            statistics.cache_hits += 1;
            message
        } else {
            let message = minimise(&bucket, store, &mut cache.scratch)?;
            let message = message.ok_or_else(|| Failure::Infeasible { variables: ids(&scope) })?;
            statistics.cells_computed += cells(&bucket.sizes);
            cache.messages.insert(key.as_slice().into(), message);
            message
        };
        done.minimum += i128::from(message.minimum);
        if message.array.is_some() {
            scope.retain(|&x| x != pivot);
            let factor = done.network.push(message.array, &scope);
            chains.add(factor, &scope);
        }
    }
    Ok(done)
}

fn cells(sizes: &[u32]) -> u64 {
    sizes.iter().map(|&size| u64::from(size)).fold(1, u64::saturating_mul)
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
fn write_key(bucket: &Bucket, key: &mut Vec<u32>) {
    key.clear();
    key.push(bucket.pivot as u32);
    for &(array, mask) in &bucket.operands {
        key.extend([array.0, mask as u32, (mask >> 32) as u32]);
    }
}

fn minimise(bucket: &Bucket, store: &mut Store, scratch: &mut Scratch) -> Result<Option<Message>, Failure> {
    let mut cells = bucket.minimise(store, scratch)?;
    let others = bucket.sizes.iter().enumerate().filter(|&(axis, _)| axis != bucket.pivot);
    let shape: Shape = others.map(|(_, &size)| size).collect();
    let message = if shape.is_empty() {
        normalise(&mut cells).map(|minimum| Message { array: ArrayId::NONE, minimum })
    } else {
        store.intern_normalised(shape, &mut cells).map(|(array, minimum)| Message { array, minimum })
    };
    scratch.give(cells);
    Ok(message)
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
