//! Times, in integer picoseconds.

use aten::{Call, Strategy, Work};
use base::Bytes;
use ir::{
    AxisKind, Collective, CollectiveKind, GroupChange, MeshAxis, Placement, Reduce, Reshard, TensorType,
    group_change, local_bytes, reshard_steps,
};

use crate::{
    collectives::{Company, collective_time, least_time},
    machine::{Machine, traffic},
    micro_batches::{operation_price, reshard_price},
    operation::{amounts, bytes, divisor, is_even, main_dtype, priced, reads},
    ring::time_around,
};

/// The time of a change of placement: its collectives, and the copies that put parts in order. `None` where it is impossible.
pub fn reshard_time(
    machine: Machine<'_>,
    ty: &TensorType,
    reshard: Reshard,
    axis: &MeshAxis,
    company: Company,
) -> Option<i64> {
    if axis.kind == AxisKind::Time {
        return reshard_price(ty, reshard, axis, company);
    }
    let cluster = machine.cluster;
    if reshard.from == reshard.to {
        return Some(0);
    }
    if reshard.from.is_groups() || reshard.to.is_groups() {
        return groups_time(machine, ty, reshard, axis, company);
    }
    let steps = reshard_steps(ty, reshard, axis)?;
    let time = |step: &Collective<'_>| least_time(machine, *step, company);
    let collectives: i64 = steps.iter().map(time).sum();
    let is_uneven = |placement: Placement| placement.is_uneven(&ty.shape, axis.size);
    if is_uneven(reshard.from) || is_uneven(reshard.to) {
        return Some(collectives + traffic(cluster, 2 * copied(ty, reshard, axis)));
    }
    let copies = match (reshard.from, reshard.to) {
        (Placement::Shard { dim: 0, blocks: 1, .. }, Placement::Replicate)
        | (Placement::Replicate, Placement::Shard { dim: 0, blocks: 1, .. })
        | (Placement::Partial(_), Placement::Replicate | Placement::Shard { dim: 0, blocks: 1, .. }) => 0,
        (Placement::Replicate, to @ Placement::Shard { .. }) => {
            traffic(cluster, 2 * local_bytes(ty, to, axis.size))
        }
        (Placement::Replicate, _) | (Placement::Shard { blocks: 1, .. }, Placement::Partial(_)) => {
            traffic(cluster, ty.bytes().0)
        }
        _ => traffic(cluster, 2 * ty.bytes().0),
    };
    Some(collectives + copies)
}

/// The time of a change of placement into groups or out of them, where all groups are equally large.
fn groups_time(
    machine: Machine<'_>,
    ty: &TensorType,
    reshard: Reshard,
    axis: &MeshAxis,
    company: Company,
) -> Option<i64> {
    let Some(change) = group_change(ty, reshard, axis.size) else {
        let whole = Placement::Replicate;
        let before = reshard_time(machine, ty, Reshard { to: whole, ..reshard }, axis, company)?;
        return Some(before + reshard_time(machine, ty, Reshard { from: whole, ..reshard }, axis, company)?);
    };
    let (whole, own) = (ty.bytes().0, |placement| local_bytes(ty, placement, axis.size));
    let dim = |placement: Placement| match placement {
        Placement::Groups { dim } => Some(usize::from(dim)),
        _ => None,
    };
    let in_front = dim(reshard.from).or(dim(reshard.to)) == ir::memory_order(&ty.strides).first().copied();
    let copied = match change {
        GroupChange::Own if in_front => return Some(0),
        GroupChange::Own | GroupChange::ToColumns => 2 * own(reshard.to),
        GroupChange::AmongZeros => whole + 2 * own(reshard.from),
        GroupChange::Gather => whole + own(reshard.from),
        GroupChange::FromShards | GroupChange::ToShards => 0,
        GroupChange::FromColumns => 2 * own(reshard.from),
    };
    let turned = if in_front { 0 } else { own(reshard.from) + own(reshard.to) };
    let steps = reshard_steps(ty, reshard, axis)?;
    let time = steps.iter().map(|step| least_time(machine, *step, company)).sum::<i64>();
    let copies = if copied + turned == 0 { 0 } else { traffic(machine.cluster, copied + turned) };
    Some(time + copies)
}

/// The bytes that are copied on one rank for a change between unequal shards: to pad what is sent, to put it in order, and to take out what
/// is wanted where that is no view.
fn copied(ty: &TensorType, Reshard { from, to }: Reshard, axis: &MeshAxis) -> u64 {
    use Placement::{Partial, Replicate, Shard};
    let whole = ty.bytes().0;
    let own = |placement| local_bytes(ty, placement, axis.size);
    let is_first = |placement| matches!(placement, Shard { dim: 0, blocks: 1, .. });
    match (from, to) {
        (from, to) if from == to => 0,
        (Replicate, to) if is_first(to) => 0,
        (Replicate, to) => own(to),
        (from @ Shard { blocks: 1, .. }, Partial(_)) => whole - own(from),
        (from, Replicate) if is_first(from) => own(from),
        (from @ Shard { .. }, Replicate) => 2 * own(from) + whole,
        (Partial(Reduce::Sum), to) if is_first(to) => whole,
        (Partial(Reduce::Sum), to) => whole + own(to),
        (Shard { dim: a, .. }, Shard { dim: b, .. }) if a != b => 2 * own(from) + own(to),
        _ => 2 * (own(from) + whole),
    }
}

/// The time of one operation of a rank's graph.
pub fn local_time(machine: Machine<'_>, call: &Call<'_>) -> i64 {
    let alone = MeshAxis::ranks("", 1);
    operation_time(machine, call, &aten::replicated(call), &alone)
}

/// The time of one operation on one rank under a strategy along an axis, the collectives inside it included.
pub fn operation_time(machine: Machine<'_>, call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis) -> i64 {
    if axis.kind == AxisKind::Time {
        return operation_price(call, strategy, axis);
    }
    let (cluster, ranks) = (machine.cluster, axis.size);
    if !cluster.kinds.is_empty() {
        let alone = cluster.kinds.iter().map(|kind| Machine { cluster: &kind.cluster, ..machine });
        return alone.map(|machine| operation_time(machine, call, strategy, axis)).max().unwrap_or_default();
    }
    if let Some(collective) = call.graph.collective(call.id) {
        let part = collective.bytes.0 as f64 / divisor(call, strategy, ranks);
        return collective_time(machine, Collective { bytes: Bytes(part as u64), ..collective });
    }
    let Some(row) = aten::row(call.name()) else {
        return traffic(cluster, bytes(call, strategy, ranks));
    };
    if matches!(row.work, Work::View | Work::Nothing) {
        return 0;
    }
    let fit = main_dtype(call).and_then(|dtype| cluster.device.fit(call.name(), dtype));
    let does = amounts(call, Some(row), strategy, ranks);
    let time = priced(cluster, row, fit, does, reads(call), || is_even(call));
    if strategy.realise.permutes() {
        return time_around(machine, call, strategy, axis, time);
    }
    time + inner_collectives(machine, call, strategy, axis)
}

/// The time in which a rank adds what an operation makes for one micro-batch to the sum of others.
pub fn adding_up_time(machine: Machine<'_>, call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis) -> i64 {
    let results = strategy.results.iter().enumerate();
    let held = |(i, placement): (usize, &Placement)| local_bytes(call.result(i), *placement, axis.size);
    let bytes = 3 * results.map(held).sum::<u64>();
    let kinds = machine.cluster.kinds.iter().map(|kind| &kind.cluster);
    kinds.map(|kind| traffic(kind, bytes)).max().unwrap_or_else(|| traffic(machine.cluster, bytes))
}

/// The small all-reduces that some strategies make inside an operation, and the passes over the operand that they add.
fn inner_collectives(machine: Machine<'_>, call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis) -> i64 {
    let count = i64::from(strategy.realise.reductions());
    if count == 0 {
        return 0;
    }
    let Some(placement @ Placement::Shard { dim, .. }) = strategy.results.first() else { return 0 };
    let result = call.result(0);
    let bytes = Bytes(result.bytes().0 / result.shape[usize::from(*dim)].max(1) as u64);
    let passes = traffic(machine.cluster, 2 * local_bytes(result, *placement, axis.size));
    let reduction = Collective { kind: CollectiveKind::AllReduce, reduction: None, axis: &axis.name, bytes };
    let time = least_time(machine, reduction, Company::Alone);
    count * (time + passes)
}
