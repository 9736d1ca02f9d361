//! `unisono trace what-if`: the step computed again with some events faster or slower.

use std::io::Write;

use ::trace::causal;
use base::{Code, Diagnostic, Result};
use clap::Args;

use super::{arguments::Input, frames, json, units::single, written};

/// The traces and the changes.
#[derive(Args)]
pub struct WhatIf {
    /// kernel:TEXT=FACTOR, collective:TEXT=FACTOR, call:TEXT=FACTOR, launch=FACTOR or rank:N=FACTOR; 0.5 halves
    #[arg(long = "change", required = true, value_name = "CHANGE")]
    changes: Vec<String>,
    #[command(flatten)]
    input: Input,
}

impl WhatIf {
    /// Prints the step's time as it was and as it would be.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let timeline = self.input.load()?;
        let (frames, options) = (frames(&timeline, &self.input), self.input.options());
        let graph = causal::build(&frames, &options.annotation, options.instance).ok_or_else(|| {
            let message = format!("there is no event {} called `{}`", options.instance, options.annotation);
            Diagnostic::new(Code::TRACE_LACKS, message)
                .hint("name another one with --annotation, or the whole trace with --annotation \"\"")
        })?;
        let result = causal::what_if(&frames, &graph, &self.changes)?;
        if self.input.json {
            return json(out, &serde_json::json!({ "what_if": result }));
        }
        written(writeln!(
            out,
            "{} now, {} with {}: {:.3} times as fast",
            single("before", &result.before.into()),
            single("after", &result.after.into()),
            result.changes.join(", "),
            result.speedup
        ))
    }
}
