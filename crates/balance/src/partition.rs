//! The plain partition: samples over ranks, the slowest rank as fast as possible.

use base::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use crate::{
    bins::Bins,
    bound::{Limit, equal_count_bound, lower_bound},
    cost::COST_LIMIT,
    exact::branch_and_bound,
    lpt::{fold_equal_count, lpt, lpt_equal_count},
    multifit::multifit,
    order::falling,
    refine::{Effort, refine},
};

/// Which algorithm, from the fastest to the most thorough.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// LPT, then local search while it is more than 1/1280 above the bound; multifit where that is better; exact if tiny.
    #[default]
    Auto,
    /// Longest processing time first.
    Lpt,
    /// Bisection over first-fit-decreasing, from LPT.
    Multifit,
    /// Pairwise exchanges, from LPT, until the bound is met or the effort is spent.
    LocalSearch,
    /// Branch and bound; falls back to what local search found after 200,000 nodes.
    Exact,
}

impl Tier {
    /// All tiers, with the names that the command prints.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Auto, "auto"),
        (Self::Lpt, "lpt"),
        (Self::Multifit, "multifit"),
        (Self::LocalSearch, "local_search"),
        (Self::Exact, "exact"),
    ];
}

/// Whether ranks may have different numbers of samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counts {
    /// As many as balance needs.
    #[default]
    Free,
    /// The same number on all ranks, or one more on some where it does not divide.
    Equal,
}

/// An assignment with its certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Sample ids by rank, from the most costly on.
    pub samples: Vec<Vec<u32>>,
    /// Sums of costs by rank.
    pub loads: Vec<u64>,
    /// No assignment has a smaller slowest rank than this.
    pub lower_bound: u64,
    /// Which argument gives the bound.
    pub limit: Limit,
    /// Whether the search proved that nothing is better, though the bound may be lower.
    pub optimal: bool,
    /// What found it.
    pub algorithm: &'static str,
}

impl Partition {
    /// The slowest rank's sum.
    pub fn makespan(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }
}

const QUICK: Effort = Effort { rounds: 24, pairs: 4096, keep_counts: false };
const THOROUGH: Effort = Effort { rounds: 200, pairs: 200_000, keep_counts: false };
/// Bisections of multifit.
const ROUNDS: usize = 12;
/// Up to this many samples the automatic tier tries the exact search.
const TINY: usize = 16;
/// Up to this many samples multifit takes no longer than the rest of the automatic tier.
const FEW: usize = 1024;

/// Partitions samples of the given costs over `ranks` ranks.
///
/// Deterministic: ties are broken by sample id, then rank. Every rank has a sample if there are as many as ranks and no cost
/// is zero. Fails if there is no rank or the costs add up to more than [`COST_LIMIT`].
pub fn partition(costs: &[u64], ranks: usize, tier: Tier, counts: Counts) -> Result<Partition> {
    check(costs, ranks)?;
    let (ids, sorted) = falling(costs);
    let bound = match counts {
        Counts::Free => lower_bound(&sorted, ranks),
        Counts::Equal => equal_count_bound(&sorted, ranks),
    };
    let (bins, algorithm, proved) = match counts {
        Counts::Free => free(&sorted, ranks, tier, bound.value),
        Counts::Equal => equal(&sorted, ranks, tier, bound.value),
    };
    let optimal = proved || bins.makespan() == bound.value;
    let (lower_bound, limit) = (bound.value, bound.limit);
    let Bins { loads, items: mut samples } = bins;
    samples.iter_mut().flatten().for_each(|item| *item = ids[*item as usize]);
    Ok(Partition { samples, loads, lower_bound, limit, optimal, algorithm })
}

fn check(costs: &[u64], ranks: usize) -> Result<()> {
    if ranks == 0 {
        return Err(Diagnostic::new(Code::BAD_PROBLEM, "ranks is 0: there must be at least one"));
    }
    if costs.len() >= u32::MAX as usize || ranks >= u32::MAX as usize {
        let what = format!("{} samples over {ranks} ranks are more than 2^32", costs.len());
        return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
    }
    let mut total = 0_u64;
    for (index, cost) in costs.iter().enumerate() {
        total = total.checked_add(*cost).filter(|total| *total <= COST_LIMIT).ok_or_else(|| {
            Diagnostic::new(
                Code::COST_OVERFLOW,
                format!("the costs overflow at sample {index} of cost {cost}"),
            )
        })?;
    }
    Ok(())
}

fn tolerated(bound: u64) -> u64 {
    bound + bound / 1280
}

fn free(sorted: &[u64], ranks: usize, tier: Tier, bound: u64) -> (Bins, &'static str, bool) {
    let mut bins = lpt(sorted, ranks);
    if tier == Tier::Lpt || bins.makespan() == bound {
        return (bins, "lpt", false);
    }
    let start = bins.makespan();
    if tier == Tier::Multifit {
        let better = multifit(sorted, ranks, bound, start, ROUNDS);
        return better.map_or((bins, "lpt", false), |bins| (bins, "multifit", false));
    }
    let (target, effort) = if tier == Tier::Auto { (tolerated(bound), QUICK) } else { (bound, THOROUGH) };
    refine(sorted, &mut bins, target, effort);
    let mut algorithm = "local_search";
    let more = sorted.len() <= FEW && bins.makespan() > bound || bins.makespan() > target;
    let other = (tier == Tier::Auto && more).then(|| multifit(sorted, ranks, bound, start, ROUNDS));
    if let Some(mut other) = other.flatten() {
        refine(sorted, &mut other, target, effort);
        if other.makespan() < bins.makespan() {
            (bins, algorithm) = (other, "multifit");
        }
    }
    let exact = tier == Tier::Exact || (tier == Tier::Auto && sorted.len() <= TINY);
    if !exact || bins.makespan() == bound {
        return (bins, algorithm, false);
    }
    let (better, proved) = branch_and_bound(sorted, &bins, bound);
    (better.unwrap_or(bins), if proved { "exact" } else { algorithm }, proved)
}

fn equal(sorted: &[u64], ranks: usize, tier: Tier, bound: u64) -> (Bins, &'static str, bool) {
    let mut starts = [fold_equal_count(sorted, ranks), lpt_equal_count(sorted, ranks)];
    starts.sort_by_key(Bins::makespan);
    if tier != Tier::Lpt {
        let (target, effort) = if tier == Tier::Auto { (tolerated(bound), QUICK) } else { (bound, THOROUGH) };
        for bins in &mut starts {
            refine(sorted, bins, target, Effort { keep_counts: true, ..effort });
            if bins.makespan() <= target {
                break;
            }
        }
        starts.sort_by_key(Bins::makespan);
    }
    let [bins, _] = starts;
    (bins, if tier == Tier::Lpt { "lpt" } else { "local_search" }, false)
}
