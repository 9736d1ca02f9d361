//! Prices along an axis of micro-batches: of memory, not of time. Iterations compute together what the step computes at once, and what they
//! are for is to hold less, so an operation costs what its results take while one iteration runs, and what iterations exchange in the
//! middle of the step costs more than that could ever save, because all of them hold it.

use aten::{Call, Strategy, Work};
use ir::{CollectiveKind, MeshAxis, PartKind, Placement, Reshard, TensorType, local_bytes, reshard_steps};

use crate::collectives::Company;

/// What ends a loop costs as much as so many results of the size of what it combines.
const END_OF_LOOP: u64 = 16;

/// What a gradient goes through on the way to its shard, and what is sent, counts as one part in so many of it where it is done in each iteration: of
/// sums that hold as much before as behind it, those before it are sent once.
const ON_THE_WAY: u64 = 64;

/// The price of an operation: in bytes, where others are in picoseconds.
pub fn operation_price(call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis) -> i64 {
    if aten::row(call.name()).is_some_and(|row| matches!(row.work, Work::View | Work::Nothing)) {
        return 0;
    }
    let results = strategy.results.iter().enumerate();
    let held = results.map(|(i, placement)| local_bytes(call.result(i), *placement, axis.size));
    let ends = if strategy.realise.reductions() > 0 { END_OF_LOOP * call.result(0).bytes().0 } else { 0 };
    let is_of_update = call.graph.part_kind(call.id) == PartKind::Update;
    let is_in_each = strategy.results.iter().any(|placement| *placement != Placement::Replicate);
    let may_wait = is_of_update || call.graph.is_communication(call.id);
    let on_the_way = if may_wait && is_in_each { call.operand(0).bytes().0 / ON_THE_WAY } else { 0 };
    (held.sum::<u64>() + ends + on_the_way) as i64
}

/// The price of a change of placement, in bytes. Sums that only updates need are added up beside the loop.
pub fn reshard_price(ty: &TensorType, reshard: Reshard, axis: &MeshAxis, company: Company) -> Option<i64> {
    let steps = reshard_steps(ty, reshard, axis)?;
    let ends = |kind| !(kind == CollectiveKind::AllReduce && company == Company::Bucketed);
    let ends = steps.iter().filter(|step| ends(step.kind)).count() as u64;
    // Each iteration would have a whole tensor of its share of the sum and zeros, beside the sum, which saves nothing.
    let is_padded = matches!(reshard.to, Placement::Partial(_)) && reshard.from != reshard.to;
    Some(((ends + u64::from(is_padded)) * END_OF_LOOP * ty.bytes().0) as i64)
}
