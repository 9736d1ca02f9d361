//! Collectives on a network of levels: what NCCL's own tuner assumes of rings and trees, and of two protocols, one of small latency and one
//! of large bandwidth; the fastest counts.
//!
//! A group of `n` ranks covers `u` units of a level, at most `m` of its ranks in each. From level to level `u` falls from `n` to 1, and
//! a ring makes one hop less at each level than the units it goes around: `u(within) - u` hops in each of its `n - 1` steps' worth.
//! Out of a unit all its `m` members send at once, each with the bandwidth of the level above.

use cluster::{Level, Network};
use ir::CollectiveKind;

/// Seconds of a nanosecond.
pub const NANO: f64 = 1e-9;

/// The ranks that take part in a collective: `ranks` of them, `stride` apart in number, of a mesh whose other ranks do the same.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// How many.
    pub ranks: u32,
    /// How far apart.
    pub stride: u32,
}

/// A level that a group crosses.
struct Crossed<'a> {
    level: &'a Level,
    /// Which one it is.
    number: usize,
    /// Units within this level that the group covers, in all.
    within: u32,
    /// Units of this level that the group covers.
    units: u32,
    /// The least number of the group's ranks in a unit within.
    members: u32,
}

impl Crossed<'_> {
    /// Bytes per second of a ring of all the members of a unit within.
    fn ring(&self) -> f64 {
        let wires = self.level.peer_bandwidth.map_or(f64::INFINITY, |peer| peer * (self.around() - 1.0));
        f64::from(self.members) * self.level.share().min(wires)
    }

    /// Bytes per second from each rank to the next one outside of its unit, while the others of the unit send within.
    fn next(&self) -> f64 {
        let wire =
            self.level.peer_bandwidth.map_or(self.level.bandwidth, |peer| peer.min(self.level.bandwidth));
        wire.min(f64::from(self.members) * self.level.share())
    }

    /// Units within that a ring goes around in each unit of this level.
    fn around(&self) -> f64 {
        f64::from(self.within.div_ceil(self.units))
    }

    fn hops(&self) -> f64 {
        f64::from(self.within - self.units)
    }
}

/// The levels that a group crosses, from the innermost on.
fn crossed(network: &Network, group: Group) -> Vec<Crossed<'_>> {
    let mut found = Vec::with_capacity(network.levels.len());
    let (mut within, mut members) = (group.ranks, 1);
    for (number, level) in network.levels.iter().enumerate() {
        let holds = if number + 1 == network.levels.len() { u32::MAX } else { level.ranks };
        let most = (holds / group.stride.max(1)).clamp(1, group.ranks.max(1));
        let units = group.ranks.div_ceil(most);
        if units < within {
            found.push(Crossed { level, number, within, units, members });
        }
        // The last unit may hold fewer.
        members = (group.ranks - (units - 1) * most).min(most);
        within = units;
    }
    found
}

/// How many bytes a rank sends for each of the tensor's.
pub fn sent(kind: CollectiveKind, ranks: u32) -> f64 {
    let share = f64::from(ranks.max(1) - 1) / f64::from(ranks.max(1));
    match kind {
        CollectiveKind::AllReduce => 2.0 * share,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => share,
        // One rank sends everything to one.
        CollectiveKind::Broadcast | CollectiveKind::Permute => 1.0,
    }
}

/// The time of a collective, in seconds; `bytes` are those of the global tensor.
pub fn network_time(network: &Network, group: Group, kind: CollectiveKind, bytes: f64) -> f64 {
    let levels = crossed(network, group);
    if levels.is_empty() {
        return network.start_ns * NANO;
    }
    let n = f64::from(group.ranks);
    let sent = bytes * (n - 1.0) / n;
    match kind {
        CollectiveKind::AllToAll => exchange(network, &levels, group, bytes),
        CollectiveKind::Permute => pass_on(network, &levels, bytes),
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => ring(network, &levels, 1.0, sent),
        CollectiveKind::Broadcast => transfer(network, &levels, bytes),
        CollectiveKind::AllReduce => {
            let ring = ring(network, &levels, 2.0, 2.0 * sent);
            ring.min(tree(network, &levels, group, 2.0 * sent))
        }
    }
}

/// A ring that goes around `rounds` times, in the better of two protocols.
fn ring(network: &Network, levels: &[Crossed<'_>], rounds: f64, sent: f64) -> f64 {
    let time = |hop: fn(&Level) -> f64, bandwidth: f64| {
        let hops: f64 = levels.iter().map(|one| one.hops() * hop(one.level)).sum();
        (network.start_ns + rounds * hops) * NANO + sent / bandwidth
    };
    let large = levels.iter().map(Crossed::ring).fold(f64::INFINITY, f64::min);
    let small = levels.iter().map(|one| one.level.small_bandwidth).fold(large, f64::min);
    time(|level| level.hop_ns, large).min(time(|level| level.small_hop_ns, small))
}

/// An all-reduce up and down a tree of the units within the outermost level, whose members are a chain, or one switch that computes.
fn tree(network: &Network, levels: &[Crossed<'_>], group: Group, sent: f64) -> f64 {
    let [inside @ .., last] = levels else { return f64::INFINITY };
    if !inside.is_empty() && network.tree_share <= 0.0 {
        return f64::INFINITY;
    }
    // Within one unit of the innermost level a tree is no better than a ring, but a switch may be.
    if inside.is_empty() {
        let in_switch = last.level.in_switch.filter(|switch| switch.ranks <= group.ranks);
        let latency = 2.0 * (network.start_ns + last.level.hop_ns) * NANO;
        return in_switch.map_or(f64::INFINITY, |switch| latency + sent / switch.bandwidth);
    }
    let chain = |one: &Crossed<'_>| {
        let hops = if one.level.in_switch.is_some() { 1.0 } else { one.around() - 1.0 };
        hops * one.level.hop_ns
    };
    let hops = inside.iter().map(chain).sum::<f64>() + last.around().log2().ceil() * last.level.hop_ns;
    let bandwidth = levels.iter().map(Crossed::ring).fold(f64::INFINITY, f64::min) * network.tree_share;
    2.0 * (network.start_ns + hops) * NANO + sent / bandwidth
}

/// Each rank sends to each: what leaves the units of a level shares the bandwidth out of them.
fn exchange(network: &Network, levels: &[Crossed<'_>], group: Group, bytes: f64) -> f64 {
    let slowest = levels.iter().map(|one| leaving(one, group, bytes)).fold(0.0, f64::max);
    let hops: f64 = levels.iter().map(|one| one.around() * one.level.small_hop_ns).sum();
    (2.0 * network.start_ns + hops) * NANO + slowest
}

/// Seconds in which what a rank sends to each gets out of the units of a level.
fn leaving(one: &Crossed<'_>, group: Group, bytes: f64) -> f64 {
    let n = f64::from(group.ranks);
    let wires = one.level.peer_bandwidth.map_or(f64::INFINITY, |peer| peer * (n - 1.0));
    bytes * (n - f64::from(one.members)) / n / one.level.share().min(wires)
}

/// Each rank sends all to one other, over one wire of each level.
fn pass_on(network: &Network, levels: &[Crossed<'_>], bytes: f64) -> f64 {
    let slowest = levels.iter().map(Crossed::next).fold(f64::INFINITY, f64::min);
    let hop = levels.iter().map(|one| one.level.small_hop_ns).fold(0.0, f64::max);
    (network.start_ns + hop) * NANO + bytes / slowest
}

/// The slowest transfer from a rank to the next one of its group, in the better of two protocols.
fn transfer(network: &Network, levels: &[Crossed<'_>], bytes: f64) -> f64 {
    let time = |one: &Crossed<'_>| {
        let (large, small) = (one.next(), one.next().min(one.level.small_bandwidth));
        let large = one.level.hop_ns * NANO + bytes / large;
        large.min(one.level.small_hop_ns * NANO + bytes / small)
    };
    network.start_ns * NANO + levels.iter().map(time).fold(0.0, f64::max)
}

/// For how many seconds a collective would keep the wires busy, by the number of each level that it crosses.
pub fn busy(network: &Network, group: Group, kind: CollectiveKind, bytes: f64) -> Vec<(usize, f64)> {
    let sent = bytes * sent(kind, group.ranks);
    let time = |one: &Crossed<'_>| match kind {
        CollectiveKind::AllToAll => leaving(one, group, bytes),
        CollectiveKind::Permute | CollectiveKind::Broadcast => bytes / one.next(),
        _ => sent / one.ring(),
    };
    crossed(network, group).iter().map(|one| (one.number, time(one))).collect()
}
