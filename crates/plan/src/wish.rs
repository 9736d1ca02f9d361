//! What a user asks of pipeline stages.

use std::str::FromStr;

use base::{Code, Diagnostic, Result};
use schedule::{Kind, Name, Placement, Schedule};
use serde::{Deserialize, Serialize};

use crate::{plan::Prediction, stages::Cut};

/// How much longer than what is known pipelines take that hold too much, in percent, of which less is not tried.
const FAR: i64 = 10;

/// In which order stages are to run their micro-batches.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ScheduleWish {
    /// By a name, or as a search finds it.
    Kind(Kind),
    /// As a file says.
    File {
        /// Its name, for messages.
        file: String,
        /// What is in it.
        text: String,
    },
}

impl FromStr for ScheduleWish {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        name.parse().map(Self::Kind)
    }
}

/// What is asked of stages beside what is asked of any plan.
#[derive(Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The schedule; the best one where it is not said.
    pub schedule: Option<&'a ScheduleWish>,
    /// How many chunks each stage has; what suits the schedule where it is not said.
    pub chunks: Option<u32>,
    /// Where the chunks begin; where the slowest takes least if it is not said.
    pub cuts: Option<&'a [Cut]>,
    /// What is known already takes so long, in nanoseconds: slower pipelines are of no use.
    pub faster_than_ns: Option<i64>,
}

impl Wanted<'_> {
    /// Whether what is predicted is faster than what is known.
    pub fn is_faster(&self, prediction: &Prediction) -> bool {
        self.faster_than_ns.is_none_or(|known| prediction.step_ns < known)
    }

    /// Whether what is predicted takes so much longer than what is known that to hold less does not make up for it.
    pub fn is_far_slower(&self, prediction: &Prediction) -> bool {
        self.faster_than_ns.is_some_and(|known| prediction.step_ns / (100 + FAR) * 100 > known)
    }

    /// How many micro-batches the schedule is for, if it says so.
    pub fn micro_batches(&self) -> Result<Option<u32>> {
        let Some(ScheduleWish::File { file, text }) = self.schedule else { return Ok(None) };
        Ok(Some(Schedule::from_csv(file, text)?.micro_batches))
    }

    /// The schedules to try for so many stages and micro-batches.
    pub fn schedules(&self, stages: u32, micro_batches: u32) -> Result<Vec<(Kind, Schedule)>> {
        let named = |name: Name, chunks| (Kind::Named(name), name.schedule(stages, chunks, micro_batches));
        match self.schedule {
            Some(ScheduleWish::Kind(Kind::Named(name))) => Ok(vec![named(*name, name.chunks(self.chunks)?)]),
            Some(ScheduleWish::File { file, text }) => {
                let schedule = Schedule::from_csv(file, text)?;
                self.suits(&schedule, file, stages, micro_batches)?;
                Ok(vec![(Kind::Given, schedule)])
            }
            Some(ScheduleWish::Kind(Kind::Given)) => {
                let message = "the schedule `given` is what a plan says of one that was read from a file";
                Err(Diagnostic::new(Code::BAD_MESH, message).hint("give the file itself, or a name"))
            }
            Some(ScheduleWish::Kind(Kind::Searched)) | None => {
                let allowed = Name::ALL.iter().filter_map(|(name, _)| {
                    let chunks = name.chunks(self.chunks).ok()?;
                    Some(named(*name, chunks))
                });
                Ok(allowed.collect())
            }
        }
    }

    /// Whether a search may add schedules.
    pub const fn may_search(&self) -> bool {
        matches!(self.schedule, None | Some(ScheduleWish::Kind(Kind::Searched)))
    }

    /// Whether the schedule is to be one that a search finds.
    pub const fn must_search(&self) -> bool {
        matches!(self.schedule, Some(ScheduleWish::Kind(Kind::Searched)))
    }

    /// Refuses a file for another pipeline.
    fn suits(&self, schedule: &Schedule, file: &str, stages: u32, micro_batches: u32) -> Result<()> {
        let Placement { stages: has, .. } = schedule.placement;
        let refused = |message: String, hint: &str| {
            Err(Diagnostic::new(Code::BAD_SCHEDULE, message).at_line(file, 0, 0).hint(hint))
        };
        if has != stages {
            return refused(format!("a schedule of {has} stages for {stages}"), "give a line for each stage");
        }
        if schedule.micro_batches != micro_batches {
            let message = format!(
                "a schedule of {} micro-batches for a step in {micro_batches}",
                schedule.micro_batches
            );
            return refused(message, "leave `micro_batches` out, or give what the file has");
        }
        let chunks = |stage| schedule.placement.chunks_of(stage).count() as u32;
        if let Some((asked, stage)) =
            self.chunks.and_then(|asked| Some((asked, (0..stages).find(|stage| chunks(*stage) != asked)?)))
        {
            let message = format!("stage {stage} has {} chunks, not {asked}", chunks(stage));
            return refused(message, "leave `chunks` out where a file says where they are");
        }
        Ok(())
    }
}
