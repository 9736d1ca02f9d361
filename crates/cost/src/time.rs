//! Times, in integer picoseconds.

use aten::{Call, Row, Strategy, Work};
use base::Bytes;
use cluster::{Amounts, Cluster, Fit};
use ir::{
    AxisKind, Chunks, Collective, CollectiveKind, Dtype, MeshAxis, Placement, Reduce, Reshard, TensorType,
    local_bytes, reshard_steps,
};

use crate::{
    collectives::{Company, collective_time, least_time},
    machine::{Machine, PICOS, traffic},
    micro_batches::{operation_price, reshard_price},
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
    // Rows that are put in another order, and those of others set to 0.
    let in_order = |passes: u64, reshard| {
        let rest = reshard_time(machine, ty, reshard, axis, company)?;
        Some(rest + traffic(cluster, 2 * passes * ty.bytes().0))
    };
    match (reshard.from, reshard.to) {
        (from, to) if from == to => return Some(0),
        (Placement::Groups { .. }, to) => {
            return in_order(2, Reshard { from: Placement::Partial(Reduce::Sum), to });
        }
        (from, Placement::Groups { .. }) => return in_order(1, Reshard { from, to: Placement::Replicate }),
        _ => {}
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
    if let Some(collective) = call.graph.collective(call.id) {
        let part = collective.bytes.0 as f64 / divisor(call, strategy, ranks);
        return collective_time(machine, Collective { bytes: Bytes(part as u64), ..collective });
    }
    let Some(row) = aten::row(call.name()) else {
        return traffic(cluster, bytes(call, strategy, ranks));
    };
    let known = |known: &Fit| known.picos(amounts(call, row, strategy, ranks)).round() as i64;
    let measured = main_dtype(call).and_then(|dtype| cluster.device.fit(call.name(), dtype)).map(known);
    let time = match row.work {
        Work::View | Work::Nothing => return 0,
        Work::Traffic | Work::Flops(_) if let Some(time) = measured => time,
        Work::Traffic => moving(machine, call, row, bytes(call, strategy, ranks)),
        Work::Flops(_) => {
            let Amounts { flops, bytes, .. } = amounts(call, row, strategy, ranks);
            let rate = compute_rate(cluster, row, call);
            let computing = (flops / rate * PICOS + cluster.device.operation_ns * 1e3).round() as i64;
            computing.max(traffic(cluster, bytes))
        }
    };
    if strategy.realise.permutes() {
        return time_around(machine, call, strategy, axis, time);
    }
    time + inner_collectives(machine, call, strategy, axis)
}

/// Floating-point operations per second of an operation that is mostly computation: those of the element type that it reads, or what was
/// fitted, if that is more.
pub fn compute_rate(cluster: &Cluster, row: &Row, call: &Call<'_>) -> f64 {
    let device = &cluster.device;
    let dtype = call.operands.first().map_or(call.result(0).dtype, |first| call.graph.ty(*first).dtype);
    let rate = if row.is_attention() { device.attention_rate(dtype) } else { device.matmul_rate(dtype) };
    let fit = main_dtype(call).and_then(|dtype| device.fit(call.name(), dtype));
    fit.filter(|fit| fit.flop_ps > 0.0).map_or(rate, |fit| rate.max(PICOS / fit.flop_ps))
}

/// The time of an operation that moves so many bytes.
fn moving(machine: Machine<'_>, call: &Call<'_>, row: &Row, bytes: u64) -> i64 {
    let device = &machine.cluster.device;
    match device.uneven_bandwidth {
        Some(bandwidth) if row.is_elementwise() && !is_even(call) => {
            (bytes as f64 / bandwidth * PICOS + device.operation_ns * 1e3).round() as i64
        }
        _ => traffic(machine.cluster, bytes),
    }
}

/// Whether all tensors of an operation but single numbers have one shape and order.
fn is_even(call: &Call<'_>) -> bool {
    let types = call.operands.iter().chain(&call.results).map(|value| call.graph.ty(*value));
    let mut types = types.filter(|ty| ty.elements() > 1);
    let Some(first) = types.next() else { return true };
    first.is_dense() && types.all(|ty| ty.shape == first.shape && ty.strides == first.strides)
}

/// What an operation does on one rank under a strategy; nothing for what takes no time.
pub fn amounts(call: &Call<'_>, row: &Row, strategy: &Strategy, ranks: u32) -> Amounts {
    let flops = match row.work {
        Work::Flops(flops) => flops(call).0 as f64 / divisor(call, strategy, ranks) * unused(call, row),
        Work::View | Work::Nothing | Work::Traffic => 0.0,
    };
    let tensors = strategy.operands.len() + strategy.results.len();
    Amounts { flops, bytes: bytes(call, strategy, ranks), tensors }
}

/// Positions at which causal attention on an accelerator reaches half of its rate on long sequences: blocks on the diagonal are computed whole,
/// and short rows leave cores idle. That of FlashAttention-2 and cuDNN on an H100, as FlashAttention-3 (2407.08608, figure 5) has them from 512
/// to 16,384 positions, within 7 %, but for FlashAttention-2 at 512.
const HALF_RATE: f64 = 320.0;

/// How many times as much an operation takes for what its kernel computes and nobody uses.
fn unused(call: &Call<'_>, row: &Row) -> f64 {
    let is_set = |name: &str| call.argument(name).and_then(|argument| call.flag(argument)) == Some(true);
    let keys = call.argument("key").and_then(|key| call.arg_type(key));
    match keys.and_then(|keys| keys.shape.get(2)) {
        Some(keys) if row.is_attention() && is_set("is_causal") && !call.result(0).device.kind.is_cpu() => {
            1.0 + HALF_RATE / (*keys).max(1) as f64
        }
        _ => 1.0,
    }
}

/// Who computes what of an operation under a strategy that shards it.
pub fn shares(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> Option<Chunks> {
    let operands = strategy.operands.iter().enumerate().map(|(i, p)| (*p, call.operand(i)));
    let results = strategy.results.iter().enumerate().map(|(i, p)| (*p, call.result(i)));
    let chunks = operands.chain(results).find_map(|(placement, ty)| placement.chunks(&ty.shape, ranks));
    chunks.map(|(_, chunks)| chunks)
}

/// How many times as much an operation is than what the first rank, which has the most, computes of it.
fn divisor(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> f64 {
    shares(call, strategy, ranks).map_or(1.0, |chunks| chunks.block as f64 / chunks.chunk as f64)
}

/// The element type that an operation computes in: that of its first result, or of its first operand.
pub fn main_dtype(call: &Call<'_>) -> Option<Dtype> {
    let first = call.results.first().or(call.operands.first());
    first.map(|value| call.graph.ty(*value).dtype)
}

/// Bytes that an operation reads and writes on one rank.
fn bytes(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> u64 {
    let operands = strategy.operands.iter().enumerate();
    let read = operands.map(|(i, placement)| local_bytes(call.operand(i), *placement, ranks));
    let results = strategy.results.iter().enumerate();
    let written = results.map(|(i, placement)| local_bytes(call.result(i), *placement, ranks));
    read.chain(written).sum()
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
