//! `unisono trace events`: single events, with what encloses them and what is below them.

use std::io::Write;

use ::trace::query::{self, Query};
use base::Result;
use clap::Args;
use serde_json::json;

use super::{arguments::Input, frames, json, tables, tell, written};

/// The traces and which of their events.
#[derive(Args)]
pub struct Events {
    /// Only events whose name contains this
    #[arg(long, default_value = "")]
    name: String,
    /// Only this category, such as cpu_op or kernel
    #[arg(long)]
    category: Option<String>,
    /// Only this stream
    #[arg(long)]
    stream: Option<i64>,
    /// Only this iteration
    #[arg(long)]
    iteration: Option<i64>,
    /// Only from this many microseconds after the first event on
    #[arg(long, value_name = "US")]
    from: Option<f64>,
    /// Only up to this many microseconds after the first event
    #[arg(long, value_name = "US")]
    to: Option<f64>,
    /// Only the event at this place of its file, and everything below it
    #[arg(long, value_name = "INDEX")]
    under: Option<u32>,
    /// The event at this place of its file, with all that enclose it
    #[arg(long, value_name = "INDEX")]
    stack: Option<u32>,
    /// How many events to show; 0 is all
    #[arg(long, default_value_t = 100)]
    limit: usize,
    #[command(flatten)]
    input: Input,
}

impl Events {
    /// Prints the events.
    pub fn run(self, out: &mut dyn Write) -> Result<()> {
        let timeline = self.input.load()?;
        let frames = frames(&timeline, &self.input);
        tell(&frames);
        let rank = self.input.options().rank;
        let rows = if let Some(index) = self.stack {
            query::stack(&frames, rank, index)
        } else {
            let Self { name, category, stream, iteration, from, to, under, limit, .. } = self;
            let query =
                Query { rank, name, category, device: None, stream, iteration, from, to, under, limit };
            query::events(&frames, &query)
        };
        let rows = json!({ "events": rows });
        if self.input.json {
            json(out, &rows)
        } else {
            written(tables::print_rows(out, "events", &rows["events"]))
        }
    }
}
