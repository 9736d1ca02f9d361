//! Times, in integer picoseconds.

use aten::{Call, Realise, Strategy, Work};
use base::Bytes;
use cluster::{Cluster, Link};
use ir::{CollectiveKind, Graph, NodeId, Placement, TensorType};
use shard::{Reshard, Step, local_shape, reshard_steps};

const PICOS: f64 = 1e12;

/// The time of one collective among `ranks`, as the library does it.
pub fn collective_time(cluster: &Cluster, collective: Step, ranks: u32) -> i64 {
    let share = f64::from(ranks - 1) / f64::from(ranks);
    let bytes = collective.bytes.0 as f64;
    let links = &cluster.links;
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

/// The time of one collective among `ranks` if each sends to each in one round, with the copies and sums around it; `None` for what is an
/// exchange already.
fn direct_time(cluster: &Cluster, collective: Step, ranks: u32) -> Option<i64> {
    let whole = collective.bytes.0;
    let part = whole / u64::from(ranks);
    let (sent, local) = match collective.kind {
        CollectiveKind::AllReduce => {
            let copies = whole * u64::from(ranks);
            (copies, traffic(cluster, 2 * copies) + traffic(cluster, copies + whole))
        }
        CollectiveKind::AllGather => (whole, traffic(cluster, 2 * whole)),
        CollectiveKind::ReduceScatter => (whole, traffic(cluster, whole + part)),
        CollectiveKind::AllToAll | CollectiveKind::Broadcast => return None,
    };
    let exchange = Step { kind: CollectiveKind::AllToAll, bytes: Bytes(sent) };
    Some(collective_time(cluster, exchange, ranks) + local)
}

/// The least time of one collective among `ranks`, as `share` counts it from the time of the collective and that of an empty one. Direct
/// collectives count where an empty one is no slower: sizes from which on they would be faster are not told apart.
fn least_time(cluster: &Cluster, collective: Step, ranks: u32, share: impl Fn(i64, i64) -> i64) -> i64 {
    let empty = Step { bytes: Bytes(0), ..collective };
    let latency = collective_time(cluster, empty, ranks);
    let usual = share(collective_time(cluster, collective, ranks), latency);
    let direct = direct_time(cluster, collective, ranks).zip(direct_time(cluster, empty, ranks));
    match direct {
        Some((alone, starting)) if starting <= latency => usual.min(share(alone, starting)),
        _ => usual,
    }
}

/// Past this, a collective that is faster direct is faster direct whatever its size.
const ANY_SIZE: Bytes = Bytes(1 << 40);

/// Up to how many bytes a collective of a kind is faster in one round from each to each; 0 where it never is.
pub fn direct_limit(cluster: &Cluster, kind: CollectiveKind, ranks: u32) -> Bytes {
    let lost = |bytes| {
        let collective = Step { kind, bytes };
        Some(direct_time(cluster, collective, ranks)? - collective_time(cluster, collective, ranks))
    };
    match (lost(Bytes(0)), lost(ANY_SIZE)) {
        (Some(empty), Some(large)) if empty < 0 && large > 0 => {
            // Both times are straight lines over bytes.
            Bytes((ANY_SIZE.0 as f64 * -empty as f64 / (large - empty) as f64) as u64)
        }
        (Some(empty), Some(large)) if empty <= 0 && large < 0 => ANY_SIZE,
        _ => Bytes(0),
    }
}

/// Collectives on parameters and gradients go in buckets, and so share the latency of one among about so many.
const BUCKET: i64 = 16;

/// Whether a collective waits for others of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Company {
    /// It is on the way from one operation to the next.
    Alone,
    /// It belongs to state or gradients: many of its kind are ready together, and a pass puts them into buckets.
    Bucketed,
}

/// The time of a change of placement: its collectives, and the copies that put parts in order. `None` where it is impossible.
pub fn reshard_time(
    cluster: &Cluster,
    ty: &TensorType,
    reshard: Reshard,
    ranks: u32,
    company: Company,
) -> Option<i64> {
    let steps = reshard_steps(ty, reshard, ranks)?;
    let share = |alone: i64, latency: i64| match company {
        Company::Alone => alone,
        Company::Bucketed => alone - latency + latency / BUCKET,
    };
    let time = |step: &Step| least_time(cluster, *step, ranks, share);
    let collectives: i64 = steps.iter().map(time).sum();
    let copies = match (reshard.from, reshard.to) {
        (from, to) if from == to => 0,
        (Placement::Shard { dim: 0, blocks: 1 }, Placement::Replicate)
        | (Placement::Replicate, Placement::Shard { dim: 0, blocks: 1 })
        | (Placement::Partial(_), Placement::Replicate | Placement::Shard { dim: 0, blocks: 1 }) => 0,
        (Placement::Replicate, Placement::Shard { .. }) => {
            traffic(cluster, 2 * ty.bytes().0 / u64::from(ranks))
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

/// The time of one operation on one rank under a strategy, the collectives inside it included.
pub fn operation_time(cluster: &Cluster, call: &Call<'_>, strategy: &Strategy, ranks: u32) -> i64 {
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
    time + inner_collectives(cluster, call, strategy, ranks)
}

/// Bytes that an operation reads and writes on one rank.
fn bytes(call: &Call<'_>, strategy: &Strategy, ranks: u32) -> u64 {
    let local = |ty: &TensorType, placement: Placement| {
        let elements: i64 = local_shape(&ty.shape, placement, ranks).iter().product();
        elements as u64 * ty.dtype.bytes()
    };
    let read = strategy.operands.iter().enumerate().map(|(i, p)| local(call.operand(i), *p));
    let written = strategy.results.iter().enumerate().map(|(i, p)| local(call.result(i), *p));
    read.chain(written).sum()
}

/// The small all-reduces that some strategies make inside an operation, and the passes over the operand that they add.
fn inner_collectives(cluster: &Cluster, call: &Call<'_>, strategy: &Strategy, ranks: u32) -> i64 {
    let count = match strategy.realise {
        Realise::Softmax | Realise::LogSoftmax => 2,
        Realise::SoftmaxBackward | Realise::LogSoftmaxBackward => 1,
        _ => return 0,
    };
    let Some(Placement::Shard { dim, .. }) = strategy.results.first() else { return 0 };
    let result = call.result(0);
    let bytes = Bytes(result.bytes().0 / result.shape[usize::from(*dim)].max(1) as u64);
    let passes = traffic(cluster, 2 * bytes_of_part(result, ranks));
    let reduction = Step { kind: CollectiveKind::AllReduce, bytes };
    let time = least_time(cluster, reduction, ranks, |alone, _| alone);
    count * (time + passes)
}

fn bytes_of_part(ty: &TensorType, ranks: u32) -> u64 {
    ty.bytes().0 / u64::from(ranks)
}

/// The predicted time of one rank's graph.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct GraphTime {
    /// Operations, in picoseconds.
    pub compute: i64,
    /// Collectives, in picoseconds, as if nothing ran beside them.
    pub communication: i64,
    /// Operations.
    pub operations: u32,
    /// Collectives.
    pub collectives: u32,
}

/// Adds up the times of a rank's graph.
pub fn graph_time(cluster: &Cluster, graph: &Graph, ranks: u32) -> GraphTime {
    let mut time = GraphTime::default();
    for node in &graph.order {
        if let Some(collective) = step(graph, *node) {
            time.communication += collective_time(cluster, collective, ranks);
            time.collectives += 1;
        } else if !graph.is_wait(*node) {
            let call = Call::new(graph, *node);
            time.compute += operation_time(cluster, &call, &aten::replicated(&call), 1);
            time.operations += 1;
        }
    }
    time
}

/// The collective that a node of a rank's graph starts, as changes of placement count it.
pub fn step(graph: &Graph, node: NodeId) -> Option<Step> {
    graph.collective(node).map(|it| Step { kind: it.kind, bytes: it.bytes })
}
