//! How much a search tries.

use ir::Mesh;
use serde::{Deserialize, Serialize};

/// How much a search tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// All that pays off for a program of its size.
    #[default]
    Full,
    /// The first solution, and what a memory limit needs.
    Quick,
}

/// Numbers of tries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Prices that the tables are solved under.
    pub prices: usize,
    /// Candidates of an outer axis that are carried on to the axes within it.
    pub beam: usize,
    /// Elimination orders that are tried where a search only proposes.
    pub orders: u32,
    /// Where a search only proposes, solutions are enough that cost at most one part in so many over their bound; 0 where they are improved
    /// as far as they can be.
    pub enough: u32,
    /// How often a budget is raised again from one that keeps the memory limit towards one that does not.
    pub raises: usize,
    /// Best candidates that are tried under all settings of the passes.
    pub tuned: usize,
    /// Fastest candidates over the memory limit for which it is tried what of forward to make again.
    pub recomputed: usize,
    /// Whether that is tried under all settings of the passes, or down to the first that keep the limit.
    pub all_rungs: bool,
    /// Whether budgets end where one candidate keeps the limit, or where none does under the first prices.
    pub is_thrifty: bool,
    /// Whether the program of all micro-batches is so large that to take it apart into pipeline stages once takes seconds.
    pub is_vast: bool,
    /// Ways to cut the program into chunks, for each way to put these on pipeline stages.
    pub cuts: usize,
    /// Schedules of cut programs that are simulated.
    pub schedules: usize,
    /// Schedules over the memory limit for which it is decided what of forward to make again.
    pub lightened: usize,
}

/// Larger searches try less.
const LARGE: usize = 2_000;

/// Programs of more operations are vast, micro-batches counted.
const VAST: usize = 1 << 16;

impl Extent {
    const SMALL: Self = Self {
        prices: usize::MAX,
        beam: 4,
        orders: 4,
        enough: 50,
        raises: 6,
        tuned: 8,
        recomputed: 8,
        all_rungs: true,
        is_thrifty: false,
        is_vast: false,
        cuts: usize::MAX,
        schedules: 24,
        lightened: 3,
    };
    const LARGE: Self = Self {
        prices: 3,
        beam: 2,
        orders: 1,
        enough: 0,
        raises: 2,
        tuned: 1,
        recomputed: 4,
        all_rungs: false,
        is_thrifty: true,
        is_vast: false,
        cuts: 3,
        schedules: 8,
        lightened: 1,
    };
    const QUICK: Self = Self {
        prices: 1,
        beam: 1,
        orders: 1,
        enough: 0,
        raises: 0,
        tuned: 0,
        recomputed: 1,
        all_rungs: false,
        is_thrifty: true,
        is_vast: false,
        cuts: 1,
        schedules: 2,
        lightened: 1,
    };

    /// What is tried first of a small step that would take long.
    pub const AS_LARGE: Self = Self { enough: Self::SMALL.enough, ..Self::LARGE };

    /// What is tried for a program of so many nodes on a mesh. Each solution along one axis is a search along the next, and micro-batches are
    /// written out.
    pub fn of(effort: Effort, nodes: usize, mesh: &Mesh) -> Self {
        let axes = mesh.sharding_axes().count().max(1);
        let all = nodes * mesh.micro_batches() as usize;
        let extent = match effort {
            Effort::Quick => Self::QUICK,
            Effort::Full if all * axes * axes > LARGE => Self::LARGE,
            Effort::Full => Self::SMALL,
        };
        Self { is_vast: is_vast(nodes, mesh.micro_batches()), ..extent }
    }
}

/// Whether the program of so many operations is vast, its micro-batches written out.
pub const fn is_vast(operations: usize, micro_batches: u32) -> bool {
    operations * micro_batches as usize > VAST
}
