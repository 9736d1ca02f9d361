//! What all subcommands of `unisono trace` take.

use std::{io::IsTerminal, path::PathBuf};

use ::trace::{Mode, launch::Cutoffs, summary::Options};
use base::Result;
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use timeline::{Timeline, files};

/// Whose numbers to reproduce.
#[derive(Clone, Copy, ValueEnum)]
pub enum Compat {
    /// Holistic Trace Analysis 0.5.0, with its rounding
    Hta,
}

/// Whether what is read is kept for the next time.
#[derive(Args, Clone, Copy)]
pub struct Keeping {
    /// Neither use nor keep columns of traces in ~/.cache/unisono/traces
    #[arg(long)]
    no_cache: bool,
}

impl Keeping {
    /// The folder where columns of traces are kept.
    fn folder(self) -> Option<PathBuf> {
        let home = std::env::home_dir().filter(|_| !self.no_cache)?;
        Some(home.join(".cache").join("unisono").join("traces"))
    }
}

/// The traces and the parameters of the analyses.
#[derive(Args)]
pub struct Input {
    /// Trace files (.json, .json.gz), one for each rank, or directories of them
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write one self-contained HTML page to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Reproduce another tool's numbers instead of exact ones
    #[arg(long, value_name = "TOOL")]
    pub compat: Option<Compat>,
    /// The rank of analyses that look at one [default: the first]
    #[arg(long)]
    rank: Option<u32>,
    /// The annotation whose instance the critical path covers; "" is the whole trace
    #[arg(long, default_value = "ProfilerStep")]
    annotation: String,
    /// Which instance of the annotation, from 0
    #[arg(long, default_value_t = 0)]
    instance: usize,
    /// Share of the time that named rows of kernel tables cover
    #[arg(long, default_value_t = 0.8)]
    duration_ratio: f64,
    /// How many rows of kernel tables have names
    #[arg(long, default_value_t = 10)]
    num_kernels: usize,
    /// Table copies and fills as kernels
    #[arg(long)]
    include_memory_kernels: bool,
    /// Gaps between kernels up to this many microseconds are the device's own
    #[arg(long, default_value_t = 30.0, value_name = "US")]
    consecutive_kernel_delay: f64,
    /// From how many waiting launches on a queue is full
    #[arg(long, default_value_t = 1024)]
    max_queue_length: i64,
    /// The operator whose kernel sequences are counted [default: all]
    #[arg(long, default_value = "")]
    op: String,
    /// The shortest kernel sequence that counts
    #[arg(long, default_value_t = 3)]
    min_pattern_len: usize,
    /// How many kernel sequences are listed
    #[arg(long, default_value_t = 5)]
    top_k: usize,
    /// How many stragglers are named
    #[arg(long, default_value_t = 2)]
    num_stragglers: usize,
    /// Calls longer than this many microseconds are outliers
    #[arg(long, default_value_t = 50.0, value_name = "US")]
    runtime_cutoff: f64,
    /// Launch delays longer than this many microseconds are outliers
    #[arg(long, default_value_t = 100.0, value_name = "US")]
    launch_delay_cutoff: f64,
    #[command(flatten)]
    pub keeping: Keeping,
    /// Keep the last profiler step, which HTA drops (with --compat hta)
    #[arg(long)]
    pub include_last_step: bool,
}

impl Input {
    /// By which definitions to analyse.
    pub const fn mode(&self) -> Mode {
        super::mode_of(self.compat)
    }

    /// The parameters of the analyses.
    pub fn options(&self) -> Options {
        Options {
            rank: self.rank,
            annotation: self.annotation.clone(),
            instance: self.instance,
            duration_ratio: self.duration_ratio,
            num_kernels: self.num_kernels,
            include_memory_kernels: self.include_memory_kernels,
            consecutive_kernel_delay: nanos(self.consecutive_kernel_delay),
            max_queue_length: self.max_queue_length,
            op: self.op.clone(),
            min_pattern_len: self.min_pattern_len,
            top_k: self.top_k,
            num_stragglers: self.num_stragglers,
            cutoffs: Cutoffs {
                runtime: nanos(self.runtime_cutoff),
                launch_delay: nanos(self.launch_delay_cutoff),
            },
        }
    }

    /// Reads the traces and shows how far it is, if someone watches.
    pub fn load(&self) -> Result<Timeline> {
        load(&self.paths, self.keeping)
    }
}

fn nanos(micros: f64) -> i64 {
    (micros * 1000.0).round() as i64
}

/// Reads traces with a progress line on a terminal, and prints what is wrong with them.
pub fn load(paths: &[PathBuf], keeping: Keeping) -> Result<Timeline> {
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    bar.set_style(ProgressStyle::with_template("{spinner} reading {msg}").expect("a valid template"));
    let timeline = files::load(paths, keeping.folder().as_deref(), &|path, bytes| {
        bar.set_message(format!("{}: {}", super::short(path), base::Bytes(bytes)));
        bar.tick();
    });
    bar.finish_and_clear();
    timeline
}
