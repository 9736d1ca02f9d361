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
}

impl Explain {
    /// Reads and prints.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let graph = files::graph(&self.graph)?;
        let plan = plan::Plan::parse(&files::text(&self.plan)?, &self.plan.to_string_lossy())?;
        print(out, &plan::explain_plan(&graph, &plan)?)
    }
}
