//! `unisono balance`: distribute samples of different length over ranks.

mod compare;
mod table;

use std::{io::Write, path::PathBuf, time::Instant};

use base::{Code, Diagnostic, Result};
use clap::Args;

/// Distribute samples of different length over ranks, with a lower bound that says how good it is
#[derive(Args)]
pub struct Balance {
    /// The problem: one JSON object with `lengths`, `ranks`, `cost` and more (`-` reads stdin)
    problem: PathBuf,
    /// Print one JSON object with the whole plan
    #[arg(long)]
    json: bool,
    /// Print every algorithm and what people do without one, on this problem
    #[arg(long, conflicts_with = "json")]
    compare: bool,
}

impl Balance {
    /// Reads, solves, prints.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let problem = balance::read_problem(&self.text()?, &self.problem.to_string_lossy())?;
        if self.compare {
            return compare::print(&problem, out).map_err(|error| unwritable(&error));
        }
        let start = Instant::now();
        let plan = balance::solve(&problem)?;
        let solve_ms = start.elapsed().as_secs_f64() * 1e3;
        if self.json {
            writeln!(out, "{}", balance::plan_json(&plan, solve_ms)).map_err(|error| unwritable(&error))
        } else {
            let naive = balance::naive(&problem, balance::Baseline::Arrival)?;
            table::print(&problem, &plan, &naive, solve_ms, out).map_err(|error| unwritable(&error))
        }
    }

    fn text(&self) -> Result<String> {
        let name = self.problem.to_string_lossy();
        let bytes = if name == "-" {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut bytes).map(|_| bytes)
        } else {
            std::fs::read(&self.problem)
        };
        let bytes = bytes.map_err(|error| {
            Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot read the problem: {error}"))
                .at_line(&*name, 0, 0)
        })?;
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Diagnostic::new(Code::BAD_TEXT, format!("the problem file is no JSON: byte {at} is no UTF-8"))
                .at_line(&*name, 0, 0)
        })
    }
}

fn unwritable(error: &std::io::Error) -> Box<Diagnostic> {
    Diagnostic::new(Code::UNREADABLE_FILE, format!("cannot write to stdout: {error}"))
}
