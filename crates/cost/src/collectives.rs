//! Times of collectives.

use base::Bytes;
use cluster::{Cluster, Interconnect, Link, Links};
use ir::{Collective, CollectiveKind, MeshAxis};

use crate::{
    machine::{Machine, PICOS, traffic},
    network::{Group, network_time},
};

/// The time of one collective, as the library does it.
pub fn collective_time(machine: Machine<'_>, collective: Collective<'_>) -> i64 {
    let ranks = machine.mesh.size_of(collective.axis);
    let stride = || machine.mesh.stride_of(collective.axis);
    group_time(machine.cluster, collective.kind, ranks, stride, collective.bytes)
}

/// The time of a collective of `bytes` among `ranks` ranks that are `stride` apart, in picoseconds.
pub fn group_time(
    cluster: &Cluster,
    kind: CollectiveKind,
    ranks: u32,
    stride: impl Fn() -> u32,
    bytes: Bytes,
) -> i64 {
    match &cluster.interconnect {
        Interconnect::Measured(links) => measured_time(links, kind, bytes, ranks),
        Interconnect::Levels(network) => {
            // A broadcast is a transfer between two stages.
            let is_transfer = kind == CollectiveKind::Broadcast;
            let ranks = if is_transfer { ranks.min(2) } else { ranks };
            let group = Group { ranks, stride: stride() };
            (network_time(network, group, kind, bytes.0 as f64) * PICOS).round() as i64
        }
    }
}

fn measured_time(links: &Links, kind: CollectiveKind, bytes: Bytes, ranks: u32) -> i64 {
    let share = f64::from(ranks - 1) / f64::from(ranks);
    let bytes = bytes.0 as f64;
    let (link, sent) = match kind {
        CollectiveKind::AllReduce => (links.all_reduce, 2.0 * bytes * share),
        CollectiveKind::AllGather => (links.all_gather, bytes * share),
        // One rank sends everything to one.
        CollectiveKind::Broadcast => (links.all_gather, bytes),
        CollectiveKind::ReduceScatter => (links.reduce_scatter, bytes * share),
        CollectiveKind::AllToAll => (links.all_to_all, bytes * share),
        CollectiveKind::Permute => (links.all_to_all, bytes),
    };
    on_link(link, sent)
}

fn on_link(link: Link, bytes: f64) -> i64 {
    (link.latency_ns * 1e3 + bytes / link.bandwidth * PICOS).round() as i64
}

/// The time of a direct collective, in which each rank sends to each in one round, with the copies and sums around it; `None` for
/// kinds that have no direct form, and where the network is known by its levels: libraries know what such a network does best.
fn direct_time(machine: Machine<'_>, collective: Collective<'_>) -> Option<i64> {
    let cluster = machine.cluster;
    let Interconnect::Measured(_) = &cluster.interconnect else { return None };
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
        CollectiveKind::AllToAll | CollectiveKind::Permute | CollectiveKind::Broadcast => return None,
    };
    let exchange = Collective { kind: CollectiveKind::AllToAll, bytes: Bytes(sent), ..collective };
    Some(collective_time(machine, exchange) + local)
}

/// Whether a collective waits for others of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Company {
    /// It lies between two operations, and the second waits for it.
    Alone,
    /// It moves state or gradients, which a pass puts into buckets.
    Bucketed,
}

/// Assumed number of collectives per bucket, which share the time of one.
const BUCKET: i64 = 16;

/// The time of the faster form of a collective, or its share of a bucket's. The direct form is considered only where an empty direct
/// collective is no slower.
pub fn least_time(machine: Machine<'_>, collective: Collective<'_>, company: Company) -> i64 {
    let together = if company == Company::Bucketed { BUCKET } else { 1 };
    let all = Collective { bytes: Bytes(collective.bytes.0 * together as u64), ..collective };
    let empty = Collective { bytes: Bytes(0), ..collective };
    let usual = collective_time(machine, all);
    let starting = direct_time(machine, empty).filter(|direct| *direct <= collective_time(machine, empty));
    let direct = starting.and_then(|_| direct_time(machine, all));
    direct.map_or(usual, |direct| direct.min(usual)) / together
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
