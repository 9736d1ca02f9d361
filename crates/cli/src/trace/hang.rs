//! `unisono trace hang`: why a job hangs, from the flight recorders of its ranks.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use ::trace::hang::{Diagnosis, Dump, diagnose};
use base::{Code, Diagnostic, Place, Result};
use clap::Args;
use timeline::pickle;

use super::{json, written};

/// The dumps.
#[derive(Args)]
pub struct Hang {
    /// Dumps of flight recorders, pickled or JSON, one for each rank, or a directory of them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Hang {
    /// Prints which rank has not arrived where.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let mut dumps = Vec::new();
        for path in files(&self.paths)? {
            let rank = rank_of(&path).filter(|rank| dumps.iter().all(|dump: &Dump| dump.rank != *rank));
            let free =
                (0..=u32::MAX).find(|rank| dumps.iter().all(|dump: &Dump| dump.rank != *rank)).unwrap_or(0);
            let content = read(&path)?;
            dumps.push(Dump { rank: rank.unwrap_or(free), source: path.display().to_string(), content });
        }
        let diagnosis = diagnose(&dumps);
        if self.json {
            return json(out, &serde_json::json!({ "hang": diagnosis }));
        }
        written(print(out, &diagnosis))
    }
}

#[allow(clippy::unnecessary_box_returns, reason = "the form in which all diagnostics travel")]
fn unreadable(path: &Path, why: String) -> Box<Diagnostic> {
    Diagnostic::new(Code::BAD_DUMP, "the dump cannot be read")
        .at(Place { file: path.display().to_string(), line: 0, column: 0 })
        .because(why)
}

fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(|error| unreadable(path, error.to_string()))?;
            let mut inside: Vec<PathBuf> =
                entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|p| p.is_file()).collect();
            inside.sort();
            files.extend(inside);
        } else {
            files.push(path.clone());
        }
    }
    if files.is_empty() {
        return Err(unreadable(&paths[0], "there is no file in it".to_owned()));
    }
    Ok(files)
}

/// A dump as JSON or as a pickle of plain data.
fn read(path: &Path) -> Result<serde_json::Value> {
    let data = std::fs::read(path).map_err(|error| unreadable(path, error.to_string()))?;
    let content = match data.first() {
        Some(b'{' | b' ' | b'\n') => {
            serde_json::from_slice(&data).map_err(|error| unreadable(path, error.to_string()))?
        }
        _ => pickle::read(&data, &path.display().to_string())?,
    };
    if content["entries"].is_array() {
        return Ok(content);
    }
    Err(unreadable(path, "it has no `entries`".to_owned())
        .hint("a flight recorder's dump is what `torch._C._distributed_c10d._dump_fr_trace()` returns"))
}

/// The number behind `rank`, else the last number in a file's name.
fn rank_of(path: &Path) -> Option<u32> {
    let name = super::short(path);
    let digits = |text: &str| {
        let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let behind = name.rsplit_once("rank").and_then(|(_, rest)| digits(rest.trim_start_matches(['_', '-'])));
    behind.or_else(|| {
        let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
        let begin = name[..end].rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| at + 1);
        digits(&name[begin..end])
    })
}

fn print(out: &mut dyn Write, diagnosis: &Diagnosis) -> std::io::Result<()> {
    writeln!(out, "dumps of {} rank(s)", diagnosis.ranks.len())?;
    if diagnosis.findings.is_empty() {
        return writeln!(out, "no rank waits for another: all collectives that were begun have ended");
    }
    for finding in &diagnosis.findings {
        writeln!(out, "\n{}", finding.message)?;
        for (label, locations) in [("at fault", &finding.at_fault), ("waiting", &finding.others)] {
            for at in locations.iter().take(8) {
                let line = at.line.as_deref().unwrap_or("unknown line");
                writeln!(
                    out,
                    "  {label}: rank {} at {line}: {} number {} ({}) {}",
                    at.rank, at.operation, at.sequence, at.state, at.inputs
                )?;
            }
        }
        writeln!(out, "  hint: {}", finding.hint)?;
    }
    Ok(())
}
