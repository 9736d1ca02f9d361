//! The `unisono` command: one module per subcommand, each with its arguments and one function that runs it.
//!
//! Data goes to stdout, progress and diagnostics to stderr. The wheel's `unisono` script calls [`run`] too, after it has
//! taken the subcommands that need Python for itself.

mod balance;
mod cluster;
mod doctor;
mod explain;
mod files;
mod plan;
mod simulate;
mod trace;

pub use files::graph;

use std::{ffi::OsString, io::Write};

use base::Result;
use clap::{Parser, Subcommand};

/// Exit status of a run that a diagnostic ended.
const FAILED: u8 = 1;
/// Exit status of a command line that cannot be parsed, as clap has it.
const USAGE: u8 = 2;

/// One training step, written for one device, on many.
#[derive(Parser)]
#[command(name = "unisono", version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Balance(balance::Balance),
    Cluster(cluster::Cluster),
    Doctor(doctor::Doctor),
    Explain(explain::Explain),
    Plan(plan::Plan),
    Simulate(simulate::Simulate),
    Trace(trace::Trace),
}

/// Runs the command line `arguments`, whose first is the program's name, and returns the exit status.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version are answers, not failures: clap knows which stream and status they want.
            let status = if error.use_stderr() { USAGE } else { 0 };
            return if error.print().is_ok() { status } else { FAILED };
        }
    };
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let result = match arguments.command {
        Command::Balance(command) => command.run(&mut out),
        Command::Cluster(command) => command.run(&mut out),
        Command::Doctor(command) => command.run(&mut out),
        Command::Explain(command) => command.run(&mut out),
        Command::Plan(command) => command.run(&mut out),
        Command::Simulate(command) => command.run(&mut out),
        Command::Trace(command) => command.run(&mut out),
    };
    finish(result, out)
}

/// Flushes what was printed and reports what went wrong. A reader that went away (`| head`) is no failure.
fn finish(result: Result<()>, mut out: impl Write) -> u8 {
    let flushed = out.flush();
    match (result, flushed) {
        (Ok(()), Ok(())) => 0,
        (Ok(()), Err(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => 0,
        (Ok(()), Err(error)) => {
            drop(writeln!(std::io::stderr(), "error: cannot write to stdout: {error}"));
            FAILED
        }
        (Err(diagnostic), _) => {
            drop(writeln!(std::io::stderr(), "{diagnostic}"));
            FAILED
        }
    }
}
