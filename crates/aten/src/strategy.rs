//! Strategies: the ways in which an operation can run along one mesh axis.

use ir::Placement;
use smallvec::SmallVec;

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
}

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
            | Self::EmbeddingRowsBackward => 0,
        }
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
    /// Operand number `operand`, sharded.
    pub const fn operand(operand: usize, dim: usize, blocks: u32) -> Self {
        Self { slot: Slot::Operand(operand), dim, blocks }
    }

    /// Result number `result`, sharded.
    pub const fn result(result: usize, dim: usize, blocks: u32) -> Self {
        Self { slot: Slot::Result(result), dim, blocks }
    }
}

/// Whether a dimension of `size` made of `blocks` blocks can be sharded evenly over `ranks`.
pub fn divides(size: i64, blocks: u32, ranks: u32) -> bool {
    size > 0 && size % (i64::from(blocks) * i64::from(ranks)) == 0
}
