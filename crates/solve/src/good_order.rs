//! Better orders than the greedy one, where it needs large tables.
//!
//! A try adds noise to the greedy choice: the same noise for variables with the same tables around them, so that layers
//! that are alike are eliminated alike and the elimination cache still answers for all but one.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::{
    network::Network,
    order::{Order, min_weight, min_weight_within},
    scatter::scatter,
};

/// Tables with fewer cells take no longer to compute than a few tries.
const LARGE: u64 = 1 << 22;
const TRIES: u64 = 12;
/// Noise is below this many 64ths of a bit.
const NOISE: u64 = 64;

/// Orders of tries have needed up to six times fewer cells than the greedy one, never so many times fewer.
const HOPELESS: u64 = 16;

/// The greedy order, or where that needs tables of more cells than `limit` the first of several that does not, if there is one.
pub(crate) fn good_order(network: &Network, limit: u64) -> Order {
    let mut best = min_weight(network, |_| 0);
    let good = limit.min(LARGE);
    if best.largest <= good || best.largest > limit.saturating_mul(HOPELESS) {
        return best;
    }
    let colours = colours(network);
    for seed in 1..=TRIES {
        // Over the limit no order is of use.
        let most = best.largest.min(limit);
        let attempt = min_weight_within(network, most, |x| noise(seed, colours[x as usize]));
        let better = |order: &Order| (order.largest, order.total) < (best.largest, best.total);
        if let Some(order) = attempt.filter(better) {
            best = order;
        }
        if best.largest <= good {
            break;
        }
    }
    best
}

/// What a try adds to the logarithm of a bucket: nothing where `seed` is 0.
pub(crate) fn noise(seed: u64, colour: u32) -> u64 {
    if seed == 0 { 0 } else { scatter(seed, colour) % NOISE }
}

/// A number for each variable that depends on the tables around it only.
pub(crate) fn colours(network: &Network) -> Vec<u32> {
    let incidence = network.incidence();
    let colour = |variable: u32| {
        let around = incidence.of(variable).iter();
        let mut tables: Vec<(u32, u32)> =
            around.map(|&(factor, axis)| (network.arrays[factor as usize].0, axis)).collect();
        tables.sort_unstable();
        let mut hasher = FxHasher::default();
        tables.hash(&mut hasher);
        (hasher.finish() >> 32) as u32
    };
    (0..network.sizes.len() as u32).map(colour).collect()
}
