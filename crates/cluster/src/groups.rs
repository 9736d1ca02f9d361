//! What collectives take among groups of single shapes, as measured.

use ir::CollectiveKind;
use serde::{Deserialize, Serialize};

use crate::Network;

/// What one kind of collective takes in a group: what was measured by size, and a line that was fitted to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// Time of the smallest one, in nanoseconds.
    pub latency_ns: f64,
    /// Bytes per second that a rank sends.
    pub bandwidth: f64,
    /// The median of how far measurements are from the line, as a part of what was measured.
    #[serde(default)]
    pub error: f64,
    /// Bytes of the tensor and nanoseconds, by bytes.
    #[serde(default)]
    pub measured: Vec<(u64, f64)>,
}

impl Curve {
    /// Nanoseconds for a tensor of `bytes`, of each of which a rank sends `sent`: between two measured sizes on the line between these,
    /// beyond the largest by the bandwidth. Below the smallest one times fall to the latency.
    pub fn nanos(&self, bytes: f64, sent: f64) -> f64 {
        let slope = sent / self.bandwidth * 1e9;
        let above = self.measured.partition_point(|(size, _)| (*size as f64) < bytes);
        let below = above.checked_sub(1).map(|below| self.measured[below]);
        match (below, self.measured.get(above).copied()) {
            (None, None) => self.latency_ns + slope * bytes,
            (Some((size, nanos)), None) => nanos + slope * (bytes - size as f64),
            (None, Some(next)) => between((0, self.latency_ns.min(next.1)), next, bytes),
            (Some(row), Some(next)) => between(row, next, bytes),
        }
    }

    /// Makes it send so many times as much in the same time.
    pub(crate) fn speed_up(&mut self, factor: f64) {
        self.bandwidth *= factor;
        let latency = self.latency_ns;
        for (_, nanos) in &mut self.measured {
            let start = latency.min(*nanos);
            *nanos = start + (*nanos - start) / factor;
        }
    }

    /// Has all of them take so many times as long.
    pub(crate) fn slow_down(&mut self, factor: f64) {
        self.bandwidth /= factor;
        self.latency_ns *= factor;
        self.measured.iter_mut().for_each(|(_, nanos)| *nanos *= factor);
    }

    fn wrong(&self) -> Option<&'static str> {
        if !crate::is_rate(self.bandwidth) {
            return Some("with a rate that is not positive");
        }
        let times = self.measured.iter().map(|(_, nanos)| *nanos).chain([self.latency_ns]);
        if !times.into_iter().all(crate::is_time) {
            return Some("with a time that is negative");
        }
        let ordered = self.measured.windows(2).all(|pair| pair[0].0 < pair[1].0);
        (!ordered).then_some("measured in another order than that of sizes, each once")
    }
}

/// A point on the line between two others, `bytes` of which lie between.
fn between((from, start): (u64, f64), (to, end): (u64, f64), bytes: f64) -> f64 {
    let (from, to) = (from as f64, to as f64);
    if to > from { start + (end - start) * (bytes - from) / (to - from) } else { end }
}

/// What was measured in groups of one shape, while all ranks were in such groups at once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupTimes {
    /// How many ranks of each unit of the innermost level, how many of these units in each of the next level, and so on; how many ranks,
    /// where there are no levels.
    pub shape: Vec<u32>,
    /// All-reduce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_reduce: Option<Curve>,
    /// All-gather.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_gather: Option<Curve>,
    /// Reduce-scatter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reduce_scatter: Option<Curve>,
    /// All-to-all; bytes are those of one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_to_all: Option<Curve>,
    /// Each rank sends all it has to the next one; bytes are those of one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permute: Option<Curve>,
    /// One rank of two sends to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Curve>,
}

impl GroupTimes {
    /// What was measured of a kind of collective.
    pub fn curve(&self, kind: CollectiveKind) -> Option<&Curve> {
        let curve = match kind {
            CollectiveKind::AllReduce => &self.all_reduce,
            CollectiveKind::AllGather => &self.all_gather,
            CollectiveKind::ReduceScatter => &self.reduce_scatter,
            CollectiveKind::AllToAll => &self.all_to_all,
            CollectiveKind::Permute => &self.permute,
            CollectiveKind::Broadcast => &self.transfer,
        };
        curve.as_ref()
    }

    /// All that was measured, to be changed, by the name of its kind.
    pub(crate) fn curves_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut Curve)> {
        let Self { shape: _, all_reduce, all_gather, reduce_scatter, all_to_all, permute, transfer } = self;
        let curves = [
            ("all_reduce", all_reduce),
            ("all_gather", all_gather),
            ("reduce_scatter", reduce_scatter),
            ("all_to_all", all_to_all),
            ("permute", permute),
            ("transfer", transfer),
        ];
        curves.into_iter().filter_map(|(kind, curve)| Some((kind, curve.as_mut()?)))
    }

    /// The name of a value that is impossible on these levels, and what it is.
    pub(crate) fn wrong(&self, network: Option<&Network>) -> Option<(&'static str, &'static str)> {
        if let Some(wrong) = wrong_shape(&self.shape, network) {
            return Some(wrong);
        }
        CollectiveKind::ALL.into_iter().find_map(|kind| Some((kind.text(), self.curve(kind)?.wrong()?)))
    }
}

/// What is wrong with a shape on these levels.
pub fn wrong_shape(shape: &[u32], network: Option<&Network>) -> Option<(&'static str, &'static str)> {
    let ranks = shape.iter().try_fold(1_u32, |ranks, count| ranks.checked_mul(*count));
    let Some(ranks) = ranks.filter(|ranks| *ranks > 1) else {
        return Some(("shape", "no group of several ranks"));
    };
    let is_possible = match network {
        None => shape.len() == 1,
        Some(network) => {
            let stride = network.stride(shape);
            let is_there = u64::from(ranks) * u64::from(stride) <= u64::from(network.ranks());
            is_there && network.shape(ranks, stride).as_deref() == Some(shape)
        }
    };
    (!is_possible).then_some(("shape", "no group that an axis of a mesh has on these levels"))
}

impl Network {
    /// The shape of a group of `ranks` that are `stride` apart; `None` where its parts in units are not alike.
    pub fn shape(&self, ranks: u32, stride: u32) -> Option<Vec<u32>> {
        let (mut shape, mut members) = (Vec::with_capacity(self.levels.len()), 1);
        let stride = stride.max(1);
        for (number, level) in self.levels.iter().enumerate() {
            let is_last = number + 1 == self.levels.len();
            if !is_last && !level.ranks.is_multiple_of(stride) && !stride.is_multiple_of(level.ranks) {
                return None;
            }
            let most = if is_last { ranks } else { (level.ranks / stride).clamp(1, ranks) };
            if !most.is_multiple_of(members) {
                return None;
            }
            shape.push(most / members);
            members = most;
        }
        ranks.is_multiple_of(members).then_some(shape)
    }

    /// How far apart the ranks of a group of a shape are.
    pub fn stride(&self, shape: &[u32]) -> u32 {
        let crossed = |count: &u32| *count > 1;
        let Some(first) = shape.iter().position(crossed) else { return 1 };
        let within =
            first.checked_sub(1).map_or(1, |within| self.levels.get(within).map_or(1, |level| level.ranks));
        match self.levels.get(first) {
            // A group that goes on outside has all it can have within.
            Some(level) if shape[first + 1..].iter().any(crossed) => (level.ranks / shape[first]).max(1),
            _ => within,
        }
    }
}
