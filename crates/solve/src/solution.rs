//! What a search is asked for, and what it answers.

use serde::{Deserialize, Serialize};

use crate::{Choices, Cost};

/// How to search. The defaults suit most problems.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// The most cells that a bucket may have, at 8 bytes each. Where all have fewer, the solution is optimal; what would have more
    /// is split, which takes time and memory in proportion to the limit and leaves a gap between cost and bound.
    pub table_limit: u64,
    /// The most cells that one elimination computes. Where it would compute more, buckets are split at lower table limits, down to those
    /// that keep it, and a search that has computed several times as many ends with the best choices that it has.
    pub work_limit: u64,
    /// In how many orders a problem is eliminated at most, while buckets have to be split and the gap is open. Several orders under a
    /// low limit find better choices than one under a high limit, which proves more.
    pub orders: u32,
    /// Whether a wide gap is narrowed by a dual bound: it breaks what is alike between the layers of a model, and takes time and
    /// memory accordingly. Without it, choices may not be found ([`Failure::TooLarge`]) where a table is over the limit.
    pub dual: bool,
    /// Choices that cost at most one part in so many over the bound are not improved any more; 0 where all are. What only proposes needs no
    /// more.
    pub enough: u32,
    /// Whether a problem without any allowed choices is narrowed down to variables at fault, which can take longer than a solve.
    pub blame: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { table_limit: 1 << 22, work_limit: 1 << 28, orders: 4, dual: true, enough: 0, blame: true }
    }
}

/// Why the search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// The solution is proved to be optimal: cost and bound are equal.
    Optimal,
    /// The exact way needs a table over the limit, more work, or finer units than costs can be added in: cost and bound differ.
    TableLimit,
    /// The budget lies between two plans that no price tells apart: cost and bound differ.
    Budget,
}

/// What the search did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// How often a whole problem was minimised.
    pub solves: u32,
    /// Variables of the problem.
    pub variables: u32,
    /// States that were taken out beforehand.
    pub states_pruned: u64,
    /// Variables that were eliminated.
    pub eliminations: u32,
    /// Eliminations that had been done before.
    pub cache_hits: u32,
    /// Cells of all buckets.
    pub cells: u64,
    /// Cells of the buckets that were computed.
    pub cells_computed: u64,
    /// Cells of the largest bucket.
    pub largest_table: u64,
    /// Most neighbours of a variable at its elimination.
    pub width: u32,
}

impl Statistics {
    pub(crate) fn count(&mut self, sizes: &[u32]) {
        let cells = sizes.iter().map(|&size| u64::from(size)).fold(1, u64::saturating_mul);
        self.eliminations += 1;
        self.cells = self.cells.saturating_add(cells);
        self.largest_table = self.largest_table.max(cells);
        self.width = self.width.max(sizes.len() as u32 - 1);
    }
}

/// The best choices found and how good they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Solution {
    /// The state of each variable.
    pub choices: Choices,
    /// What they cost, as [`evaluate`] says.
    pub cost: Cost,
    /// No choices cost less.
    pub bound: Cost,
    /// Why the search ended.
    pub stop: Stop,
    /// What it did.
    pub statistics: Statistics,
}
