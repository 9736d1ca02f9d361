//! What lies between ranks: measured as it is, or as the levels of a network.

use ir::CollectiveKind;
use serde::{Deserialize, Serialize};

/// A collective's time: a latency, and a bandwidth for the bytes that one rank sends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Time of the smallest one, in nanoseconds.
    pub latency_ns: f64,
    /// Bytes per second that a rank sends.
    pub bandwidth: f64,
}

/// The collectives among the ranks of an axis, as they were measured among all ranks.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Links {
    /// All-reduce.
    pub all_reduce: Link,
    /// All-gather.
    pub all_gather: Link,
    /// Reduce-scatter.
    pub reduce_scatter: Link,
    /// All-to-all.
    pub all_to_all: Link,
}

impl Links {
    /// The link of a kind of collective.
    pub fn of(&self, kind: CollectiveKind) -> Link {
        match kind {
            CollectiveKind::AllReduce => self.all_reduce,
            CollectiveKind::AllGather | CollectiveKind::Broadcast => self.all_gather,
            CollectiveKind::ReduceScatter => self.reduce_scatter,
            CollectiveKind::AllToAll | CollectiveKind::Permute => self.all_to_all,
        }
    }

    pub(crate) fn wrong(&self) -> Option<(&str, &str)> {
        let links = [self.all_reduce, self.all_gather, self.reduce_scatter, self.all_to_all];
        if links.iter().any(|link| !crate::is_rate(link.bandwidth)) {
            return Some(("bandwidth", "a rate that is not positive"));
        }
        let time = links.iter().any(|link| !crate::is_time(link.latency_ns));
        time.then_some(("latency_ns", "a time that is negative"))
    }
}

/// All-reduces that a switch computes.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InSwitch {
    /// The smallest group that it does so for.
    pub ranks: u32,
    /// Bytes per second, in the measure of a ring.
    pub bandwidth: f64,
}

/// One level of a network: units, such as nodes or racks, of ranks that are numbered one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Level {
    /// What a unit is called.
    pub name: String,
    /// How many ranks one holds.
    pub ranks: u32,
    /// Bytes per second that each rank of a unit within this one sends out of it at most; while all do, too, but for `oversubscription`.
    pub bandwidth: f64,
    /// How many times as much the ranks of a unit within could send together as the wires out of it carry; 1 where it carries all.
    #[serde(default = "crate::one", skip_serializing_if = "is_one")]
    pub oversubscription: f64,
    /// Bytes per second between two of the units within this one, where each pair has a wire of its own; otherwise a rank may send all its
    /// bandwidth to one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_bandwidth: Option<f64>,
    /// All-reduces that the switch computes, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_switch: Option<InSwitch>,
    /// Time of a step from one of the units within to the next, in nanoseconds.
    pub hop_ns: f64,
    /// The same for messages so small that latency decides.
    pub small_hop_ns: f64,
    /// Bytes per second of a ring of such messages.
    pub small_bandwidth: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_one(number: &f64) -> bool {
    *number <= 1.0
}

impl Level {
    /// Bytes per second that each rank of a unit within sends out of it while all do.
    pub fn share(&self) -> f64 {
        self.bandwidth / self.oversubscription
    }
}

/// A network: its levels from the innermost on, and what collectives on it have in common.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Time to start a collective, in nanoseconds.
    pub start_ns: f64,
    /// The bandwidth of a tree in that of a ring; 0 where there are no trees.
    pub tree_share: f64,
    /// The median of how far these numbers are from what was measured, as a part of that, where they were fitted.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub error: f64,
    /// The levels. The last one holds all ranks.
    pub levels: Vec<Level>,
}

impl Network {
    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.levels.last().map_or(1, |level| level.ranks)
    }

    pub(crate) fn wrong(&self) -> Option<(&str, &str)> {
        if self.levels.is_empty() {
            return Some(("levels", "none at all"));
        }
        let grows = self.levels.windows(2).all(|pair| {
            let [within, level] = pair else { return true };
            level.ranks > within.ranks && level.ranks.is_multiple_of(within.ranks.max(1))
        });
        if !grows || self.levels[0].ranks == 0 {
            return Some(("ranks", "0, or not a larger multiple of those of the level within"));
        }
        let rates = |level: &Level| {
            let switch = level.in_switch.map(|switch| switch.bandwidth);
            let optional = [level.peer_bandwidth, switch].into_iter().flatten();
            optional.chain([level.bandwidth, level.small_bandwidth]).all(crate::is_rate)
        };
        if !self.levels.iter().all(rates) || !(0.0..=1.0).contains(&self.tree_share) {
            return Some(("bandwidth", "a rate that is not positive, or `tree_share` not between 0 and 1"));
        }
        let shared = |level: &Level| level.oversubscription.is_finite() && level.oversubscription >= 1.0;
        if !self.levels.iter().all(shared) {
            return Some(("oversubscription", "no number from 1 on"));
        }
        let times = |level: &Level| crate::is_time(level.hop_ns) && crate::is_time(level.small_hop_ns);
        let times = crate::is_time(self.start_ns) && self.levels.iter().all(times);
        (!times).then_some(("hop_ns", "a time that is negative"))
    }
}

/// How the collectives of an axis get from rank to rank.
#[derive(Clone, PartialEq, Debug)]
pub enum Interconnect {
    /// Every axis is like all ranks, which were measured.
    Measured(Links),
    /// By the levels that an axis lies on.
    Levels(Network),
}
