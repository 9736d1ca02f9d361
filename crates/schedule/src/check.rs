//! Whether a schedule computes everything once, and can be run.

use base::{Code, Diagnostic, Result};
use rustc_hash::FxHashMap;

use crate::{
    action::{Action, Pass},
    costs::Costs,
    rows::Schedule,
};

const ONCE: &str = "each stage has forward and backward of each micro-batch in each of its chunks once";

/// The stage whose row is wrong, and what is wrong.
type Fault = (u32, Box<Diagnostic>);

impl Schedule {
    /// Refuses a schedule that leaves an action out, has one twice or on two stages, or in which stages wait for each other without end.
    pub fn check(&self) -> Result<()> {
        self.sound().map_err(|(_, refused)| refused)
    }

    /// The same, saying in which line of which file, which has a line for each stage.
    pub fn check_file(&self, file: &str) -> Result<()> {
        self.sound().map_err(|(stage, refused)| refused.at_line(file, stage + 1, 0))
    }

    fn sound(&self) -> std::result::Result<(), Fault> {
        let found = self.found()?;
        for micro_batch in 0..self.micro_batches {
            for (chunk, stage) in (0..).zip(&self.placement.stage_of) {
                let missing = |work| {
                    let action = Action::new(chunk, work, micro_batch);
                    refused(*stage, &format!("`{action}` is missing"), ONCE)
                };
                let has = |work| found.contains_key(&Action::new(chunk, work, micro_batch));
                if !has(Pass::Forward) {
                    return Err(missing(Pass::Forward));
                }
                match (has(Pass::Backward), has(Pass::Inputs), has(Pass::Weights)) {
                    (true, false, false) | (false, true, true) => {}
                    (true, ..) => {
                        let both = if has(Pass::Inputs) { Pass::Inputs } else { Pass::Weights };
                        let action = Action::new(chunk, both, micro_batch);
                        let what = format!(
                            "`{action}` is beside `{}`",
                            Action::new(chunk, Pass::Backward, micro_batch)
                        );
                        return Err(refused(
                            *stage,
                            &what,
                            "write backward as one action `B`, or as its halves `I` and `W`",
                        ));
                    }
                    (false, true, false) => return Err(missing(Pass::Weights)),
                    (false, false, true) => return Err(missing(Pass::Inputs)),
                    (false, false, false) => return Err(missing(Pass::Backward)),
                }
            }
        }
        let stuck = Costs::even(&self.placement).run(self).err();
        stuck.map_or(Ok(()), |stuck| {
            // Backward that is one action makes what its first half makes.
            let whole = Action { work: Pass::Backward, ..stuck.waits_for };
            let waits_for = if found.contains_key(&stuck.waits_for) { stuck.waits_for } else { whole };
            let what = format!(
                "action {} of its row, `{}`, waits without end for `{waits_for}` of stage {}",
                stuck.position + 1,
                stuck.action,
                self.placement.stage_of[stuck.waits_for.chunk as usize],
            );
            Err(refused(stuck.stage, &what, "each stage runs its row from left to right"))
        })
    }

    /// All actions, each on the stage that its chunk is on.
    fn found(&self) -> std::result::Result<FxHashMap<Action, usize>, Fault> {
        let mut found = FxHashMap::default();
        for (stage, row) in (0..).zip(&self.rows) {
            for (position, action) in row.iter().enumerate() {
                let on = self.placement.stage_of.get(action.chunk as usize).copied();
                if on != Some(stage) {
                    let place = on.map_or("no stage".to_owned(), |on| format!("stage {on}"));
                    return Err(refused(
                        stage,
                        &format!("`{action}`, of a chunk of {place}"),
                        "all actions of a chunk are on one stage",
                    ));
                }
                if action.micro_batch >= self.micro_batches {
                    let what = format!("`{action}` of {} micro-batches", self.micro_batches);
                    return Err(refused(stage, &what, "micro-batches are counted from 0"));
                }
                if let Some(before) = found.insert(*action, position) {
                    let what = format!("`{action}` is action {} and action {}", before + 1, position + 1);
                    return Err(refused(stage, &what, ONCE));
                }
            }
        }
        Ok(found)
    }
}

fn refused(stage: u32, what: &str, hint: &str) -> Fault {
    (stage, Diagnostic::new(Code::BAD_SCHEDULE, format!("stage {stage}: {what}")).hint(hint))
}
