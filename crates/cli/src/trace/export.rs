//! `unisono trace export`: a part of the traces for a trace viewer, with curves of queue lengths and bandwidths and with the
//! critical path.

use std::{
    io::{BufWriter, Write},
    path::PathBuf,
};

use ::trace::{Frames, Mode, Selection, overlay};
use base::{Code, Diagnostic, Place, Result};
use clap::Args;
use timeline::chrome::{Extras, Filter, copy};

use super::arguments;

/// What to write.
#[derive(Args)]
pub struct Export {
    /// Trace files, one for each rank, or directories of them
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// The file to write
    #[arg(long, short)]
    out: PathBuf,
    /// Only this rank
    #[arg(long)]
    rank: Option<u32>,
    /// Only events whose name contains this
    #[arg(long, default_value = "")]
    name: String,
    /// Only from this many microseconds after the first event on
    #[arg(long, value_name = "US")]
    from: Option<f64>,
    /// Only up to this many microseconds after the first event
    #[arg(long, value_name = "US")]
    to: Option<f64>,
    /// Add curves of queue lengths and of the bandwidth of copies
    #[arg(long)]
    counters: bool,
    /// Add the critical path: arrows, and the argument `critical` of events on it
    #[arg(long)]
    critical_path: bool,
    /// The annotation whose instance the critical path covers; "" is the whole trace
    #[arg(long, default_value = "ProfilerStep")]
    annotation: String,
    /// Which instance of the annotation, from 0
    #[arg(long, default_value_t = 0)]
    instance: usize,
    #[command(flatten)]
    keeping: arguments::Keeping,
}

impl Export {
    /// Writes the file.
    pub fn run(&self) -> Result<()> {
        let timeline = arguments::load(&self.paths, self.keeping)?;
        let frames = Frames::new(&timeline, Mode::Exact, Selection::default());
        let nanos = |micros: f64| frames.origin.saturating_add((micros * 1000.0).round() as i64);
        let window = (self.from.is_some() || self.to.is_some())
            .then(|| (self.from.map_or(i64::MIN, nanos), self.to.map_or(i64::MAX, nanos)));
        let filter = Filter { rank: self.rank, window, name: self.name.clone() };
        let mut extras = Extras::default();
        if self.counters {
            extras.counters = overlay::counters(&frames);
        }
        if self.critical_path {
            overlay::add_path(&frames, &self.annotation, self.instance, &mut extras);
        }
        let written = std::fs::File::create(&self.out).map(BufWriter::new).and_then(|mut file| {
            copy(&mut file, &timeline, &filter, &extras)?;
            file.flush()
        });
        written.map_err(|error| {
            Diagnostic::new(Code::UNREADABLE_FILE, "the trace cannot be written")
                .at(Place { file: self.out.display().to_string(), line: 0, column: 0 })
                .because(error.to_string())
        })
    }
}
