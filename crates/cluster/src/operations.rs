//! What single operations take, as measured: a few coefficients for each operator and element type.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What one call of an operation does.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Amounts {
    /// Floating-point operations; 0 for what only reads and writes.
    pub flops: f64,
    /// Bytes that it reads and writes.
    pub bytes: u64,
    /// Tensors that it reads and writes.
    pub tensors: usize,
}

/// What a call of an operator takes: what was measured of calls that do as much, and for others what was fitted to these, linear in what a
/// call does.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Time of a call that does nothing, in nanoseconds.
    #[serde(default)]
    pub start_ns: f64,
    /// Picoseconds of each floating-point operation.
    #[serde(default)]
    pub flop_ps: f64,
    /// Picoseconds of each byte.
    #[serde(default)]
    pub byte_ps: f64,
    /// From how many bytes on a byte takes longer.
    #[serde(default)]
    pub cached_bytes: u64,
    /// How much longer each byte beyond these takes, in picoseconds.
    #[serde(default)]
    pub uncached_byte_ps: f64,
    /// Picoseconds of each tensor.
    #[serde(default)]
    pub tensor_ps: f64,
    /// The median of how far measurements are from the fit, as a part of what was measured.
    #[serde(default)]
    pub error: f64,
    /// What was measured, one row for each call: floating-point operations, bytes, tensors, nanoseconds.
    #[serde(default)]
    pub measured: Vec<(f64, u64, usize, f64)>,
}

impl Fit {
    /// The time of a call, in picoseconds.
    pub fn picos(&self, amounts: Amounts) -> f64 {
        let same = |(flops, bytes, tensors, _): &&(f64, u64, usize, f64)| {
            *bytes == amounts.bytes && *tensors == amounts.tensors && flops.total_cmp(&amounts.flops).is_eq()
        };
        if let Some((.., nanos)) = self.measured.iter().find(same) {
            return nanos * 1e3;
        }
        let beyond = amounts.bytes.saturating_sub(self.cached_bytes) as f64;
        self.start_ns * 1e3
            + self.flop_ps * amounts.flops
            + self.byte_ps * amounts.bytes as f64
            + self.uncached_byte_ps * beyond
            + self.tensor_ps * amounts.tensors as f64
    }

    /// The same for a device that does so many times as much in the same time.
    #[must_use]
    pub fn faster(mut self, factor: f64) -> Self {
        let times = [&mut self.start_ns, &mut self.flop_ps, &mut self.byte_ps, &mut self.uncached_byte_ps];
        let rows = self.measured.iter_mut().map(|(.., nanos)| nanos);
        times.into_iter().chain([&mut self.tensor_ps]).chain(rows).for_each(|time| *time /= factor);
        self
    }

    /// Whether all its times can be.
    pub(crate) fn is_possible(&self) -> bool {
        let times = [self.start_ns, self.flop_ps, self.byte_ps, self.uncached_byte_ps, self.tensor_ps];
        let measured = self.measured.iter().map(|(.., nanos)| *nanos);
        times.into_iter().chain(measured).all(crate::is_time)
    }
}

/// Fits by operator, such as `aten::add.Tensor`, and element type, such as `f32`.
pub type Operations = BTreeMap<String, BTreeMap<String, Fit>>;
