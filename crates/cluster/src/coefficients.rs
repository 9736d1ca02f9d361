//! The coefficients of a description by their names, for whoever tries what others would say.

use crate::{Cluster, Device, GroupTimes, Interconnect, Level, Link};

/// What a coefficient says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says {
    /// So much in a second: larger is faster.
    Rate,
    /// How long something takes, or how many times as long: larger is slower.
    Time,
}

/// Is shown each coefficient: its name, what it says, its value.
pub type See<'a> = &'a mut dyn FnMut(&str, Says, &mut f64);

impl Cluster {
    /// Shows all coefficients that times are computed from, in the order of the file, but for what was measured of single operators.
    pub fn coefficients(&mut self, see: See<'_>) {
        self.device.coefficients(see);
        self.interconnect.coefficients(see);
        self.groups.iter_mut().for_each(|group| group.coefficients(see));
    }

    /// The same cluster with the coefficient of that name such that what it tells takes so many times as long.
    #[must_use]
    pub fn slower(&self, name: &str, factor: f64) -> Self {
        let mut changed = self.clone();
        changed.coefficients(&mut |known, says, value| {
            if known == name {
                match says {
                    Says::Rate => *value /= factor,
                    Says::Time => *value *= factor,
                }
            }
        });
        // Less than no slowdown is none.
        changed.device.overlap_factor = changed.device.overlap_factor.max(1.0);
        changed.device.overlap.factors().for_each(|(_, factor)| *factor = factor.max(1.0));
        if let Interconnect::Levels(network) = &mut changed.interconnect {
            network
                .levels
                .iter_mut()
                .for_each(|level| level.oversubscription = level.oversubscription.max(1.0));
        }
        changed
    }
}

impl Device {
    fn coefficients(&mut self, see: See<'_>) {
        let by_type =
            [("matmul_flops", &mut self.matmul_flops), ("attention_flops", &mut self.attention_flops)];
        for (name, rates) in by_type {
            for (dtype, rate) in rates {
                see(&format!("device.{name}.{dtype}"), Says::Rate, rate);
            }
        }
        see("device.memory_bandwidth", Says::Rate, &mut self.memory_bandwidth);
        if let Some(bandwidth) = &mut self.uneven_bandwidth {
            see("device.uneven_bandwidth", Says::Rate, bandwidth);
        }
        see("device.operation_ns", Says::Time, &mut self.operation_ns);
        see("device.overlap_factor", Says::Time, &mut self.overlap_factor);
        for (name, factor) in self.overlap.factors() {
            see(&format!("device.{name}"), Says::Time, factor);
        }
        if let Some(bandwidth) = &mut self.host_bandwidth {
            see("device.host_bandwidth", Says::Rate, bandwidth);
            see("device.host_latency_ns", Says::Time, &mut self.host_latency_ns);
        }
    }
}

impl Interconnect {
    /// Shows the coefficients of links or levels.
    pub(crate) fn coefficients(&mut self, see: See<'_>) {
        match self {
            Self::Measured(links) => {
                let named = [
                    ("all_reduce", &mut links.all_reduce),
                    ("all_gather", &mut links.all_gather),
                    ("reduce_scatter", &mut links.reduce_scatter),
                    ("all_to_all", &mut links.all_to_all),
                ];
                for (name, Link { latency_ns, bandwidth }) in named {
                    see(&format!("links.{name}.latency_ns"), Says::Time, latency_ns);
                    see(&format!("links.{name}.bandwidth"), Says::Rate, bandwidth);
                }
            }
            Self::Levels(network) => {
                see("network.start_ns", Says::Time, &mut network.start_ns);
                network.levels.iter_mut().for_each(|level| level.coefficients(see));
            }
        }
    }
}

impl GroupTimes {
    /// All that was measured of a kind of collective is one coefficient, whose value is what the smallest one takes.
    fn coefficients(&mut self, see: See<'_>) {
        let shape: Vec<String> = self.shape.iter().map(u32::to_string).collect();
        for (kind, curve) in self.curves_mut() {
            let before = curve.measured.first().map_or(curve.latency_ns, |(_, nanos)| *nanos);
            let mut now = before;
            see(&format!("groups.[{}].{kind}", shape.join(", ")), Says::Time, &mut now);
            if before > 0.0 {
                curve.slow_down(now / before);
            }
        }
    }
}

impl Level {
    fn coefficients(&mut self, see: See<'_>) {
        let name = |what: &str| format!("network.levels.{}.{what}", self.name);
        see(&name("bandwidth"), Says::Rate, &mut self.bandwidth);
        if self.oversubscription > 1.0 {
            see(&name("oversubscription"), Says::Time, &mut self.oversubscription);
        }
        if let Some(bandwidth) = &mut self.peer_bandwidth {
            see(&name("peer_bandwidth"), Says::Rate, bandwidth);
        }
        if let Some(switch) = &mut self.in_switch {
            see(&name("in_switch.bandwidth"), Says::Rate, &mut switch.bandwidth);
        }
        see(&name("hop_ns"), Says::Time, &mut self.hop_ns);
        see(&name("small_hop_ns"), Says::Time, &mut self.small_hop_ns);
        see(&name("small_bandwidth"), Says::Rate, &mut self.small_bandwidth);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coefficient_has_a_name_of_its_own_under_which_it_changes() {
        for preset in ["cpu:2x2", "h100:2x8", "mi300x:8"] {
            let cluster = Cluster::preset(preset).expect("a preset");
            let mut names: Vec<String> = Vec::new();
            cluster.clone().coefficients(&mut |name, _, _| names.push(name.to_owned()));
            let mut distinct = names.clone();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), names.len(), "{names:?}");
            for name in names {
                let (slower, mut wrong) = (cluster.slower(&name, 2.0), Vec::new());
                slower.clone().coefficients(&mut |known, says, value| {
                    let mut before = f64::NAN;
                    cluster.clone().coefficients(&mut |other, _, value| {
                        if other == known {
                            before = *value;
                        }
                    });
                    let times = if says == Says::Rate { before / *value } else { *value / before };
                    let expected = if known == name { 2.0 } else { 1.0 };
                    if *value != 0.0 && (times - expected).abs() > 1e-12 {
                        wrong.push((known.to_owned(), times));
                    }
                });
                assert_eq!(wrong, [], "{preset}, {name}");
            }
        }
    }
}
