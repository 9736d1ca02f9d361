//! Made-up machines, for tests.

use crate::{Cluster, Device, Interconnect, Link, Links, Overlap};

/// A machine so slow beside its links that every split of work pays.
pub fn slow() -> Cluster {
    let mut cluster = uniform(1e8, 1e8, link(100.0, 1e10));
    cluster.device.operation_ns = 10.0;
    cluster
}

/// A machine with the same link for every collective. Rates are floating-point operations per second and bytes per second; starting an
/// operation takes a microsecond.
pub fn uniform(matmul_flops: f64, memory_bandwidth: f64, link: Link) -> Cluster {
    let device = Device {
        name: "made up".to_owned(),
        memory_bytes: 1_000_000_000,
        matmul_flops: [("f32".to_owned(), matmul_flops)].into(),
        attention_flops: std::collections::BTreeMap::new(),
        memory_bandwidth,
        uneven_bandwidth: None,
        operation_ns: 1_000.0,
        call_ns: 0.0,
        call_tensor_ns: 0.0,
        overlap_factor: 1.0,
        overlap: Overlap::default(),
        host_bandwidth: None,
        host_latency_ns: 0.0,
        host_memory_bytes: None,
        spread: 0.0,
        measured_on: None,
        operations: crate::Operations::new(),
    };
    let links = Links { all_reduce: link, all_gather: link, reduce_scatter: link, all_to_all: link };
    Cluster {
        device,
        kinds: Vec::new(),
        interconnect: Interconnect::Measured(links),
        groups: Vec::new(),
        in_steps: Vec::new(),
    }
}

/// A link of a latency in nanoseconds and a bandwidth in bytes per second.
pub const fn link(latency_ns: f64, bandwidth: f64) -> Link {
    Link { latency_ns, bandwidth }
}

impl Cluster {
    /// The links of a made-up machine, to be changed.
    ///
    /// # Panics
    ///
    /// Where the network has levels.
    pub fn links_mut(&mut self) -> &mut Links {
        match &mut self.interconnect {
            Interconnect::Measured(links) => links,
            Interconnect::Levels(_) => panic!("a made-up machine has links"),
        }
    }
}
