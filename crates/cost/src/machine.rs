//! What programs run on.

use cluster::Cluster;
use ir::Mesh;

/// Picoseconds of a second.
pub const PICOS: f64 = 1e12;

/// What a program runs on.
#[derive(Clone, Copy)]
pub struct Machine<'a> {
    /// Devices and links.
    pub cluster: &'a Cluster,
    /// The ranks.
    pub mesh: &'a Mesh,
}

/// The time of an operation that does nothing but read and write so many bytes.
pub fn traffic(cluster: &Cluster, bytes: u64) -> i64 {
    (bytes as f64 / cluster.device.memory_bandwidth * PICOS + cluster.device.operation_ns * 1e3).round()
        as i64
}
