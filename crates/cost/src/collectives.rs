//! Times of collectives.

use base::Bytes;
use cluster::{Cluster, Interconnect};
use ir::{Collective, CollectiveKind, MeshAxis};

use crate::{
    groups::{is_measured, measured_time, times_in_steps},
    links::{group_of, modelled_time},
    machine::{Machine, PICOS, traffic},
    network::Group,
};

/// The time of one collective, as the library does it: what was measured in its group or one like it, else what the links or levels say.
pub fn collective_time(machine: Machine<'_>, collective: Collective<'_>) -> i64 {
    group_time(machine.cluster, collective.kind, group_of(machine, collective), collective.bytes)
}

/// The time of a collective of a group in a step, in picoseconds.
pub fn group_time(cluster: &Cluster, kind: CollectiveKind, group: Group, bytes: Bytes) -> i64 {
    let bytes = bytes.0 as f64;
    let seconds = measured_time(cluster, group, kind, bytes)
        .unwrap_or_else(|| modelled_time(cluster, group, kind, bytes));
    (seconds * times_in_steps(cluster, group, kind, bytes) * PICOS).round() as i64
}

/// The time of a direct collective, in which each rank sends to each in one round, with the copies and sums around it; `None` for
/// kinds that have no direct form, and where the network is known by its levels alone: libraries know what such a network does best.
fn direct_time(machine: Machine<'_>, collective: Collective<'_>) -> Option<i64> {
    let cluster = machine.cluster;
    if let Interconnect::Levels(_) = &cluster.interconnect {
        let group = group_of(machine, collective);
        let kinds = [collective.kind, CollectiveKind::AllToAll];
        if !kinds.iter().all(|kind| is_measured(cluster, group, *kind)) {
            return None;
        }
    }
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
const ANY_SIZE: u64 = 1 << 40;

/// Up to how many bytes the direct form of a collective is the faster one; 0 where it never is.
pub fn direct_limit(machine: Machine<'_>, kind: CollectiveKind, axis: &MeshAxis) -> Bytes {
    let lost = |bytes| {
        let collective = Collective { kind, reduction: None, axis: &axis.name, bytes: Bytes(bytes) };
        Some(direct_time(machine, collective)? - collective_time(machine, collective))
    };
    match (lost(0), lost(ANY_SIZE)) {
        (Some(empty), Some(large)) if empty <= 0 && large < 0 => Bytes(ANY_SIZE),
        (Some(empty), Some(_)) if empty < 0 => Bytes(first_lost(|bytes| lost(bytes).unwrap_or(0) > 0)),
        _ => Bytes(0),
    }
}

/// The size at which something is lost for the first time, looked for at powers of two and between the first two of these.
fn first_lost(is_lost: impl Fn(u64) -> bool) -> u64 {
    let mut beyond = 1;
    while beyond < ANY_SIZE && !is_lost(beyond) {
        beyond *= 2;
    }
    let mut up_to = beyond / 2;
    while beyond - up_to > 1 {
        let middle = u64::midpoint(up_to, beyond);
        if is_lost(middle) { beyond = middle } else { up_to = middle }
    }
    up_to
}
