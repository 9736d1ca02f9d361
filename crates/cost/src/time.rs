//! Times, in integer picoseconds.

use aten::{Call, Realise, Strategy, Work};
use base::Bytes;
use cluster::{Cluster, Link};
use ir::{
    Collective, CollectiveKind, Mesh, MeshAxis, Placement, Reshard, TensorType, local_bytes, reshard_steps,
};

const PICOS: f64 = 1e12;

/// What a program runs on.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Devices and links.
    pub cluster: &'a Cluster,
    /// The ranks.
    pub mesh: &'a Mesh,
}

/// The time of one collective, as the library does it.
pub fn collective_time(machine: Machine<'_>, collective: Collective<'_>) -> i64 {
    let ranks = machine.mesh.size_of(collective.axis);
    let share = f64::from(ranks - 1) / f64::from(ranks);
    let bytes = collective.bytes.0 as f64;
    let links = &machine.cluster.links;
    let (link, sent) = match collective.kind {
        CollectiveKind::AllReduce => (links.all_reduce, 2.0 * bytes * share),
        CollectiveKind::AllGather | CollectiveKind::Broadcast => (links.all_gather, bytes * share),
        CollectiveKind::ReduceScatter => (links.reduce_scatter, bytes * share),
        CollectiveKind::AllToAll => (links.all_to_all, bytes * share),
    };
    on_link(link, sent)
}

fn on_link(link: Link, bytes: f64) -> i64 {
    (link.latency_ns * 1e3 + bytes / link.bandwidth * PICOS).round() as i64
}

/// The time of a direct collective, in which each rank sends to each in one round, with the copies and sums around it; `None` for
/// kinds that have no direct form.
fn direct_time(machine: Machine<'_>, collective: Collective<'_>) -> Option<i64> {
    let cluster = machine.cluster;
    let ranks = machine.mesh.size_of(collective.axis);
    let full = collective.bytes.0;
    let shard = full / u64::from(ranks);
    let (sent, local) = match collective.kind {
        CollectiveKind::AllReduce => {
            let copies = full * u64::from(ranks);
            (copies, traffic(cluster, 2 * copies) + traffic(cluster, copies + full))
        }
        CollectiveKind::AllGather => (full, traffic(cluster, 2 * full)),
        CollectiveKind::ReduceScatter => (full, traffic(cluster, full + shard)),
        CollectiveKind::AllToAll | CollectiveKind::Broadcast => return None,
    };
    let exchange = Collective { kind: CollectiveKind::AllToAll, bytes: Bytes(sent), ..collective };
    Some(collective_time(machine, exchange) + local)
}

/// The time of the faster form of a collective. `share` computes what counts from the time of the collective and that of an empty one.
/// The direct form is considered only where an empty direct collective is no slower.
fn least_time(machine: Machine<'_>, collective: Collective<'_>, share: impl Fn(i64, i64) -> i64) -> i64 {
    let empty = Collective { bytes: Bytes(0), ..collective };
    let latency = collective_time(machine, empty);
    let usual = share(collective_time(machine, collective), latency);
    let direct = direct_time(machine, collective).zip(direct_time(machine, empty));
    match direct {
        Some((alone, starting)) if starting <= latency => usual.min(share(alone, starting)),
        _ => usual,
    }
}

/// A direct collective that is faster at this size counts as faster at every size.
const ANY_SIZE: Bytes = Bytes(1 << 40);

/// Up to how many bytes the direct form of a collective is the faster one; 0 where it never is.
pub fn direct_limit(machine: Machine<'_>, kind: CollectiveKind, axis: &MeshAxis) -> Bytes {
    let lost = |bytes| {
        let collective = Collective { kind, reduction: None, axis: &axis.name, bytes };
        Some(direct_time(machine, collective)? - collective_time(machine, collective))
    };
    match (lost(Bytes(0)), lost(ANY_SIZE)) {
        (Some(empty), Some(large)) if empty < 0 && large > 0 => {
            // Both times are straight lines over bytes.
            let (large, empty) = (large as f64, empty as f64);
            Bytes((ANY_SIZE.0 as f64 * -empty / (large - empty)) as u64)
        }
        (Some(empty), Some(large)) if empty <= 0 && large < 0 => ANY_SIZE,
        _ => Bytes(0),
    }
}

/// Assumed number of collectives per bucket, which share the latency of one.
const BUCKET: i64 = 16;

/// Whether a collective waits for others of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Company {
    /// It lies between two operations, and the second waits for it.
    Alone,
    /// It moves state or gradients, which a pass puts into buckets.
    Bucketed,
}

/// The time of a change of placement: its collectives, and the copies that put parts in order. `None` where it is impossible.
pub fn reshard_time(
    machine: Machine<'_>,
    ty: &TensorType,
    reshard: Reshard,
    axis: &MeshAxis,
    company: Company,
) -> Option<i64> {
    let cluster = machine.cluster;
    let steps = reshard_steps(ty, reshard, axis)?;
    let share = |alone: i64, latency: i64| match company {
        Company::Alone => alone,
        Company::Bucketed => alone - latency + latency / BUCKET,
    };
    let time = |step: &Collective<'_>| least_time(machine, *step, share);
    let collectives: i64 = steps.iter().map(time).sum();
    let copies = match (reshard.from, reshard.to) {
        (from, to) if from == to => 0,
        (Placement::Shard { dim: 0, blocks: 1 }, Placement::Replicate)
        | (Placement::Replicate, Placement::Shard { dim: 0, blocks: 1 })
        | (Placement::Partial(_), Placement::Replicate | Placement::Shard { dim: 0, blocks: 1 }) => 0,
        (Placement::Replicate, Placement::Shard { .. }) => {
            traffic(cluster, 2 * ty.bytes().0 / u64::from(axis.size))
        }
        (Placement::Replicate, _) | (Placement::Shard { blocks: 1, .. }, Placement::Partial(_)) => {
            traffic(cluster, ty.bytes().0)
        }
        _ => traffic(cluster, 2 * ty.bytes().0),
    };
    Some(collectives + copies)
}

fn traffic(cluster: &Cluster, bytes: u64) -> i64 {
    (bytes as f64 / cluster.device.memory_bandwidth * PICOS + cluster.device.operation_ns * 1e3).round()
        as i64
}

/// The time of one operation of a rank's graph.
pub fn local_time(machine: Machine<'_>, call: &Call<'_>) -> i64 {
    let alone = MeshAxis { name: String::new(), size: 1 };
    operation_time(machine, call, &aten::replicated(call), &alone)
}

/// The time of one operation on one rank under a strategy along an axis, the collectives inside it included.
pub fn operation_time(machine: Machine<'_>, call: &Call<'_>, strategy: &Strategy, axis: &MeshAxis) -> i64 {
    let (cluster, ranks) = (machine.cluster, axis.size);
    if let Some(collective) = call.graph.collective(call.id) {
        return collective_time(machine, of_part(collective, strategy, ranks));
    }
    let Some(row) = aten::row(call.name()) else {
        return traffic(cluster, bytes(call, strategy, ranks));
    };
    let time = match row.work {
        Work::View | Work::Nothing => return 0,
        Work::Traffic => traffic(cluster, bytes(call, strategy, ranks)),
        Work::Flops(flops) => {
            let divided = strategy
                .operands
                .iter()
                .chain(&strategy.results)
                .any(|p| matches!(p, Placement::Shard { .. }));
            let flops = flops(call).0 as f64 / if divided { f64::from(ranks) } else { 1.0 };
            let rate = cluster.matmul_rate(call.result(0).dtype);
            let computing = (flops / rate * PICOS + cluster.device.operation_ns * 1e3).round() as i64;
            computing.max(traffic(cluster, bytes(call, strategy, ranks)))
        }
    };
    time + inner_collectives(machine, call, strategy, axis)
}

/// A collective along another axis on one rank's part of its tensor.
fn of_part<'a>(collective: Collective<'a>, strategy: &Strategy, ranks: u32) -> Collective<'a> {
    let sharded = matches!(strategy.operands.first(), Some(Placement::Shard { .. }));
    let parts = if sharded { u64::from(ranks) } else { 1 };
    Collective { bytes: Bytes(collective.bytes.0 / parts), ..collective }
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
    let count = match strategy.realise {
        Realise::Softmax | Realise::LogSoftmax => 2,
        Realise::SoftmaxBackward | Realise::LogSoftmaxBackward => 1,
        _ => return 0,
    };
    let Some(Placement::Shard { dim, .. }) = strategy.results.first() else { return 0 };
    let result = call.result(0);
    let bytes = Bytes(result.bytes().0 / result.shape[usize::from(*dim)].max(1) as u64);
    let passes = traffic(machine.cluster, 2 * bytes_of_part(result, axis.size));
    let reduction = Collective { kind: CollectiveKind::AllReduce, reduction: None, axis: &axis.name, bytes };
    let time = least_time(machine, reduction, |alone, _| alone);
    count * (time + passes)
}

fn bytes_of_part(ty: &TensorType, ranks: u32) -> u64 {
    ty.bytes().0 / u64::from(ranks)
}
