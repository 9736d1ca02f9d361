//! Several phases, each with an assignment of its own: samples move to other ranks in between.

use std::cmp::Reverse;

use base::{Code, Diagnostic, Result};

use crate::{
    batches::Batches,
    cost::COST_LIMIT,
    microbatch::pack,
    partition::{Counts, partition},
    problem::Problem,
};

/// Assignments by phase, and what moving between them costs.
pub struct Redispatch {
    /// By phase, rank, micro-batch: sample ids.
    pub phases: Vec<Batches>,
    /// By phase: sample ids by rank.
    pub samples: Vec<Vec<Vec<u32>>>,
    /// The slowest rank's receiving, summed over the phases but the first; in units.
    pub moving: u64,
    /// The slowest ranks of all phases plus moving; in units.
    pub makespan: u64,
}

/// Balances each phase on its own; the ranks of a phase are named so that many samples stay where they are. Moving costs
/// `price` per token of the phase that is left, in units of `1 / unit`.
pub fn redispatch(problem: &Problem, phases: &[Vec<u64>], price: u64, unit: u64) -> Result<Redispatch> {
    let tokens: u128 = problem.lengths.iter().flatten().map(|length| u128::from(*length)).sum();
    if tokens.saturating_mul(u128::from(price)) > u128::from(COST_LIMIT) * u128::from(unit) {
        return Err(Diagnostic::new(
            Code::COST_OVERFLOW,
            format!("`moving` is {price}: moving costs overflow"),
        ));
    }
    let mut found: Vec<Vec<Vec<u32>>> = Vec::new();
    let (mut moving, mut makespan) = (0, 0);
    for (phase, costs) in phases.iter().enumerate() {
        let part = partition(costs, problem.ranks, problem.tier, Counts::Free)?;
        makespan += part.makespan();
        let samples = match found.last() {
            None => part.samples,
            Some(before) => {
                let lengths = &problem.lengths[phase - 1];
                let samples = name_ranks(before, part.samples, lengths);
                let received = received(before, &samples, lengths);
                moving += (u128::from(received) * u128::from(price)).div_ceil(u128::from(unit)) as u64;
                samples
            }
        };
        found.push(samples);
    }
    let cap = problem.tokens_per_rank.unwrap_or(u64::MAX);
    let packed = found
        .iter()
        .zip(&problem.lengths)
        .map(|(samples, lengths)| samples.iter().map(|samples| pack(samples, lengths, cap)).collect());
    Ok(Redispatch { phases: packed.collect(), moving, makespan: makespan + moving, samples: found })
}

fn rank_of(samples: &[Vec<u32>]) -> Vec<usize> {
    let count = samples.iter().map(Vec::len).sum();
    let mut ranks = vec![0; count];
    for (rank, samples) in samples.iter().enumerate() {
        for sample in samples {
            ranks[*sample as usize] = rank;
        }
    }
    ranks
}

/// Gives each new list the rank that already holds most of its tokens, the largest overlaps first.
fn name_ranks(before: &[Vec<u32>], after: Vec<Vec<u32>>, lengths: &[u64]) -> Vec<Vec<u32>> {
    let holder = rank_of(before);
    let mut overlaps: Vec<(u64, usize, usize)> = Vec::new();
    for (list, samples) in after.iter().enumerate() {
        let mut by_rank = std::collections::BTreeMap::new();
        for sample in samples {
            *by_rank.entry(holder[*sample as usize]).or_insert(0) += lengths[*sample as usize];
        }
        overlaps.extend(by_rank.into_iter().map(|(rank, tokens)| (tokens, rank, list)));
    }
    overlaps.sort_unstable_by_key(|overlap| (Reverse(overlap.0), overlap.1, overlap.2));
    let mut rank_of_list = vec![None; after.len()];
    let mut taken = vec![false; after.len()];
    for (_, rank, list) in overlaps {
        if rank_of_list[list].is_none() && !taken[rank] {
            rank_of_list[list] = Some(rank);
            taken[rank] = true;
        }
    }
    let mut free = (0..after.len()).filter(|rank| !taken[*rank]).collect::<Vec<_>>().into_iter();
    let mut named = vec![Vec::new(); after.len()];
    for (samples, rank) in after.into_iter().zip(rank_of_list) {
        named[rank.or_else(|| free.next()).expect("as many ranks as lists")] = samples;
    }
    named
}

/// Most tokens that a rank receives.
fn received(before: &[Vec<u32>], after: &[Vec<u32>], lengths: &[u64]) -> u64 {
    let holder = rank_of(before);
    let from_others = |(rank, samples): (usize, &Vec<u32>)| {
        let moved = samples.iter().filter(|sample| holder[**sample as usize] != rank);
        moved.map(|sample| lengths[*sample as usize]).sum()
    };
    after.iter().enumerate().map(from_others).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_so_that_samples_stay() {
        let before = vec![vec![0, 1], vec![2, 3]];
        let named = name_ranks(&before, vec![vec![2, 3], vec![0, 1]], &[5, 5, 5, 5]);
        assert_eq!(named, before);
        assert_eq!(received(&before, &[vec![0, 2], vec![1, 3]], &[5, 6, 7, 8]), 7);
    }
}
