//! `unisono cluster`: clusters that one does not have.

use std::io::Write;

use base::Result;
use clap::Args;
use cluster::presets;

use crate::{files, plan::print};

/// List the clusters that plans can be made for without having them, or print the description of one
#[derive(Args)]
pub struct Cluster {
    /// A preset with its size, such as `h100:8x8` for 8 nodes of 8, or a file that names one (`preset = "h100:8x8"`)
    name: Option<String>,
}

impl Cluster {
    /// Prints.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        match &self.name {
            Some(name) => print(out, &files::cluster(name)?.text()),
            None => print(out, &list()),
        }
    }
}

fn list() -> String {
    let presets = presets()
        .iter()
        .map(|(name, preset)| format!("{name:8}{}\n{:8}{}\n", preset.title, "", preset.source));
    let usage = "`unisono plan GRAPH --cluster h100:8x8` plans for 8 nodes of 8, `h100:2x8+a100:1x8` for nodes of two kinds. To change a value, write a file with `preset = \"h100:8x8\"`\n\
                 and the values that differ; `unisono cluster h100:8x8` prints them all.\n";
    presets.chain([usage.to_owned()]).collect()
}
