//! Presets: clusters of published figures, by a name and a size.

use std::{collections::BTreeMap, sync::OnceLock};

use base::{Code, Diagnostic, Result};
use serde::Deserialize;

use crate::{Cluster, Device, Interconnect, Network, kinds::joined};

/// A kind of device with its usual network.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// What it is, in a line.
    pub title: String,
    /// Where its figures come from.
    pub source: String,
    /// The compute capability of a GPU of NVIDIA's, by which PyTorch chooses among its kernels.
    #[serde(default)]
    pub capability: Option<(u32, u32)>,
    /// The device.
    pub device: Device,
    /// A network whose first level is a node, and whose second one lies between nodes.
    network: Network,
}

/// The presets by name.
pub fn presets() -> &'static BTreeMap<String, Preset> {
    static PRESETS: OnceLock<BTreeMap<String, Preset>> = OnceLock::new();
    PRESETS.get_or_init(|| toml::from_str(include_str!("presets.toml")).expect("our own presets can be read"))
}

/// The cluster that is meant by `NAME` (one node), `NAME:RANKS`, `NAME:NODESx` or `NAME:NODESxRANKS`, or several of these with `+` between them.
pub fn find(text: &str) -> Result<Cluster> {
    if !text.contains('+') {
        return sized(text).map(|(size, preset)| preset.of_size(size));
    }
    let parts = text.split('+').map(sized).collect::<Result<Vec<_>>>()?;
    let of_node = parts[0].0.1;
    if let Some(((_, other), _)) = parts.iter().find(|((_, ranks), _)| *ranks != of_node) {
        let message = format!("nodes of {of_node} and of {other} ranks in one cluster");
        let hint = "give all nodes as many ranks, as in `h100:2x8+a100:1x8`";
        return Err(Diagnostic::new(Code::BAD_CLUSTER, message).hint(hint));
    }
    // Two nodes each, so that each has all levels.
    let of = |((nodes, ranks), preset): ((u32, u32), &Preset)| (nodes * ranks, preset.of_size((2, ranks)));
    joined(parts.into_iter().map(of).collect())
        .ok_or_else(|| Diagnostic::new(Code::BAD_CLUSTER, "a cluster of nothing"))
}

/// Nodes and ranks of each, and the preset of that name.
fn sized(text: &str) -> Result<((u32, u32), &'static Preset)> {
    let text = text.trim();
    let (name, size) = text.split_once(':').map_or((text, None), |(name, size)| (name, Some(size)));
    let Some(preset) = presets().get(&name.trim().to_lowercase()) else {
        let message = format!("there is no preset `{name}`");
        let names = presets().keys().map(String::as_str);
        return Err(Diagnostic::new(Code::BAD_CLUSTER, message).hint(base::unknown_name_hint(name, names)));
    };
    let most = preset.network.levels[0].ranks;
    let (nodes, ranks) = match size {
        None => (1, most),
        Some(size) => sizes(size, most).filter(|(_, ranks)| *ranks <= most).ok_or_else(|| {
            let message = format!("`{size}` is no size of a cluster of {name}");
            let hint = format!("write nodes and ranks of each, at most {most}: `{name}:2x{most}`");
            Diagnostic::new(Code::BAD_CLUSTER, message).hint(hint)
        })?,
    };
    Ok(((nodes, ranks), preset))
}

/// Nodes, and ranks of each: as many as a node holds, unless it is said.
fn sizes(text: &str, most: u32) -> Option<(u32, u32)> {
    let (nodes, ranks) = text.split_once('x').unwrap_or(("1", text));
    let number = |text: &str| text.trim().parse().ok().filter(|number| *number > 0);
    let (nodes, ranks): (u32, u32) = (number(nodes)?, if ranks.is_empty() { most } else { number(ranks)? });
    nodes.checked_mul(ranks).map(|_| (nodes, ranks))
}

impl Preset {
    fn of_size(&self, (nodes, ranks): (u32, u32)) -> Cluster {
        let mut network = self.network.clone();
        for (level, count) in network.levels.iter_mut().zip([ranks, nodes * ranks]) {
            level.ranks = count;
        }
        // A level that adds no ranks to the one within is none.
        if nodes == 1 {
            network.levels.truncate(1);
        } else if ranks == 1 {
            network.levels.remove(0);
        }
        Cluster {
            device: self.device.clone(),
            kinds: Vec::new(),
            interconnect: Interconnect::Levels(network),
            groups: Vec::new(),
            in_steps: Vec::new(),
        }
    }
}
