//! Schedules as torch writes them: a line for each stage, its actions with commas between them.

use base::{Code, Diagnostic, Result};

use crate::{
    action::Action,
    rows::{Placement, Schedule},
};

/// What torch writes that follows from the actions.
const FOLLOWS: [&str; 7] = ["UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_F", "RECV_F", "SEND_B", "RECV_B"];

impl Schedule {
    /// Reads a schedule. A chunk is on the stage whose line has its actions. Sending and what else follows from the actions is passed over.
    pub fn from_csv(file: &str, text: &str) -> Result<Self> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let used = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
        let mut rows = Vec::with_capacity(used);
        for (number, line) in (1..).zip(&lines[..used]) {
            rows.push(row(line).map_err(|bad| {
                let message = format!("stage {}: `{bad}` is no action", number - 1);
                Diagnostic::new(Code::BAD_SCHEDULE, message)
                    .at_line(file, number, 0)
                    .hint("an action is a chunk, one of F, B, I and W, and a micro-batch, as in `0F1`")
            })?);
        }
        let schedule = Self::of_rows(rows).map_err(|refused| refused.at_line(file, 0, 0))?;
        schedule.check_file(file)?;
        Ok(schedule)
    }

    /// A schedule of these rows: chunks are where their actions are.
    fn of_rows(rows: Vec<Vec<Action>>) -> Result<Self> {
        let count = |of: fn(&Action) -> u32| rows.iter().flatten().map(of).max().map_or(0, |last| last + 1);
        let (chunks, micro_batches) = (count(|action| action.chunk), count(|action| action.micro_batch));
        let stage_of = (0..chunks).map(|chunk| {
            let on = rows.iter().position(|row| row.iter().any(|action| action.chunk == chunk));
            on.map(|stage| stage as u32).ok_or_else(|| {
                Diagnostic::new(Code::BAD_SCHEDULE, format!("chunk {chunk} of {chunks} is on no stage"))
                    .hint("chunks are counted from 0 in the order of forward")
            })
        });
        let stage_of = stage_of.collect::<Result<Vec<u32>>>()?;
        if chunks == 0 {
            return Err(Diagnostic::new(Code::BAD_SCHEDULE, "a schedule without an action"));
        }
        let placement = Placement { stages: rows.len() as u32, stage_of };
        Ok(Self { placement, micro_batches, rows })
    }

    /// The lines of the file, one for each stage.
    pub fn lines(&self) -> Vec<String> {
        let line = |row: &Vec<Action>| row.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        self.rows.iter().map(line).collect()
    }
}

/// The actions of a line; what is none, where there is such.
fn row(line: &str) -> std::result::Result<Vec<Action>, String> {
    let mut actions = Vec::new();
    for text in line.split(',').map(str::trim) {
        let follows = FOLLOWS.iter().any(|name| text.trim_matches(|one: char| one.is_ascii_digit()) == *name);
        if text.is_empty() || follows {
            continue;
        }
        let beside = text.strip_prefix('(').and_then(|text| text.strip_suffix(")OVERLAP_F_B"));
        for one in beside.unwrap_or(text).split(';') {
            actions.push(one.trim().parse::<Action>().map_err(|()| text.to_owned())?);
        }
    }
    Ok(actions)
}
