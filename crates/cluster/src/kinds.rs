//! Clusters of several kinds of devices.
//!
//! All ranks run the same program on shards of one size, so an operation takes what the slowest kind takes, and as much memory is there as the
//! smallest kind has.

use std::collections::BTreeMap;

use crate::{Bound, Cluster, Device, Interconnect, Level, Network, Operations, Overlap, Slowdown};

/// Ranks with one kind of device.
#[derive(Clone, PartialEq, Debug)]
pub struct Kind {
    /// How many, numbered one after the other.
    pub ranks: u32,
    /// The same cluster with this kind of device alone.
    pub cluster: Cluster,
}

impl Cluster {
    /// A cluster with so many ranks of each kind.
    pub(crate) fn of_kinds(kinds: Vec<(u32, Device)>, alone: &Self) -> Self {
        let device = worst(&kinds);
        let of = |(ranks, device)| Kind { ranks, cluster: Self { device, ..alone.clone() } };
        Self { device, kinds: kinds.into_iter().map(of).collect(), ..alone.clone() }
    }
}

/// A device that is as slow and as small as the worst of all in each number. What single operations take stays with the kinds.
fn worst(kinds: &[(u32, Device)]) -> Device {
    let devices = || kinds.iter().map(|(_, device)| device);
    let least = |of: fn(&Device) -> f64| devices().map(of).fold(f64::INFINITY, f64::min);
    let most = |of: fn(&Device) -> f64| devices().map(of).fold(0.0, f64::max);
    let hosts = || devices().map(|device| device.host_bandwidth);
    let has_hosts = hosts().all(|bandwidth| bandwidth.is_some());
    let attend = devices().any(|device| !device.attention_flops.is_empty());
    Device {
        name: named(kinds),
        memory_bytes: devices().map(|device| device.memory_bytes).min().unwrap_or_default(),
        matmul_flops: slowest(kinds, |device| &device.matmul_flops, Device::matmul_rate_of),
        attention_flops: if attend {
            slowest(kinds, |device| &device.attention_flops, Device::attention_rate_of)
        } else {
            BTreeMap::new()
        },
        memory_bandwidth: least(|device| device.memory_bandwidth),
        uneven_bandwidth: devices()
            .any(|device| device.uneven_bandwidth.is_some())
            .then(|| least(|device| device.uneven_bandwidth.unwrap_or(device.memory_bandwidth))),
        operation_ns: most(|device| device.operation_ns),
        call_ns: most(|device| device.call_ns),
        call_tensor_ns: most(|device| device.call_tensor_ns),
        overlap_factor: most(|device| device.overlap_factor),
        overlap: Overlap {
            products: slowest_beside(kinds, Bound::Products),
            bytes: slowest_beside(kinds, Bound::Bytes),
        },
        host_bandwidth: has_hosts.then(|| hosts().flatten().fold(f64::INFINITY, f64::min)),
        host_latency_ns: most(|device| device.host_latency_ns),
        host_memory_bytes: devices().filter_map(|device| device.host_memory_bytes).min(),
        spread: most(|device| device.spread),
        measured_on: None,
        operations: Operations::new(),
    }
}

/// The most that operations of a kind and collectives slow each other; none where no kind of device says so apart.
fn slowest_beside(kinds: &[(u32, Device)], bound: Bound) -> Option<Slowdown> {
    let all = || kinds.iter().map(|(_, device)| device.slowdown(bound));
    let most = |of: fn(Slowdown) -> f64| all().map(of).fold(1.0, f64::max);
    let is_apart = kinds.iter().any(|(_, device)| !device.overlap.is_empty());
    is_apart
        .then(|| Slowdown { operation: most(|one| one.operation), collective: most(|one| one.collective) })
}

/// Such as `8 H100 + 8 A100`.
fn named(kinds: &[(u32, Device)]) -> String {
    let names: Vec<String> = kinds.iter().map(|(ranks, device)| format!("{ranks} {}", device.name)).collect();
    names.join(" + ")
}

/// The slowest rate of each element type that some kind has a rate for.
fn slowest(
    kinds: &[(u32, Device)],
    rates: impl Fn(&Device) -> &BTreeMap<String, f64>,
    rate: impl Fn(&Device, &str) -> f64,
) -> BTreeMap<String, f64> {
    let names = kinds.iter().flat_map(|(_, device)| rates(device).keys());
    let of = |name: &String| kinds.iter().map(|(_, device)| rate(device, name)).fold(f64::INFINITY, f64::min);
    names.map(|name| (name.clone(), of(name))).collect()
}

impl Network {
    /// A network as slow as the slower of two with the same ranks in each unit, in each number.
    pub(crate) fn slower(&self, other: &Self) -> Self {
        let levels = self.levels.iter().zip(&other.levels).map(|(one, other)| one.slower(other));
        Self {
            start_ns: self.start_ns.max(other.start_ns),
            tree_share: self.tree_share.min(other.tree_share),
            error: self.error.max(other.error),
            levels: levels.collect(),
        }
    }
}

impl Level {
    fn slower(&self, other: &Self) -> Self {
        let switches = self.in_switch.zip(other.in_switch);
        let peers = [self.peer_bandwidth, other.peer_bandwidth].into_iter().flatten();
        Self {
            name: self.name.clone(),
            ranks: self.ranks,
            bandwidth: self.bandwidth.min(other.bandwidth),
            oversubscription: self.oversubscription.max(other.oversubscription),
            peer_bandwidth: peers.reduce(f64::min),
            in_switch: switches.map(|(one, other)| crate::InSwitch {
                ranks: one.ranks.max(other.ranks),
                bandwidth: one.bandwidth.min(other.bandwidth),
            }),
            hop_ns: self.hop_ns.max(other.hop_ns),
            small_hop_ns: self.small_hop_ns.max(other.small_hop_ns),
            small_bandwidth: self.small_bandwidth.min(other.small_bandwidth),
        }
    }
}

/// The kinds of a preset's name, such as `h100:2x8+a100:1x8`, put together.
pub fn joined(parts: Vec<(u32, Cluster)>) -> Option<Cluster> {
    let network = |cluster: &Cluster| match &cluster.interconnect {
        Interconnect::Levels(network) => network.clone(),
        Interconnect::Measured(_) => unreachable!("presets have levels"),
    };
    let mut networks = parts.iter().map(|(_, cluster)| network(cluster));
    let first = networks.next()?;
    let mut all = networks.fold(first, |one, other| one.slower(&other));
    all.levels.last_mut()?.ranks = parts.iter().map(|(ranks, _)| ranks).sum();
    let kinds = parts.into_iter().map(|(ranks, cluster)| (ranks, cluster.device)).collect::<Vec<_>>();
    let interconnect = Interconnect::Levels(all);
    let alone = Cluster {
        device: kinds.first()?.1.clone(),
        kinds: Vec::new(),
        interconnect,
        groups: Vec::new(),
        in_steps: Vec::new(),
    };
    Some(Cluster::of_kinds(kinds, &alone))
}
