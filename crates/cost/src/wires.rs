//! What collectives use of the wires between ranks while they run.

use cluster::{Cluster, Interconnect};
use ir::{Collective, CollectiveKind};

use crate::{
    links::group_of,
    machine::{Machine, PICOS},
    network::{Group, busy, sent},
};

/// Levels that are told apart; those beyond share the last place.
const LEVELS: usize = 4;

/// By level, which part of what the wires carry a collective uses while it runs alone, in thousandths.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Wires(pub [u32; LEVELS]);

impl Wires {
    /// All that a wire carries.
    pub const ALL: u32 = 1000;

    /// Puts another collective beside.
    pub fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(all, one)| *all += one);
    }

    /// Takes one of them away.
    pub fn remove(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(all, one)| *all = all.saturating_sub(one));
    }

    /// How much is wanted of the fullest of the wires that it uses by all that run, it among them; at least all that there is.
    pub fn wanted_with(self, all: Self) -> u32 {
        let used = self.0.into_iter().zip(all.0).filter(|(one, _)| *one > 0);
        used.map(|(_, all)| all).fold(Self::ALL, u32::max)
    }
}

/// What a collective uses that takes `time` picoseconds alone.
pub fn wires(machine: Machine<'_>, collective: Collective<'_>, time: i64) -> Wires {
    let mut wires = Wires::default();
    // Along a single axis collectives follow each other.
    if time <= 0 || machine.mesh.axes.iter().filter(|axis| axis.rank_count() > 1).count() < 2 {
        return wires;
    }
    let group = group_of(machine, collective);
    for (level, seconds) in seconds(machine.cluster, group, collective.kind, collective.bytes.0 as f64) {
        let part = (seconds * PICOS / time as f64).clamp(0.0, 1.0) * f64::from(Wires::ALL);
        let place = &mut wires.0[level.min(LEVELS - 1)];
        *place = (*place).max(part.round() as u32);
    }
    wires
}

/// For how many seconds a collective would keep the wires of each level busy that it uses.
fn seconds(cluster: &Cluster, group: Group, kind: CollectiveKind, bytes: f64) -> Vec<(usize, f64)> {
    match &cluster.interconnect {
        Interconnect::Measured(links) => {
            let link = links.of(kind);
            vec![(0, bytes * sent(kind, group.ranks) / link.bandwidth)]
        }
        Interconnect::Levels(network) => busy(network, group, kind, bytes),
    }
}
