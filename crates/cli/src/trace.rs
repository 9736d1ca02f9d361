//! `unisono trace`: what profiler traces say, as tables for people and as JSON for programs.

mod arguments;
mod compare;
mod events;
mod export;
mod hang;
mod memory_timeline;
mod tables;
mod units;
mod what_if;

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
    /// Everything: findings first, then each analysis
    Summary(Input),
    /// Time by kind of kernel, by kernel, by annotation; launches, operators with their kernels
    Kernels(Input),
    /// How much of the communication computation hides
    Overlap(Input),
    /// Why streams idle, how full their queues are
    Idle(Input),
    /// The longest chain of events, across ranks, that each had to wait for the one before
    CriticalPath(Input),
    /// Profiler steps and the ranks that others wait for
    Stragglers(Input),
    /// Collectives matched across ranks: who waits for whom, and why
    Collectives(Input),
    /// Who holds memory at the peak, and what grows; also of a memory timeline (*.raw.json.gz) of the profiler
    Memory(Input),
    /// Python functions, forward operators with their backwards, data flow between operators
    Program(Input),
    /// Single events: filtered, with what encloses them and what is below them
    Events(events::Events),
    /// Two runs compared: what changed beyond the noise
    Diff(compare::Diff),
    /// What the step would take if some events were faster or slower
    WhatIf(what_if::WhatIf),
    /// Write a part of the traces for a trace viewer, with curves of queues and bandwidths and the critical path
    Export(export::Export),
    /// Why a job hangs, from the flight recorders of its ranks
    Hang(hang::Hang),
}

impl Trace {
    /// Reads the traces and prints what was asked for.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        use Analysis as A;
        let (input, analyses): (Input, &[Analysis]) = match self.what {
            What::Summary(input) => (input, Analysis::ALL),
            What::Kernels(input) => (
                input,
                &[
                    A::TemporalBreakdown,
                    A::KernelBreakdown,
                    A::LaunchStats,
                    A::UserAnnotations,
                    A::MemoryBandwidth,
                    A::Operators,
                    A::CallGraph,
                    A::Counters,
                ],
            ),
            What::Overlap(input) => (input, &[A::TemporalBreakdown, A::CommCompOverlap, A::Exposed]),
            What::Idle(input) => (input, &[A::TemporalBreakdown, A::IdleTimeBreakdown, A::Queue]),
            What::CriticalPath(input) => (input, &[A::ProfilerSteps, A::CriticalPath]),
            What::Stragglers(input) => (input, &[A::ProfilerSteps, A::PotentialStragglers, A::Collectives]),
            What::Collectives(input) => (input, &[A::Collectives, A::Exposed]),
            What::Memory(input) => {
                if let [file] = &input.paths[..]
                    && let Some(raw) = memory_timeline::read(file)?
                {
                    return memory_timeline::run(out, file, &raw, input.json);
                }
                (input, &[A::Memory])
            }
            What::Program(input) => (input, &[A::Python, A::ForwardBackward, A::DataFlow]),
            What::Events(command) => return command.run(out),
            What::Diff(command) => return command.run(out),
            What::WhatIf(command) => return command.run(out),
            What::Export(command) => return command.run(),
            What::Hang(command) => return command.run(out),
        };
        let timeline = input.load()?;
        let frames = frames(&timeline, &input);
        tell(&frames);
        if let Some(file) = &input.html {
            return page(&timeline, &input, file);
        }
        let object = summary::run(&frames, analyses, &input.options());
        if input.json {
            return json(out, &object);
        }
        written(tables::print(out, &object))
    }
}

fn frames<'t>(timeline: &'t Timeline, input: &Input) -> Frames<'t> {
    Frames::new(timeline, input.mode(), Selection { include_last_step: input.include_last_step })
}

/// Writes the page, always by exact definitions.
fn page(timeline: &Timeline, input: &Input, file: &Path) -> Result<()> {
    let frames = Frames::new(timeline, Mode::Exact, Selection::default());
    let title =
        format!("Trace of {}", input.paths.iter().map(|path| short(path)).collect::<Vec<_>>().join(", "));
    let html = report::trace_page(&frames, &title, &input.options())?;
    std::fs::write(file, html).map_err(|error| {
        Diagnostic::new(Code::UNREADABLE_FILE, "the page cannot be written")
            .at(base::Place { file: file.display().to_string(), line: 0, column: 0 })
            .because(error.to_string())
    })
}

/// Says on stderr what is wrong with the traces.
fn tell(frames: &Frames<'_>) {
    let notes = summary::notes(frames);
    for note in notes.iter().take(8) {
        drop(writeln!(std::io::stderr(), "{}", note.to_string().replacen("error[", "warning[", 1)));
    }
    if notes.len() > 8 {
        drop(writeln!(std::io::stderr(), "warning: {} more like these", notes.len() - 8));
    }
}

fn json(out: &mut dyn Write, value: &impl serde::Serialize) -> Result<()> {
    written(
        serde_json::to_writer_pretty(&mut *out, value)
            .map_err(std::io::Error::from)
            .and_then(|()| writeln!(out)),
    )
}

/// A reader that went away (`| head`) is no failure.
fn written(result: std::io::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
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
