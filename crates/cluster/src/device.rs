//! What one rank computes with.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Bound, Fit, Operations, Overlap, Slowdown};

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
    /// Achieved rate of attention that is one kernel, by element type, in floating-point operations per second; that of products where
    /// nothing is said. Pairs that a causal mask leaves out do not count.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub attention_flops: BTreeMap<String, f64>,
    /// Achieved memory bandwidth, in bytes per second.
    pub memory_bandwidth: f64,
    /// That of single operations whose tensors are not all of one shape and order, which kernels walk through element by element;
    /// the same as of others where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uneven_bandwidth: Option<f64>,
    /// Time to start one operation, in nanoseconds.
    pub operation_ns: f64,
    /// What a step takes on the host around its program, where the host waits for the program: its call is looked at, and what it returns is
    /// put together. In nanoseconds.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub call_ns: f64,
    /// What each tensor of state adds to that, in nanoseconds.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub call_tensor_ns: f64,
    /// Slowdown of an operation and a collective while they run at the same time; 1 for none.
    #[serde(default = "crate::one")]
    pub overlap_factor: f64,
    /// The same by what operations are limited by, of the operation and of the collective, where that was measured apart.
    #[serde(default, skip_serializing_if = "Overlap::is_empty")]
    pub overlap: Overlap,
    /// Bytes per second between a device and memory of its host, each way; without it nothing goes there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_bandwidth: Option<f64>,
    /// Time until a copy between them begins, in nanoseconds.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub host_latency_ns: f64,
    /// Memory of the host for one rank, in bytes; as much as is asked for where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_memory_bytes: Option<u64>,
    /// How far apart repeats of what was measured were, as a part of their median; 0 where nothing was repeated.
    #[serde(default, skip_serializing_if = "crate::is_zero")]
    pub spread: f64,
    /// What it was measured on and with, where it was measured: a description is as true elsewhere as that is like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured_on: Option<String>,
    /// What operations take that were measured; others take what the rates say.
    #[serde(default, skip_serializing_if = "Operations::is_empty")]
    pub operations: Operations,
}

/// Maximum overlap factor.
const MOST_OVERLAP: f64 = 1000.0;

impl Device {
    /// The matrix-product rate for an element type: its own, or the slowest one known.
    pub fn matmul_rate(&self, dtype: ir::Dtype) -> f64 {
        self.matmul_rate_of(dtype.text())
    }

    pub(crate) fn matmul_rate_of(&self, dtype: &str) -> f64 {
        let slowest = self.matmul_flops.values().copied().fold(f64::INFINITY, f64::min);
        self.matmul_flops.get(dtype).copied().unwrap_or(slowest)
    }

    /// The rate of attention that is one kernel, for an element type.
    pub fn attention_rate(&self, dtype: ir::Dtype) -> f64 {
        self.attention_rate_of(dtype.text())
    }

    pub(crate) fn attention_rate_of(&self, dtype: &str) -> f64 {
        self.attention_flops.get(dtype).copied().unwrap_or_else(|| self.matmul_rate_of(dtype))
    }

    /// What was measured of an operator for an element type.
    pub fn fit(&self, operator: &str, dtype: ir::Dtype) -> Option<&Fit> {
        self.operations.get(operator)?.get(dtype.text())
    }

    /// What an operation that is limited by this and a collective do to each other.
    pub fn slowdown(&self, bound: Bound) -> Slowdown {
        let apart = match bound {
            Bound::Products => self.overlap.products,
            Bound::Bytes => self.overlap.bytes,
        };
        apart.unwrap_or(Slowdown { operation: self.overlap_factor, collective: self.overlap_factor })
    }

    /// The name of a value that is impossible, and what it is.
    pub(crate) fn wrong(&self) -> Option<(&str, &str)> {
        if self.matmul_flops.is_empty() {
            return Some(("matmul_flops", "without a rate"));
        }
        let rates = self.matmul_flops.iter().chain(&self.attention_flops);
        let rates = rates.map(|(name, rate)| (name.as_str(), *rate));
        let rates = rates.chain([("memory_bandwidth", self.memory_bandwidth)]);
        let rates = rates.chain(self.uneven_bandwidth.map(|rate| ("uneven_bandwidth", rate)));
        let rates = rates.chain(self.host_bandwidth.map(|rate| ("host_bandwidth", rate)));
        let rate = rates.into_iter().find(|(_, rate)| !crate::is_rate(*rate));
        let rate = rate.map(|(name, _)| (name, "a rate that is not positive"));
        let times = [
            ("operation_ns", self.operation_ns),
            ("call_ns", self.call_ns),
            ("call_tensor_ns", self.call_tensor_ns),
            ("host_latency_ns", self.host_latency_ns),
        ];
        let time = times.into_iter().find(|(_, time)| !crate::is_time(*time));
        let time = time.map(|(name, _)| (name, "a time that is negative"));
        let apart = Bound::ALL.map(|bound| self.slowdown(bound));
        let mut apart = apart.iter().flat_map(|slowdown| [slowdown.operation, slowdown.collective]);
        let is_possible = |factor: f64| (1.0..=MOST_OVERLAP).contains(&factor);
        let overlap = match (is_possible(self.overlap_factor), apart.all(is_possible)) {
            (false, _) => Some(("overlap_factor", "not between 1 and 1000")),
            (true, false) => Some(("overlap", "a slowdown that is not between 1 and 1000")),
            (true, true) => None,
        };
        let fits = self.operations.iter().flat_map(|(name, fits)| fits.values().map(move |fit| (name, fit)));
        let fit = fits.into_iter().find(|(_, fit)| !fit.is_possible());
        let fit = fit.map(|(name, _)| (name.as_str(), "an operation of which a time is negative"));
        rate.or(time).or(overlap).or(fit)
    }
}
