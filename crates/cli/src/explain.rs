//! `unisono explain`: what a plan does.

use std::{io::Write, path::PathBuf};

use base::Result;
use clap::Args;

use crate::{files, plan::print};

/// Print what a plan does, what it is expected to cost and why it is not another one
#[derive(Args)]
pub struct Explain {
    /// The captured step that the plan is for, as `unisono capture` prints it or as a message (`-` reads stdin)
    graph: PathBuf,
    /// The plan
    plan: PathBuf,
    /// The cluster description, or a preset such as `h100:8x8`: says also where time and memory go
    #[arg(long)]
    cluster: Option<String>,
}

impl Explain {
    /// Reads and prints.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let graph = files::graph(&self.graph)?;
        let plan = plan::Plan::parse(&files::text(&self.plan)?, &self.plan.to_string_lossy())?;
        let cluster = self.cluster.as_deref().map(files::cluster).transpose()?;
        print(out, &plan::explain_plan(&graph, &plan, cluster.as_ref(), None)?)
    }
}
