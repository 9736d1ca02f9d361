//! Devices and what lies between them, with the coefficients that costs are computed from: a text file, measured once per machine by
//! `unisono profile`, a preset of published figures, or written by hand for another machine.

mod description;
mod device;
mod network;
mod presets;
#[cfg(feature = "testing")]
pub mod testing;

use base::Fingerprint;
pub use device::Device;
pub use network::{InSwitch, Interconnect, Level, Link, Links, Network};
pub use presets::{Preset, presets};

/// A cluster: one kind of device, and what lies between the ranks.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// The devices.
    pub device: Device,
    /// What lies between them.
    pub interconnect: Interconnect,
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
}

/// Whether a number can be a rate.
fn is_rate(rate: f64) -> bool {
    rate.is_finite() && rate > 0.0
}

/// Whether a number can be a time.
fn is_time(time: f64) -> bool {
    time.is_finite() && time >= 0.0
}
