//! `unisono trace`: what profiler traces say, as tables for people and as JSON for programs.

mod arguments;
mod tables;

use std::{io::Write, path::Path};

use ::trace::{Frames, Mode, Selection, summary};
use base::{Code, Diagnostic, Result};
use clap::{Args, Subcommand};
use timeline::Timeline;

use arguments::Input;
use summary::Analysis;

/// Read profiler traces and say where the time goes
#[derive(Args)]
pub struct Trace {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Everything: findings first, then each analysis in short
    Summary(Input),
    /// Time by kind of kernel, by kernel, by annotation; launches
    Kernels(Input),
    /// How much of the communication computation hides
    Overlap(Input),
    /// Why streams idle, how full their queues are
    Idle(Input),
    /// Profiler steps and the ranks that others wait for
    Stragglers(Input),
    /// Collectives matched across ranks: who waits for whom, and why
    Collectives(Input),
    /// The longest chain of events that each had to wait for the one before
    CriticalPath(Input),
    /// What the step would take if some events were faster or slower
    WhatIf(WhatIf),
}

/// The traces and the changes.
#[derive(Args)]
struct WhatIf {
    /// A change: kernel:TEXT=FACTOR, collective:TEXT=FACTOR, call:TEXT=FACTOR, launch=FACTOR or rank:N=FACTOR; 0.5 halves
    #[arg(long = "change", required = true, value_name = "CHANGE")]
    changes: Vec<String>,
    #[command(flatten)]
    input: Input,
}

impl WhatIf {
    fn run(&self, out: &mut dyn Write) -> Result<()> {
        let timeline = self.input.load()?;
        let (frames, options) = (frames(&timeline, &self.input), self.input.options());
        let graph =
            ::trace::causal::build(&frames, &options.annotation, options.instance).ok_or_else(|| {
                Diagnostic::new(Code::TRACE_LACKS, format!("no event is called `{}`", options.annotation))
                    .hint("name another one with --annotation, or the whole trace with --annotation \"\"")
            })?;
        let result = ::trace::causal::what_if(&frames, &graph, &self.changes)?;
        if self.input.json {
            return json(out, &serde_json::json!({ "what_if": result }));
        }
        writeln!(
            out,
            "{:.1} us now, {:.1} us with {}: {:.3} times as fast ({} of the graph's edges changed; the model is off by {:.1} us at most)",
            result.before,
            result.after,
            result.changes.join(", "),
            result.speedup,
            result.changed,
            result.model_error
        )
        .map_err(|error| unwritable(&error))
    }
}

impl Trace {
    /// Reads the traces and prints what was asked for.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        use Analysis::{
            Collectives, CommCompOverlap, CriticalPath, Exposed, IdleTimeBreakdown, KernelBreakdown,
            LaunchStats, MemoryBandwidth, PotentialStragglers, ProfilerSteps, Queue, TemporalBreakdown,
            UserAnnotations,
        };
        let (input, analyses): (Input, &[Analysis]) = match self.what {
            What::Summary(input) => (input, Analysis::ALL),
            What::Kernels(input) => {
                (input, &[TemporalBreakdown, KernelBreakdown, LaunchStats, UserAnnotations, MemoryBandwidth])
            }
            What::Overlap(input) => (input, &[TemporalBreakdown, CommCompOverlap]),
            What::Idle(input) => (input, &[TemporalBreakdown, IdleTimeBreakdown, Queue]),
            What::Stragglers(input) => (input, &[ProfilerSteps, PotentialStragglers, Collectives]),
            What::Collectives(input) => (input, &[Collectives, Exposed]),
            What::WhatIf(command) => return command.run(out),
            What::CriticalPath(input) => (input, &[ProfilerSteps, CriticalPath]),
        };
        let timeline = input.load()?;
        let frames = frames(&timeline, &input);
        let object = summary::run(&frames, analyses, &input.options());
        if input.json {
            return json(out, &object);
        }
        tables::print(out, &object).map_err(|error| unwritable(&error))
    }
}

fn frames<'t>(timeline: &'t Timeline, input: &Input) -> Frames<'t> {
    let mode = input.mode();
    Frames::new(timeline, mode, Selection { include_last_step: input.include_last_step })
}

fn json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)
        .map_err(std::io::Error::from)
        .and_then(|()| writeln!(out))
        .map_err(|error| unwritable(&error))
}

#[allow(clippy::unnecessary_box_returns, reason = "the form in which all diagnostics travel")]
fn unwritable(error: &std::io::Error) -> Box<Diagnostic> {
    Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot write to stdout: {error}"))
}

/// The name of a file without its folder.
fn short(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

const fn mode_of(compat: Option<arguments::Compat>) -> Mode {
    match compat {
        Some(arguments::Compat::Hta) => Mode::Hta,
        None => Mode::Exact,
    }
}
