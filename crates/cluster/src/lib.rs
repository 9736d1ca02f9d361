//! Devices and links with the coefficients that costs are computed from: a text file, measured once per machine by `unisono profile`, or
//! written by hand for another machine.

#[cfg(feature = "testing")]
pub mod testing;

use std::collections::BTreeMap;

use base::{Code, Diagnostic, Fingerprint, Result};
use serde::{Deserialize, Serialize};

/// One rank's device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    /// What it is called.
    pub name: String,
    /// Memory of one rank, in bytes.
    pub memory_bytes: u64,
    /// Achieved matrix-product rate by element type, in floating-point operations per second.
    pub matmul_flops: BTreeMap<String, f64>,
    /// Achieved memory bandwidth, in bytes per second.
    pub memory_bandwidth: f64,
    /// Time to start one operation, in nanoseconds.
    pub operation_ns: f64,
    /// Slowdown of an operation and a collective while they run at the same time; 1 for none.
    #[serde(default = "one")]
    pub overlap_factor: f64,
}

const fn one() -> f64 {
    1.0
}

/// A collective's time: a latency, and a bandwidth for the bytes that one rank sends.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Time of the smallest one, in nanoseconds.
    pub latency_ns: f64,
    /// Bytes per second that a rank sends.
    pub bandwidth: f64,
}

/// The collectives among the ranks of an axis.
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

/// A cluster: one kind of device, and the links between the ranks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Version of this description's format.
    pub version: u32,
    /// The devices.
    pub device: Device,
    /// The links.
    pub links: Links,
}

/// Maximum overlap factor.
const MOST_OVERLAP: f64 = 1000.0;

/// The version of the format that is written.
const VERSION: u32 = 1;

impl Cluster {
    /// Reads a description. `file` is what diagnostics call it.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let cluster: Self = toml::from_str(text).map_err(|error| malformed(text, file, &error))?;
        cluster.check(file)?;
        Ok(cluster)
    }

    fn check(&self, file: &str) -> Result<()> {
        let links =
            [self.links.all_reduce, self.links.all_gather, self.links.reduce_scatter, self.links.all_to_all];
        let rates = self.device.matmul_flops.values().copied().chain([self.device.memory_bandwidth]);
        let rates = rates.chain(links.iter().map(|link| link.bandwidth));
        let times = links.iter().map(|link| link.latency_ns).chain([self.device.operation_ns]);
        let wrong = |what: &str| {
            let message = format!("a cluster description has a {what}");
            Err(Diagnostic::new(Code::BAD_CLUSTER, message)
                .at_line(file, 0, 0)
                .hint("measure it with `unisono profile`"))
        };
        if self.version != VERSION {
            return wrong(&format!("version {}, not {VERSION}", self.version));
        }
        if rates.clone().any(|rate| !rate.is_finite() || rate <= 0.0) {
            return wrong("rate that is not positive");
        }
        if times.clone().any(|time| !time.is_finite() || time < 0.0) {
            return wrong("time that is negative");
        }
        if !(1.0..=MOST_OVERLAP).contains(&self.device.overlap_factor) {
            return wrong("factor for overlap that is not between 1 and 1000");
        }
        if self.device.matmul_flops.is_empty() {
            return wrong("device without a `matmul_flops` rate");
        }
        Ok(())
    }

    /// The description as text.
    pub fn text(&self) -> String {
        toml::to_string_pretty(self).expect("a cluster has no keys that TOML lacks")
    }

    /// What identifies the description.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.text().as_bytes())
    }

    /// The matrix-product rate for an element type: its own, or the slowest one known.
    pub fn matmul_rate(&self, dtype: ir::Dtype) -> f64 {
        let slowest = self.device.matmul_flops.values().copied().fold(f64::INFINITY, f64::min);
        self.device.matmul_flops.get(dtype.text()).copied().unwrap_or(slowest)
    }
}

fn malformed(text: &str, file: &str, error: &toml::de::Error) -> Box<Diagnostic> {
    let offset = error.span().map_or(0, |span| span.start);
    let diagnostic =
        base::malformed(Code::BAD_CLUSTER, "a cluster description", (text, file), error.message(), offset);
    if diagnostic.hint.is_some() { diagnostic } else { diagnostic.hint("`unisono profile` writes one") }
}
