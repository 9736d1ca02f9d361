//! What collectives take in steps, beside what they take alone.

use ir::CollectiveKind;
use serde::{Deserialize, Serialize};

use crate::Network;

/// How many times as long as alone a kind of collective took, by bytes.
pub type Times = Vec<(u64, f64)>;

/// What became of the collectives of groups of one shape in the programs of steps: there, ranks do not come to one at the same moment, and
/// what it reads and writes is in no cache.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InSteps {
    /// The shape, as that of [`crate::GroupTimes`].
    pub shape: Vec<u32>,
    /// How much later than a rank the last one comes to a collective, in the mean over ranks: nanoseconds that there always are.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub late_ns: f64,
    /// And a part of the time since they last met.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub late: f64,
    /// All-reduce.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all_reduce: Times,
    /// All-gather.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all_gather: Times,
    /// Reduce-scatter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reduce_scatter: Times,
    /// All-to-all; bytes are those of one rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub all_to_all: Times,
    /// Each rank sends all it has to the next one; bytes are those of one rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permute: Times,
}

impl InSteps {
    /// How many times as long as alone a collective takes: between two sizes that were seen, on a straight line over the logarithm of bytes,
    /// beyond them as at the last; of a kind that was not seen, as all others in the mean, so that what is not known looks no better.
    pub fn times(&self, kind: CollectiveKind, bytes: f64) -> f64 {
        let seen = self.of(kind);
        let above = seen.partition_point(|(size, _)| (*size as f64) < bytes);
        let below = above.checked_sub(1).map(|below| seen[below]);
        match (below, seen.get(above).copied()) {
            (None, None) => self.mean(),
            (Some((_, times)), None) | (None, Some((_, times))) => times,
            (Some((from, start)), Some((to, end))) => {
                let [from, to, at] = [from as f64, to as f64, bytes].map(|bytes| bytes.max(1.0).ln());
                if to > from { start + (end - start) * (at - from) / (to - from) } else { end }
            }
        }
    }

    /// The geometric mean of all that was seen.
    fn mean(&self) -> f64 {
        let all = || self.kinds().into_iter().flat_map(|(_, times)| times);
        let count = all().count();
        if count == 0 { 1.0 } else { (all().map(|(_, times)| times.ln()).sum::<f64>() / count as f64).exp() }
    }

    const fn of(&self, kind: CollectiveKind) -> &Times {
        match kind {
            CollectiveKind::AllReduce => &self.all_reduce,
            CollectiveKind::AllGather | CollectiveKind::Broadcast => &self.all_gather,
            CollectiveKind::ReduceScatter => &self.reduce_scatter,
            CollectiveKind::AllToAll => &self.all_to_all,
            CollectiveKind::Permute => &self.permute,
        }
    }

    /// What was seen of each kind, with its name.
    const fn kinds(&self) -> [(&'static str, &Times); 5] {
        [
            ("all_reduce", &self.all_reduce),
            ("all_gather", &self.all_gather),
            ("reduce_scatter", &self.reduce_scatter),
            ("all_to_all", &self.all_to_all),
            ("permute", &self.permute),
        ]
    }

    /// The name of a value that is impossible on these levels, and what it is.
    pub(crate) fn wrong(&self, network: Option<&Network>) -> Option<(&'static str, &'static str)> {
        if let Some(wrong) = crate::groups::wrong_shape(&self.shape, network) {
            return Some(wrong);
        }
        if !crate::is_time(self.late_ns) {
            return Some(("late_ns", "a time that is negative"));
        }
        if !crate::is_time(self.late) {
            return Some(("late", "a part that is negative"));
        }
        self.kinds().into_iter().find_map(|(name, times)| {
            if times.iter().any(|(_, times)| !crate::is_rate(*times)) {
                return Some((name, "with a factor that is not positive"));
            }
            let ordered = times.windows(2).all(|pair| pair[0].0 < pair[1].0);
            (!ordered).then_some((name, "seen in another order than that of sizes, each once"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_lie_between_those_of_the_sizes_that_were_seen_and_others_are_as_the_mean() {
        let seen = InSteps {
            shape: vec![2],
            all_to_all: vec![(16, 4.0), (1024, 2.0), (4096, 1.0)],
            ..InSteps::default()
        };
        let times = |kind, bytes| seen.times(kind, bytes);
        let all_to_all = |bytes| times(CollectiveKind::AllToAll, bytes);
        for (bytes, expected) in [(0.0, 4.0), (16.0, 4.0), (1024.0, 2.0), (1e9, 1.0)] {
            assert!((all_to_all(bytes) - expected).abs() < 1e-12, "{bytes}");
        }
        // Between 2^4 and 2^10.
        assert!((all_to_all(128.0) - 3.0).abs() < 1e-12);
        // The cube root of 4 * 2 * 1.
        assert!((times(CollectiveKind::AllReduce, 64.0) - 2.0).abs() < 1e-12);
        assert!((InSteps::default().times(CollectiveKind::AllReduce, 64.0) - 1.0).abs() < 1e-12);
    }
}
