//! Strategies: the ways in which an operation can run along one mesh axis.

use ir::{Chunks, Placement, TensorType};
use smallvec::SmallVec;

use crate::Call;

/// One way to run an operation along one axis: the placement that each operand must have and each result then has.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Strategy {
    /// Required placements of the operands.
    pub operands: SmallVec<[Placement; 4]>,
    /// Provided placements of the results.
    pub results: SmallVec<[Placement; 2]>,
    /// How the operation runs on each rank.
    pub realise: Realise,
}

impl Strategy {
    /// The operands of a call and then its results, each with its placement.
    pub fn placed<'a>(&'a self, call: &'a Call<'a>) -> impl Iterator<Item = (Placement, &'a TensorType)> {
        let operands = self.operands.iter().enumerate().map(|(at, placement)| (*placement, call.operand(at)));
        let results = self.results.iter().enumerate().map(|(at, placement)| (*placement, call.result(at)));
        operands.chain(results)
    }
}

/// How an operation runs on each rank under a strategy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Realise {
    /// The same operation on the local operands, arguments that are sizes localised.
    Plain,
    /// The same, with floating-point results divided by the axis's size: the mean is the sum over ranks of their means divided by their
    /// number.
    Averaged,
    /// Softmax over a sharded dimension: two small all-reduces.
    Softmax,
    /// Log-softmax over a sharded dimension: two small all-reduces.
    LogSoftmax,
    /// The backward of softmax over a sharded dimension: one small all-reduce.
    SoftmaxBackward,
    /// The backward of log-softmax over a sharded dimension: one small all-reduce.
    LogSoftmaxBackward,
    /// The picked logit where the class dimension is sharded: each rank picks from its own classes, zero elsewhere.
    NllPick,
    /// Its backward: each rank writes into its own classes.
    NllPickBackward,
    /// A look-up in a table whose rows are sharded: rows of other ranks are zero.
    EmbeddingRows,
    /// The gradient of the rows that a rank holds.
    EmbeddingRowsBackward,
    /// A product of groups of which each rank has some: with the offsets of these.
    OwnGroups,
    /// A product of groups on the elements that a rank has, parts of groups perhaps: with the offsets within these.
    PartsOfGroups,
    /// A look-up by numbers along a sharded dimension: rows of other ranks are zero.
    IndexRows,
    /// Rows written or added at numbers along a sharded dimension: each rank does so to its own.
    IndexPutRows,
    /// Attention over a sharded sequence: keys and values go around the ranks.
    Ring,
    /// Its backward: keys and values go around, and their gradients with them.
    RingBackward,
    /// Attention of sharded queries under a causal mask, keys and values whole.
    CausalQueries,
    /// Its backward.
    CausalQueriesBackward,
}

/// Most ranks that keys and values go around: each adds a step of its own to the program.
const MOST_AROUND: u32 = 16;

impl Realise {
    /// How many small all-reduces it makes inside.
    pub const fn reductions(self) -> u32 {
        match self {
            Self::Softmax | Self::LogSoftmax => 2,
            Self::SoftmaxBackward | Self::LogSoftmaxBackward => 1,
            Self::Plain
            | Self::Averaged
            | Self::NllPick
            | Self::NllPickBackward
            | Self::EmbeddingRows
            | Self::EmbeddingRowsBackward
            | Self::OwnGroups
            | Self::PartsOfGroups
            | Self::IndexRows
            | Self::IndexPutRows
            | Self::Ring
            | Self::RingBackward
            | Self::CausalQueries
            | Self::CausalQueriesBackward => 0,
        }
    }

    /// Whether ranks send each to one other within it, for which all hold equally much.
    pub const fn permutes(self) -> bool {
        self.goes_around() || matches!(self, Self::CausalQueries | Self::CausalQueriesBackward)
    }

    /// Whether operands go around the ranks.
    pub const fn goes_around(self) -> bool {
        matches!(self, Self::Ring | Self::RingBackward)
    }

    /// Whether it is offered on an axis of so many ranks.
    pub const fn fits(self, ranks: u32) -> bool {
        !self.goes_around() || ranks <= MOST_AROUND
    }

    /// Whether it also gives the right result where some rank's shard is empty: there is no largest element of nothing, and nothing to look
    /// up in a table without rows.
    pub const fn may_be_empty(self) -> bool {
        !matches!(self, Self::Softmax | Self::LogSoftmax | Self::EmbeddingRows | Self::IndexRows)
    }
}

/// A sharding that some operand or result is to have: where a strategy starts from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Seed {
    /// The operand or result.
    pub slot: Slot,
    /// The dimension.
    pub dim: usize,
    /// The number of blocks, see [`Placement::Shard`].
    pub blocks: u32,
    /// What a rank holds of a block, see [`Placement::Shard`].
    pub chunk: u32,
}

/// An operand or a result of an operation, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slot {
    /// An operand.
    Operand(usize),
    /// A result.
    Result(usize),
}

impl Seed {
    /// What a sharding of an operand or a result seeds; none for another placement.
    pub fn of(slot: Slot, placement: Placement) -> Option<Self> {
        let Placement::Shard { dim, blocks, chunk } = placement else { return None };
        Some(Self { slot, dim: usize::from(dim), blocks, chunk })
    }

    /// Who holds what of its dimension in a tensor of `shape`.
    pub fn chunks(&self, shape: &[i64], ranks: u32) -> Option<Chunks> {
        Chunks::new(*shape.get(self.dim)?, self.blocks, self.chunk, ranks)
    }
}
