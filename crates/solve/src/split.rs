//! Mini-buckets: a bucket that would have too many cells is split in groups of factors, each of which is minimised over the pivot
//! by itself (Dechter and Rish 2003). Costs are moved between the groups before, so that they agree on what each state of the
//! pivot costs at least (Ihler et al. 2012): that raises the bound, and choices that are read off suffer less.

use std::cmp::Reverse;

use smallvec::SmallVec;

use crate::{array::INFINITE, network::Network};

/// Numbers of the factors of a group.
pub(crate) type Group = SmallVec<[u32; 8]>;

/// The number of a group for each scope. A group has at most `limit` cells, or one scope.
///
/// Large scopes come first; each joins the group that grows least.
pub(crate) fn split(scopes: &[&[u32]], network: &Network, limit: u64) -> SmallVec<[usize; 8]> {
    let mut order: SmallVec<[usize; 8]> = (0..scopes.len()).collect();
    order.sort_by_key(|&i| (Reverse(network.cells(scopes[i])), scopes[i]));
    let mut unions: Vec<Vec<u32>> = Vec::new();
    let mut numbers = SmallVec::from_elem(0, scopes.len());
    for i in order {
        let number = best_group(&unions, scopes[i], network, limit).unwrap_or(unions.len());
        unions.resize_with(unions.len().max(number + 1), Vec::new);
        unions[number].extend_from_slice(scopes[i]);
        unions[number].sort_unstable();
        unions[number].dedup();
        numbers[i] = number;
    }
    numbers
}

/// Of the groups that a scope can join within the limit the one that grows least, the first of equals.
fn best_group(unions: &[Vec<u32>], scope: &[u32], network: &Network, limit: u64) -> Option<usize> {
    let growth = |union: &Vec<u32>| {
        let new: SmallVec<[u32; 8]> =
            scope.iter().copied().filter(|x| union.binary_search(x).is_err()).collect();
        network.cells(&new)
    };
    let grown = unions.iter().enumerate().map(|(number, union)| (growth(union), number));
    let fits =
        |&(growth, number): &(u64, usize)| network.cells(&unions[number]).saturating_mul(growth) <= limit;
    grown.filter(fits).min().map(|(_, number)| number)
}

/// What to add to each of several tables of costs by state so that all are equal. The sum of what is added is 0 where all
/// tables allow a state; what one forbids, all do.
pub(crate) fn equalise(marginals: &[Vec<i64>]) -> Vec<Vec<i64>> {
    let count = marginals.len() as i128;
    let added = |number: usize, state: usize| {
        if marginals.iter().any(|marginal| marginal[state] >= INFINITE) {
            return INFINITE;
        }
        let sum: i128 = marginals.iter().map(|marginal| i128::from(marginal[state])).sum();
        let share = sum / count + i128::from((number as i128) < sum % count);
        share as i64 - marginals[number][state]
    };
    (0..marginals.len()).map(|i| (0..marginals[i].len()).map(|state| added(i, state)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_keep_the_limit_where_a_factor_does() {
        let network = Network::new(vec![4; 6]);
        let scopes: [&[u32]; 5] = [&[0, 1, 2], &[0, 3], &[0, 1], &[0, 4], &[0, 1, 2, 3, 4, 5]];
        assert_eq!(split(&scopes, &network, 64)[..], [1, 2, 1, 2, 0]);
        assert_eq!(split(&scopes[..4], &network, 256)[..], [0, 0, 0, 1]);
    }

    #[test]
    fn equal_tables_keep_the_sum_and_what_is_forbidden() {
        let added = equalise(&[vec![5, 0, 7], vec![0, 3, INFINITE], vec![2, 0, 1]]);
        assert_eq!(added, [vec![-2, 1, INFINITE], vec![2, -2, INFINITE], vec![0, 1, INFINITE]]);
    }
}
