//! Strategies: the ways in which an operation can run along one mesh axis.

use ir::{Graph, Placement, Reduce, ValueDef, ValueId};
use smallvec::SmallVec;

use crate::{Call, Linear, Row, Rule};

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

/// The strategy that every operation has.
pub fn replicated(call: &Call<'_>) -> Strategy {
    Strategy {
        operands: SmallVec::from_elem(Placement::Replicate, call.operands.len()),
        results: SmallVec::from_elem(Placement::Replicate, call.results.len()),
        realise: Realise::Plain,
    }
}

/// The strategy that follows from `seed` on an axis of `ranks`, if the operation's rule has one.
pub fn seeded(row: &Row, call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
    match row.rule {
        Rule::Unknown | Rule::Fixed => None,
        Rule::Each => crate::rules::pointwise::broadcast(call)?.seeded(call, seed, ranks),
        Rule::Einsum(text) => crate::einsum::factors(text, call)?.seeded(call, seed, ranks),
        Rule::Factors(factors) => factors(call)?.seeded(call, seed, ranks),
        Rule::Seeded(strategy) => strategy(call, seed, ranks),
    }
}

/// All strategies of an operation along an axis of `ranks`: replicated, those that follow from `seeds`, and those in which a partial
/// value passes through. No strategy comes twice.
pub fn strategies(row: &Row, call: &Call<'_>, seeds: &[Seed], ranks: u32) -> Vec<Strategy> {
    let mut all = vec![replicated(call)];
    let from_seeds = seeds.iter().filter_map(|seed| seeded(row, call, *seed, ranks));
    for strategy in from_seeds.chain(passing(row, call)) {
        if !all.contains(&strategy) {
            all.push(strategy);
        }
    }
    all
}

/// The strategies in which a partial value passes through the operation.
fn passing(row: &Row, call: &Call<'_>) -> Vec<Strategy> {
    let partial = |reduce, members: &dyn Fn(usize) -> bool| Strategy {
        operands: (0..call.operands.len())
            .map(|operand| if members(operand) { Placement::Partial(reduce) } else { Placement::Replicate })
            .collect(),
        results: SmallVec::from_elem(Placement::Partial(reduce), call.results.len()),
        realise: Realise::Plain,
    };
    let floating = call.results.iter().all(|value| call.graph.ty(*value).dtype.is_floating());
    let floating = floating && call.operands.iter().all(|value| call.graph.ty(*value).dtype.is_floating());
    let norms = call.operands.iter().all(|value| is_norm(call.graph, *value));
    match row.linear {
        Linear::Jointly if floating => vec![partial(Reduce::Sum, &|_| true)],
        Linear::Sums if floating && crate::rules::collective::adds(call) => {
            vec![partial(Reduce::Sum, &|_| true)]
        }
        Linear::Stacked if floating && norms => {
            vec![partial(Reduce::Sum, &|_| true), partial(Reduce::Norm, &|_| true)]
        }
        Linear::Stacked if floating => vec![partial(Reduce::Sum, &|_| true)],
        Linear::InEach(args) => args
            .iter()
            .filter_map(|arg| call.operand_of_arg(*arg))
            .filter(|operand| {
                call.operand(*operand).dtype.is_floating()
                    && call.result(0).dtype == call.operand(*operand).dtype
            })
            .map(|member| partial(Reduce::Sum, &|operand| operand == member))
            .collect(),
        Linear::Norms if norms && call.number(1) == Some(2.0) => vec![partial(Reduce::Norm, &|_| true)],
        Linear::Together(args) if args.iter().all(|arg| call.operand_of_arg(*arg).is_some()) => {
            let member = |operand: usize| args.contains(&call.operand_args[operand]);
            vec![partial(Reduce::Sum, &member)]
        }
        _ => Vec::new(),
    }
}

/// Whether a value is a 2-norm or computed from 2-norms. Reducing partial norms loses the sign, so no other value may be one.
pub fn is_norm(graph: &Graph, value: ValueId) -> bool {
    let ValueDef::Result(node, _) = graph.values[value].def else { return false };
    match crate::row(graph.op_name(node)).map(|row| row.linear) {
        Some(Linear::Norms) => Call::new(graph, node).number(1) == Some(2.0),
        Some(Linear::Stacked) => graph.nodes[node].operands().all(|operand| is_norm(graph, operand)),
        _ => false,
    }
}
