//! Better orders than the greedy one, where it needs large tables.
//!
//! A try adds noise to the greedy choice: the same noise for variables with the same tables around them, so that layers
//! that are alike are eliminated alike and the elimination cache still answers for all but one.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::{
    approximate::scatter,
    network::Network,
    order::{Order, min_weight},
};

/// Tables with fewer cells take no longer to compute than a few tries.
const LARGE: u64 = 1 << 22;
const TRIES: u64 = 12;
/// Noise is below this many 64ths of a bit.
const NOISE: u64 = 64;

/// The greedy order, or where that needs large tables the one of several that needs the smallest.
pub(crate) fn good_order(network: &Network) -> Order {
    let plain = min_weight(network, |_| 0);
    if plain.largest < LARGE {
        return plain;
    }
    let colours = colours(network);
    let attempt = |seed| min_weight(network, |x| scatter(seed, colours[x as usize]) % NOISE);
    let tries = (1..=TRIES).map(attempt);
    std::iter::once(plain)
        .chain(tries)
        .min_by_key(|order| (order.largest, order.total))
        .expect("the greedy order")
}

/// A number for each variable that depends on the tables around it only.
fn colours(network: &Network) -> Vec<u32> {
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
