//! What programs run on.

use base::Nanos;
use cluster::Cluster;
use ir::{Graph, Mesh};

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

/// The time of a copy of so many bytes between a device and its host, one way; on a host itself, where no link is known, that of a copy in its
/// own memory.
pub fn host_copy_time(cluster: &Cluster, bytes: u64) -> i64 {
    let device = &cluster.device;
    let Some(bandwidth) = device.host_bandwidth else { return traffic(cluster, 2 * bytes) };
    (bytes as f64 / bandwidth * PICOS + device.host_latency_ns * 1e3).round() as i64
}

/// What a step takes on the host around the program of a rank.
pub fn call_time(cluster: &Cluster, graph: &Graph) -> Nanos {
    let state = graph.inputs.values().filter(|input| input.class.is_state()).count();
    let device = &cluster.device;
    Nanos((device.call_ns + device.call_tensor_ns * state as f64).round() as i64)
}

/// The time of an operation that does nothing but read and write so many bytes.
pub fn traffic(cluster: &Cluster, bytes: u64) -> i64 {
    (bytes as f64 / cluster.device.memory_bandwidth * PICOS + cluster.device.operation_ns * 1e3).round()
        as i64
}
