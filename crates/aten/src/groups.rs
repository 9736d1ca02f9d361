//! Strategies for groups that ranks have: of a dimension whose groups are known at run time only.

use ir::{Dtype, Placement, TensorType, ValueId};
use smallvec::SmallVec;

use crate::{
    Call, Row,
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
/// operation itself divides that dimension; else as with the dimension sharded, where each element of the results then is of one element of
/// the operands, whichever that is.
pub fn by_groups(row: &Row, call: &Call<'_>, (slot, dim): (Slot, usize), ranks: u32) -> Option<Strategy> {
    let strategy = match row.groups {
        Some(_) => of_groups(row, call, ranks)?,
        None => each_by_itself(row, call, (slot, dim), ranks)?,
    };
    let placement = match slot {
        Slot::Operand(operand) => strategy.operands.get(operand)?,
        Slot::Result(result) => strategy.results.get(result)?,
    };
    let is_there = *placement == Placement::Groups { dim: u8::try_from(dim).ok()? };
    is_there.then_some(strategy)
}

fn each_by_itself(row: &Row, call: &Call<'_>, (slot, dim): (Slot, usize), ranks: u32) -> Option<Strategy> {
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
    let is_sum = strategy.results.iter().any(|placement| matches!(placement, Placement::Partial(_)));
    (strategy.realise == Realise::Plain && !is_sum).then_some(strategy)
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
