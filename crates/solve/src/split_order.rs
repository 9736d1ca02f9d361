//! Elimination orders for buckets that are [split](crate::split) where they have too many cells: what a split keeps apart is
//! not tied together for the variables that come later.

use smallvec::SmallVec;

use crate::{
    network::Network,
    order::{Greedy, Order},
    split::split,
};

type Scope = SmallVec<[u32; 8]>;

/// The scopes of the factors that are still there, by variable.
struct Scopes {
    all: Vec<Scope>,
    gone: Vec<bool>,
    of: Vec<Vec<u32>>,
}

impl Scopes {
    fn new(network: &Network) -> Self {
        let mut scopes =
            Self { all: Vec::new(), gone: Vec::new(), of: vec![Vec::new(); network.sizes.len()] };
        for factor in 0..network.arrays.len() {
            let scope = network.scope(factor).iter().copied();
            scopes.add(scope.filter(|&x| network.sizes[x as usize] > 1).collect());
        }
        scopes
    }

    /// Adds a scope, unless it ties nothing together.
    fn add(&mut self, scope: Scope) {
        if scope.len() > 1 {
            scope.iter().for_each(|&x| self.of[x as usize].push(self.all.len() as u32));
            self.all.push(scope);
            self.gone.push(false);
        }
    }

    /// Takes the scopes of a variable out.
    fn take(&mut self, variable: u32) -> Vec<u32> {
        let mut taken = std::mem::take(&mut self.of[variable as usize]);
        taken.retain(|&scope| !std::mem::replace(&mut self.gone[scope as usize], true));
        taken
    }
}

/// The greedy order where buckets over `limit` are split.
pub(crate) fn min_weight_split(network: &Network, limit: u64, noise: impl Fn(u32) -> u64) -> Order {
    let mut greedy = Greedy::new(network, noise);
    let mut scopes = Scopes::new(network);
    while let Some(variable) = greedy.next() {
        let cells = greedy.cells(variable);
        let taken = scopes.take(variable);
        if cells <= limit {
            let clique = Scope::from_vec(greedy.eliminate(variable, cells));
            scopes.add(clique);
            continue;
        }
        let groups = groups(variable, &taken, &scopes, network, limit);
        greedy.eliminate_split(variable, &groups);
        for group in groups {
            scopes.add(group);
        }
    }
    greedy.order
}

/// The other variables of each group.
fn groups(variable: u32, taken: &[u32], scopes: &Scopes, network: &Network, limit: u64) -> Vec<Scope> {
    let taken: SmallVec<[&[u32]; 8]> = taken.iter().map(|&scope| &scopes.all[scope as usize][..]).collect();
    let numbers = split(&taken, network, limit);
    let mut groups = vec![Scope::new(); 1 + numbers.iter().copied().max().unwrap_or(0)];
    for (scope, number) in taken.iter().zip(numbers) {
        groups[number].extend(scope.iter().copied().filter(|&x| x != variable));
    }
    for group in &mut groups {
        group.sort_unstable();
        group.dedup();
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Failure, Statistics,
        approximate::value,
        array::{INFINITE, Shape, Store},
        eliminate::{Cache, Resources, eliminate},
        scatter::scatter,
    };

    const VARIABLES: u32 = 6;
    const STATES: u32 = 3;

    /// Tables on every variable, on random pairs and triples; a tenth of the cells forbidden.
    fn network(seed: u64, store: &mut Store) -> Network {
        let mut network = Network::new(vec![STATES; VARIABLES as usize]);
        let any = |i: u32| (scatter(seed, i) % u64::from(VARIABLES)) as u32;
        let several = (0..9).map(|factor| (0..2 + factor % 2).map(|i| any(100 * factor + i)).collect());
        let scopes = (0..VARIABLES).map(|x| vec![x]).chain(several);
        for (factor, mut scope) in (0..).zip(scopes) {
            scope.sort_unstable();
            scope.dedup();
            let cells: Vec<i64> = (0..STATES.pow(scope.len() as u32))
                .map(|cell| scatter(seed, 1000 * (factor + 1) + cell))
                .map(|number| if number % 10 == 0 { INFINITE } else { (number % 50) as i64 })
                .collect();
            let shape: Shape = scope.iter().map(|_| STATES).collect();
            network.push(store.intern(shape, &cells), &scope);
        }
        network
    }

    fn least(network: &Network, store: &Store) -> Option<i128> {
        let all = 0..STATES.pow(VARIABLES);
        let choices =
            |number: u32| (0..VARIABLES).map(|x| number / STATES.pow(x) % STATES).collect::<Vec<_>>();
        all.filter_map(|number| value(network, store, &choices(number))).min()
    }

    #[test]
    fn split_buckets_give_a_bound_and_unsplit_ones_the_minimum() {
        let (mut close, mut split) = (0, 0);
        for seed in 0..100 {
            let mut store = Store::default();
            let network = network(seed, &mut store);
            let least = least(&network, &store);
            for limit in [4, 9, 27, 81, u64::MAX] {
                let order = min_weight_split(&network, limit, |_| 0);
                assert_eq!(order.variables.len(), VARIABLES as usize);
                let (cache, statistics) = (&mut Cache::default(), &mut Statistics::default());
                let with = Resources { store: &mut store, cache, statistics, limit, work: u64::MAX };
                match (eliminate(network.clone(), order.variables, with), least) {
                    (Ok(done), Some(least)) => {
                        assert!(
                            done.minimum <= least,
                            "seed {seed}: {} is no bound of {least}",
                            done.minimum
                        );
                        assert!(limit < u64::MAX || done.minimum == least);
                        let chosen = value(&network, &store, &done.choose(&store));
                        assert!(chosen.is_none_or(|chosen| chosen >= least));
                        assert!(limit < u64::MAX || chosen == Some(least));
                        if limit == 27 && statistics.eliminations > VARIABLES {
                            split += 1;
                            close += u32::from(done.minimum * 10 >= least * 8);
                        }
                    }
                    (Err(Failure::Infeasible { .. }) | Ok(_), None) => {}
                    (failed, least) => panic!("seed {seed}: {:?} where the least is {least:?}", failed.err()),
                }
            }
        }
        assert!(split > 20 && close * 10 > split * 8, "{close} of {split} bounds are within a fifth");
    }
}
