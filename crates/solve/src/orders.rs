//! Elimination orders that are known. Most solves of a problem, at one price or another, are of networks that tie the same variables together.

use base::{Fingerprint, Fingerprinter};
use rustc_hash::FxHashMap;

use crate::{
    good_order::good_order,
    network::Network,
    order::{Order, min_weight_below},
    scatter::scatter,
    split_order::min_weight_split,
};

/// What an order is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Whole buckets.
    Whole,
    /// Buckets that are split.
    Split,
    /// Whole buckets after variables were fixed; so many other orders of the kind came before.
    Fixing(u64),
}

/// Orders, and the variables to fix for each, by what the network ties together and the most cells of a table. Lives as long as the solver.
#[derive(Default)]
pub(crate) struct Orders {
    known: FxHashMap<(Kind, u64, Fingerprint), (Order, Vec<u32>)>,
}

impl Orders {
    /// As [`good_order`]; of networks that tie the same variables together, what the tables of the first said.
    pub fn good(&mut self, network: &Network, limit: u64) -> &Order {
        &self.known(Kind::Whole, network, limit, || (good_order(network, limit), Vec::new())).0
    }

    /// The greedy order where buckets over `limit` are split.
    pub fn split(&mut self, network: &Network, limit: u64) -> &Order {
        let make = || (min_weight_split(network, limit, |_| 0), Vec::new());
        &self.known(Kind::Split, network, limit, make).0
    }

    /// As [`min_weight_below`], with the noise of that number.
    pub fn fixing(&mut self, network: &Network, limit: u64, number: u64) -> &(Order, Vec<u32>) {
        let noise = |variable: u32| scatter(number, variable) % 128;
        self.known(Kind::Fixing(number), network, limit, || min_weight_below(network, limit, noise))
    }

    fn known(
        &mut self,
        kind: Kind,
        network: &Network,
        limit: u64,
        make: impl FnOnce() -> (Order, Vec<u32>),
    ) -> &(Order, Vec<u32>) {
        self.known.entry((kind, limit, tied(network))).or_insert_with(make)
    }
}

/// Which variables of which sizes the factors tie together.
fn tied(network: &Network) -> Fingerprint {
    let mut fingerprinter = Fingerprinter::default();
    fingerprinter.part(&bytes(&network.sizes));
    for list in network.scopes() {
        fingerprinter.part(&bytes(list));
    }
    fingerprinter.finish()
}

fn bytes(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::ArrayId;

    #[test]
    fn an_order_is_known_for_what_the_network_ties_together_and_for_nothing_else() {
        let network = |sizes: [u32; 3], arrays: [u32; 2], scopes: [[u32; 2]; 2]| {
            let mut network = Network::new(sizes.to_vec());
            for (array, scope) in arrays.into_iter().zip(scopes) {
                network.push(ArrayId(array), &scope);
            }
            network
        };
        let (path, other_path) = ([[0, 1], [1, 2]], [[0, 1], [0, 2]]);
        let mut orders = Orders::default();
        orders.good(&network([2, 3, 4], [0, 1], path), 64);
        orders.good(&network([2, 3, 4], [7, 8], path), 64);
        assert_eq!(orders.known.len(), 1);
        for different in [network([2, 3, 5], [0, 1], path), network([2, 3, 4], [0, 1], other_path)] {
            let known = orders.known.len();
            let order = orders.good(&different, 64).variables.clone();
            assert_eq!(order, good_order(&different, 64).variables);
            assert_eq!(orders.known.len(), known + 1);
        }
        let same = network([2, 3, 4], [0, 1], path);
        orders.good(&same, 16);
        orders.split(&same, 64);
        orders.fixing(&same, 64, 0);
        orders.fixing(&same, 64, 1);
        assert_eq!(orders.known.len(), 7);
    }
}
