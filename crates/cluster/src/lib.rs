//! Devices and what lies between them, with the coefficients that costs are computed from: a text file, measured once per machine by
//! `unisono profile`, a preset of published figures, or written by hand for another machine.

mod coefficients;
mod description;
mod device;
mod fitting;
mod groups;
mod in_steps;
mod kinds;
mod network;
mod operations;
mod overlap;
mod presets;
#[cfg(feature = "testing")]
pub mod testing;

use base::Fingerprint;
pub use coefficients::{Says, See};
pub use device::Device;
pub use fitting::{Rates, least_squares, median};
pub use groups::{Curve, GroupTimes};
pub use in_steps::InSteps;
pub use kinds::Kind;
pub use network::{InSwitch, Interconnect, Level, Link, Links, Network};
pub use operations::{Amounts, Fit, Operations};
pub use overlap::{Bound, Overlap, Slowdown};
pub use presets::{Preset, presets};

/// A cluster: devices of one kind or several, and what lies between the ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// The devices; where there are several kinds, one that is as slow and as small as the worst of them in each number.
    pub device: Device,
    /// The kinds of devices, in the order of ranks, where there are several.
    pub kinds: Vec<Kind>,
    /// What lies between them.
    pub interconnect: Interconnect,
    /// What collectives take in groups that were measured.
    pub groups: Vec<GroupTimes>,
    /// What became of collectives in steps.
    pub in_steps: Vec<InSteps>,
}

impl Cluster {
    /// What identifies the description.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(self.text().as_bytes())
    }

    /// How many ranks there are, if the description says so.
    pub fn ranks(&self) -> Option<u32> {
        match &self.interconnect {
            Interconnect::Measured(_) => None,
            Interconnect::Levels(network) => Some(network.ranks()),
        }
    }

    /// The same with links that send so many times as much in the same time.
    #[must_use]
    pub fn with_links(&self, factor: f64) -> Self {
        let mut faster = self.clone();
        faster.kinds.iter_mut().for_each(|kind| kind.cluster = kind.cluster.with_links(factor));
        faster
            .groups
            .iter_mut()
            .flat_map(GroupTimes::curves_mut)
            .for_each(|(_, curve)| curve.speed_up(factor));
        faster.interconnect.coefficients(&mut |_, says, value| {
            if says == Says::Rate {
                *value *= factor;
            }
        });
        faster
    }

    /// The same with devices that compute, read and write so many times as much in the same time.
    #[must_use]
    pub fn with_device(&self, factor: f64) -> Self {
        let mut faster = self.clone();
        faster.kinds.iter_mut().for_each(|kind| kind.cluster = kind.cluster.with_device(factor));
        let device = &mut faster.device;
        let products = device.matmul_flops.values_mut();
        products.chain(device.attention_flops.values_mut()).for_each(|rate| *rate *= factor);
        device.memory_bandwidth *= factor;
        device.uneven_bandwidth = device.uneven_bandwidth.map(|bandwidth| bandwidth * factor);
        device.operation_ns /= factor;
        let fits = device.operations.values_mut().flat_map(|fits| fits.values_mut());
        fits.for_each(|fit| *fit = std::mem::take(fit).faster(factor));
        faster
    }
}

const fn one() -> f64 {
    1.0
}

/// Whether a number need not be written.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_zero(number: &f64) -> bool {
    *number <= 0.0
}

/// Whether a number can be a rate.
fn is_rate(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

/// Whether a number can be a time.
fn is_time(time: f64) -> bool {
    time.is_finite() && time >= 0.0
}
