//! `unisono trace diff`: two runs compared.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use ::trace::{
    Frames, Mode, Selection,
    diff::{self, Device, NameDiff, Part, Spelling},
    prediction,
};
use base::Result;
use clap::{Args, ValueEnum};
use serde_json::json;

use super::{arguments, json, mode_of, tables, written};

/// Which events to compare.
#[derive(Clone, Copy, ValueEnum)]
enum Which {
    All,
    Cpu,
    Gpu,
}

/// Two runs.
#[derive(Args)]
pub struct Diff {
    /// The run before: a trace file or a directory of one for each rank; a simulated one is compared operation by operation
    before: PathBuf,
    /// The run after
    after: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Compare counts and durations of one iteration of the first rank, as another tool does
    #[arg(long, value_name = "TOOL")]
    compat: Option<arguments::Compat>,
    /// The rank of the run before [default: the first]
    #[arg(long, value_name = "RANK")]
    control_rank: Option<u32>,
    /// The rank of the run after [default: the first]
    #[arg(long, value_name = "RANK")]
    test_rank: Option<u32>,
    /// The iteration of the run before [default: the first]
    #[arg(long, value_name = "N")]
    control_iteration: Option<i64>,
    /// The iteration of the run after [default: the first]
    #[arg(long, value_name = "N")]
    test_iteration: Option<i64>,
    /// Compare names without arguments and templates
    #[arg(long)]
    short_names: bool,
    #[command(flatten)]
    keeping: arguments::Keeping,
    /// Which events the table of counts and durations holds
    #[arg(long, value_enum, default_value_t = Which::All)]
    device: Which,
}

impl Diff {
    /// Prints what changed.
    pub fn run(&self, out: &mut dyn Write) -> Result<()> {
        let before = arguments::load(std::slice::from_ref(&self.before), self.keeping)?;
        let after = arguments::load(std::slice::from_ref(&self.after), self.keeping)?;
        if mode_of(self.compat) == Mode::Hta {
            let parts = (
                Part { rank: self.control_rank, iteration: self.control_iteration },
                Part { rank: self.test_rank, iteration: self.test_iteration },
            );
            let spelling = if self.short_names { Spelling::Short } else { Spelling::Whole };
            let table = |device| diff::compare((&before, parts.0), (&after, parts.1), device, spelling);
            let tables: BTreeMap<&str, Vec<NameDiff>> =
                [("ALL", table(Device::All)), ("CPU", table(Device::Cpu)), ("GPU", table(Device::Gpu))]
                    .into();
            let chosen = match self.device {
                Which::All => "ALL",
                Which::Cpu => "CPU",
                Which::Gpu => "GPU",
            };
            let ops: BTreeMap<&str, diff::OpsDiff> =
                tables.iter().map(|(name, table)| (*name, diff::ops_diff(table))).collect();
            let value = json!({"compare_traces": tables, "ops_diff": ops});
            if self.json {
                return json(out, &value);
            }
            return written(tables::print_rows(out, "trace diff", &value["compare_traces"][chosen]));
        }
        let frames = |timeline| Frames::new(timeline, Mode::Exact, Selection::default());
        let (before, after) = (frames(&before), frames(&after));
        if prediction::comparable(&before, &after) {
            let result = prediction::compare(&before, &after);
            if self.json {
                return json(out, &json!({ "prediction": result }));
            }
            return written(tables::print_prediction(out, &result));
        }
        let result = diff::regression(&before, &after);
        if self.json {
            return json(out, &json!({ "diff": result }));
        }
        written(tables::print_regression(out, &result))
    }
}
