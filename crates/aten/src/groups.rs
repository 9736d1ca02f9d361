//! Strategies for groups that ranks have: of a dimension whose groups are known at run time only.

use ir::{ANY_SIZE, Dtype, Graph, Placement, RowExchange, RowOperator, TensorType, ValueId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    Call, Row, Sizes, Strides,
    strategies::{seeded, suits},
    strategy::{Realise, Seed, Slot, Strategy},
};

/// The offsets by which an operation divides a dimension into groups.
pub fn offsets(row: &Row, call: &Call<'_>) -> Option<ValueId> {
    let argument = row.groups?.offsets;
    call.operand_of_arg(argument).map(|operand| call.operands[operand])
}

/// How an operation that divides a dimension into groups runs where each rank has some of them.
pub fn of_groups(row: &Row, call: &Call<'_>, ranks: u32) -> Option<Strategy> {
    (row.groups?.strategy)(call).filter(|strategy| suits(row, call, strategy, ranks))
}

/// How an operation runs where each rank has some of the groups of dimension `dim` of the tensor at `slot`: on what belongs to these, if the
/// operation itself divides that dimension; else as with the dimension sharded.
pub fn by_groups(row: &Row, call: &Call<'_>, (slot, dim): (Slot, usize), ranks: u32) -> Option<Strategy> {
    let strategy = match row.groups {
        Some(_) => of_groups(row, call, ranks)?,
        None => as_sharded(row, call, (slot, dim), ranks)?,
    };
    let placement = match slot {
        Slot::Operand(operand) => strategy.operands.get(operand)?,
        Slot::Result(result) => strategy.results.get(result)?,
    };
    let is_there = *placement == Placement::Groups { dim: u8::try_from(dim).ok()? };
    is_there.then_some(strategy)
}

fn as_sharded(row: &Row, call: &Call<'_>, (slot, dim): (Slot, usize), ranks: u32) -> Option<Strategy> {
    let sharded = seeded(row, call, Seed { slot, dim, blocks: 1, chunk: 0 }, ranks)?;
    let size = match slot {
        Slot::Operand(operand) => call.size(operand, dim)?,
        Slot::Result(result) => call.result_size(result, dim)?,
    };
    let operands = sharded.operands.iter().enumerate();
    let operands = operands.map(|(at, placement)| in_groups(*placement, call.operand(at), size));
    let results = sharded.results.iter().enumerate();
    let results = results.map(|(at, placement)| in_groups(*placement, call.result(at), size));
    let strategy = Strategy {
        operands: operands.collect::<Option<_>>()?,
        results: results.collect::<Option<SmallVec<_>>>()?,
        realise: sharded.realise,
    };
    let is_plain = strategy.realise == Realise::Plain && row.may_be_empty;
    (is_plain && has_its_size_from_operands(row, &strategy)).then_some(strategy)
}

/// Whether an operation makes results of the size that its operands have, whatever that is: where it is told their shape, the size may be
/// left out.
fn has_its_size_from_operands(row: &Row, strategy: &Strategy) -> bool {
    let in_groups = |placement: &Placement| placement.is_groups();
    let can_be_left_out = match row.sizes {
        Sizes::None | Sizes::Splits(_) | Sizes::Pieces { .. } | Sizes::Span { .. } => true,
        Sizes::Shape(_) => matches!(row.strides, Strides::Reshaped | Strides::Expanded),
        Sizes::Batch(_) => false,
    };
    let told = can_be_left_out && strategy.operands.first().is_some_and(in_groups);
    match row.sizes {
        Sizes::None => strategy.operands.iter().any(in_groups),
        _ => told || !strategy.results.iter().any(in_groups),
    }
}

/// The placement in groups of a tensor whose dimension of `size` is sharded in one block, so that its elements are those that are divided.
fn in_groups(placement: Placement, ty: &TensorType, size: i64) -> Option<Placement> {
    match placement {
        Placement::Shard { dim, blocks: 1, chunk: 0 } => {
            let divided = ty.shape[usize::from(dim)] == size && ty.dtype != Dtype::Bool;
            divided.then_some(Placement::Groups { dim })
        }
        Placement::Shard { .. } => None,
        other => Some(other),
    }
}

/// The values of a rank's graph that have a size which is known at run time only: what they have of the rows of its groups.
#[derive(Default, Debug)]
pub struct RunTimeSizes {
    /// The dimension; none where it cannot be told.
    dims: FxHashMap<ValueId, Option<usize>>,
}

impl RunTimeSizes {
    /// Those of a graph.
    pub fn of(graph: &Graph) -> Self {
        let mut sizes = Self::default();
        if graph.ops.values().all(|op| RowOperator::of_operator(&op.name).is_none()) {
            return sizes;
        }
        for id in &graph.order {
            let call = Call::new(graph, *id);
            match graph.row_operator(*id) {
                Some(operator) => sizes.begin(&call, operator),
                None => sizes.follow(&call),
            }
        }
        sizes
    }

    /// Whether a value has such a size.
    pub fn has(&self, value: ValueId) -> bool {
        self.dims.contains_key(&value)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.dims.is_empty()
    }

    fn begin(&mut self, call: &Call<'_>, operator: RowOperator) {
        let argument = |position: usize| call.int(position).and_then(|dim| usize::try_from(dim).ok());
        let dim = match operator {
            RowOperator::Bounds => return,
            RowOperator::AmongZeros if call.int(4) != Some(ANY_SIZE) => return,
            RowOperator::Own | RowOperator::AmongZeros => argument(2),
            RowOperator::Deal | RowOperator::Join => Some(0),
            RowOperator::Exchange => match call.graph.row_exchange(call.id) {
                Some((RowExchange::GroupsToShards, _)) => return,
                Some((RowExchange::GroupsToWhole, size)) if size != ANY_SIZE => return,
                _ => Some(0),
            },
        };
        self.dims.extend(call.results.iter().map(|result| (*result, dim)));
    }

    /// The results of an operation have such a size where their sharding follows from that of an operand.
    fn follow(&mut self, call: &Call<'_>) {
        for (slot, value) in call.operands.iter().enumerate() {
            let Some(dim) = self.dims.get(value).copied() else { continue };
            let follows = dim.and_then(|dim| following(call, slot, dim));
            for (at, result) in call.results.iter().enumerate() {
                match &follows {
                    Some(dims) => {
                        if let Some(dim) = dims[at] {
                            self.dims.insert(*result, Some(dim));
                        }
                    }
                    None => {
                        self.dims.insert(*result, None);
                    }
                }
            }
        }
    }
}

/// The dimension of each result that a dimension of an operand becomes; none where there is no rule that says so.
fn following(call: &Call<'_>, slot: usize, dim: usize) -> Option<SmallVec<[Option<usize>; 2]>> {
    let row = crate::row_of(call.op())?;
    let strategy = match row.groups {
        Some(groups) => (groups.strategy)(call)?,
        None => seeded(row, call, Seed { slot: Slot::Operand(slot), dim, blocks: 1, chunk: 0 }, 1)?,
    };
    let dim_of = |placement: &Placement| match placement {
        Placement::Groups { dim } => Some(usize::from(*dim)),
        Placement::Shard { dim, .. } if row.groups.is_none() => Some(usize::from(*dim)),
        _ => None,
    };
    Some(strategy.results.iter().map(dim_of).collect())
}
