//! `unisono simulate`: what a plan's programs are expected to do, as a timeline.

use std::{io::Write, path::PathBuf};

use base::{Diagnostic, Nanos, Result};
use clap::Args;
use plan::Ranks;
use timeline::{Timeline, chrome, step::Figures};

use crate::{files, plan::print};

/// Simulate a step under a plan: print what each rank is expected to take, or write the timeline for `unisono trace` and trace viewers
#[derive(Args)]
pub struct Simulate {
    /// The captured step that the plan is for, as `unisono capture` prints it or as a message (`-` reads stdin)
    graph: PathBuf,
    /// The plan
    plan: PathBuf,
    /// The cluster description, as `unisono profile` measures it, or a preset such as `h100:8x8`
    #[arg(long)]
    cluster: String,
    /// Simulate this rank, as if the others started each collective when it does
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Simulate all ranks together: who is late keeps the others waiting
    #[arg(long, conflicts_with = "rank")]
    all: bool,
    /// Write the timeline to this file
    #[arg(short, long)]
    output: Option<PathBuf>,
}

impl Simulate {
    /// Reads, simulates, prints.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let cluster = files::cluster(&self.cluster)?;
        let graph = files::graph(&self.graph)?;
        let plan = plan::Plan::parse(&files::text(&self.plan)?, &self.plan.to_string_lossy())?;
        let ranks = if self.all { Ranks::All } else { Ranks::One(self.rank) };
        let timeline = plan::simulate_plan(&graph, &plan, &cluster, ranks)?;
        if let Some(path) = &self.output {
            let text = chrome::text(&timeline).map_err(|error| Diagnostic::bug(error.to_string()))?;
            files::write(path, &text)?;
        }
        print(out, &figures(&timeline))
    }
}

/// A line for each rank.
fn figures(timeline: &Timeline) -> String {
    let line = |rank: &timeline::Rank| {
        let figures = Figures::of(timeline, rank);
        let Figures { step, compute, communication, exposed, operations, collectives, .. } = figures;
        let copies = match (figures.copying, figures.exposed_copies) {
            (Nanos(0), _) => String::new(),
            (copying, waiting) => {
                format!("; {copying} in copies to the host and back, {waiting} waiting for them")
            }
        };
        format!(
            "rank {}: {step} a step; {compute} in {operations} operations, {exposed} waiting; {communication} in {collectives} collectives{copies}\n",
            rank.rank
        )
    };
    timeline.ranks.iter().map(line).collect()
}
