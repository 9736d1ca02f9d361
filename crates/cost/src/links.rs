//! Collectives by the coefficients of links or levels.

use cluster::{Cluster, Interconnect, Links};
use ir::{Collective, CollectiveKind};

use crate::{
    machine::Machine,
    network::{Group, NANO, network_time, sent},
};

/// The ranks that take part in a collective; of a transfer, all between which there is one.
pub fn group_of(machine: Machine<'_>, collective: Collective<'_>) -> Group {
    let Machine { mesh, .. } = machine;
    Group { ranks: mesh.size_of(collective.axis), stride: mesh.stride_of(collective.axis) }
}

/// Seconds of a collective by the coefficients of links or levels; `bytes` are those of the global tensor.
pub fn modelled_time(cluster: &Cluster, group: Group, kind: CollectiveKind, bytes: f64) -> f64 {
    match &cluster.interconnect {
        Interconnect::Measured(links) => on_links(links, group, kind, bytes),
        Interconnect::Levels(network) => network_time(network, group, kind, bytes),
    }
}

fn on_links(links: &Links, group: Group, kind: CollectiveKind, bytes: f64) -> f64 {
    let link = links.of(kind);
    link.latency_ns * NANO + bytes * sent(kind, group.ranks) / link.bandwidth
}
