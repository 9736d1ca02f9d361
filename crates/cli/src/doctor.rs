//! `unisono doctor`: what this installation is.

use std::io::Write;

use base::{Code, Diagnostic, Result};
use clap::Args;

/// Print the version of Unisono and what this machine offers to it
#[derive(Args)]
pub struct Doctor {}

impl Doctor {
    /// Prints one line per fact.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        writeln!(out, "{:<12}{}\n{:<12}{cores}", "unisono", env!("CARGO_PKG_VERSION"), "cores").map_err(
            |error| Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot write to stdout: {error}")),
        )
    }
}
