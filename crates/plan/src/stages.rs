//! Pipeline stages of a plan: where the program is cut, in which order each stage runs its micro-batches, and what that is predicted to take.

use std::{collections::BTreeSet, str::FromStr};

use base::{Code, Diagnostic, Result};
use ir::{Graph, InputId, NodeId};
use passes::{Pieces, Positions, Stays};
use schedule::{Kind, Placement, Schedule};
use serde::{Deserialize, Serialize};
use shard::stages::{Staged, forward_end, staged};

use crate::{
    beyond::{Beyond, time_beyond},
    in_part::{InPart, full},
    prediction::{is_zero, is_zero_ns},
    text::holders::Holders,
};

/// How a step is taken apart into pipeline stages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// In which order each stage runs its micro-batches: a name, or where its actions are from.
    pub schedule: Kind,
    /// How many chunks of the program each stage has, under a schedule with a name.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub chunks: u32,
    /// What each stage does, under a schedule without a name: a text of actions for each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
    /// The operations with which all chunks but the first begin, by position in the forward part of the step in canonical form.
    pub cuts: Vec<usize>,
    /// What of forward runs again in backward, by position in the program of all stages before it is taken apart.
    #[serde(default, skip_serializing_if = "Positions::is_empty")]
    pub recompute: Positions,
    /// Which results of forward are on the host until backward, for each stage, by positions in its settled program; none where nothing is on any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub offload: Vec<Stays>,
    /// What of the state that only the update reads is on the host between steps, for each stage; none where nothing is on any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_state: Vec<Pieces>,
    /// State that only some stages hold, with those; the first one's values count.
    #[serde(default, with = "crate::text::holders")]
    pub state: Holders,
    /// What each stage is predicted to take.
    #[serde(default)]
    pub predicted: Vec<StagePrediction>,
}

const fn one() -> u32 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes what it may leave out so")]
const fn is_one(chunks: &u32) -> bool {
    *chunks == 1
}

impl Stages {
    /// Those that cuts make of a step in canonical form, and its graph with the chunks of its operations.
    pub fn of(graph: &Graph, cuts: &[usize], kind: Kind, schedule: &Schedule) -> Result<(Self, Staged)> {
        let staged = staged(graph, cuts, &schedule.placement)?;
        let name = |input: &InputId| graph.inputs[*input].name.clone();
        let state = staged.held.iter().map(|(input, on)| (name(input), on.stages().collect()));
        let made = Self {
            schedule: kind,
            chunks: 1,
            actions: Vec::new(),
            cuts: cuts.to_vec(),
            recompute: Positions::default(),
            offload: Vec::new(),
            host_state: Vec::new(),
            state: state.collect(),
            predicted: Vec::new(),
        };
        Ok((made.with(kind, schedule), staged))
    }

    /// The same under another schedule of the same chunks on the same stages.
    #[must_use]
    pub fn with(&self, kind: Kind, schedule: &Schedule) -> Self {
        let (chunks, actions) = match kind {
            Kind::Named(_) => (schedule.placement.most(), Vec::new()),
            Kind::Searched | Kind::Given => (1, schedule.lines()),
        };
        Self { schedule: kind, chunks, actions, ..self.clone() }
    }

    /// The same with this on the host, of each stage.
    #[must_use]
    pub fn hosting(self, on_host: Vec<OnHost>) -> Self {
        let (stays, pieces): (Vec<Stays>, Vec<Pieces>) =
            on_host.into_iter().map(|OnHost { stays, pieces }| (stays, pieces)).unzip();
        let offload = if stays.iter().all(Stays::is_empty) { Vec::new() } else { stays };
        let host_state = if pieces.iter().all(Pieces::is_empty) { Vec::new() } else { pieces };
        Self { offload, host_state, ..self }
    }

    /// Refuses what is on the host of other stages than there are.
    pub fn check_on_host(&self) -> Result<()> {
        let of_key = [("offload", self.offload.len()), ("host_state", self.host_state.len())];
        let stages = self.count() as usize;
        match of_key.into_iter().find(|(_, lines)| *lines != 0 && *lines != stages) {
            None => Ok(()),
            Some((key, lines)) => {
                let message = format!("`{key}` of {lines} stages in a plan of {stages}");
                let hint = format!(
                    "give `{key}` a text for each stage, empty where nothing is on its host, or leave it out"
                );
                Err(Diagnostic::new(Code::BAD_TEXT, message).hint(hint))
            }
        }
    }

    /// What of a stage is on the host.
    pub fn on_host(&self, stage: usize) -> OnHost {
        OnHost {
            stays: self.offload.get(stage).cloned().unwrap_or_default(),
            pieces: self.host_state.get(stage).cloned().unwrap_or_default(),
        }
    }

    /// The schedule for so many micro-batches.
    pub fn schedule(&self, micro_batches: u32) -> Result<Schedule> {
        let refused = |message: String| Diagnostic::new(Code::BAD_SCHEDULE, message).hint("plan again");
        let chunks = self.cuts.len() as u32 + 1;
        let schedule = if let Kind::Named(name) = self.schedule {
            name.chunks(Some(self.chunks))?;
            if !chunks.is_multiple_of(self.chunks) {
                return Err(refused(format!("{chunks} chunks, {} on each stage", self.chunks)));
            }
            name.schedule(chunks / self.chunks, self.chunks, micro_batches)
        } else {
            Schedule::from_csv("the plan's stages", &self.actions.join("\n"))?
        };
        if (schedule.placement.chunks(), schedule.micro_batches) != (chunks, micro_batches) {
            let has = format!(
                "{} chunks and {} micro-batches",
                schedule.placement.chunks(),
                schedule.micro_batches
            );
            return Err(refused(format!(
                "actions of {has} for {chunks} chunks and {micro_batches} micro-batches"
            )));
        }
        Ok(schedule)
    }

    /// What of the micro-batches of a step of so many operations is written out for its figures; none where all are.
    pub fn in_part(&self, operations: usize, micro_batches: u32) -> Option<InPart> {
        let stays = self.offload.is_empty() && self.host_state.is_empty();
        full(self.schedule)
            .filter(|_| stays)
            .and_then(|full| InPart::of(operations, (self.count(), micro_batches), full))
    }

    /// On which stage each chunk is.
    fn placement(&self) -> Placement {
        match self.schedule {
            Kind::Named(name) => name.placement(self.count(), self.chunks),
            Kind::Searched | Kind::Given => {
                let read = Schedule::from_csv("the plan's stages", &self.actions.join("\n"));
                read.map_or_else(|_| Placement::in_turn(self.count(), 1), |schedule| schedule.placement)
            }
        }
    }

    /// The most chunks of a stage.
    pub fn most_chunks(&self) -> u32 {
        self.placement().most()
    }

    /// The operations that the chunks of a stage begin with, as a text.
    pub fn begins(&self, stage: u32) -> String {
        let begin = |chunk: u32| chunk.checked_sub(1).map_or(0, |before| self.cuts[before as usize]);
        let begins: Vec<String> =
            self.placement().chunks_of(stage).map(|chunk| begin(chunk).to_string()).collect();
        begins.join(" and ")
    }

    /// The share of a step of so many nanoseconds in which stages run no operation, on average.
    pub fn bubble(&self, step_ns: i64) -> f64 {
        let busy: i64 = self.predicted.iter().map(|stage| stage.busy_ns).sum();
        let all = step_ns * self.predicted.len() as i64;
        if all > 0 { 1.0 - busy as f64 / all as f64 } else { 0.0 }
    }

    /// How many there are.
    pub const fn count(&self) -> u32 {
        match self.schedule {
            Kind::Named(_) => (self.cuts.len() as u32 + 1) / self.chunks,
            Kind::Searched | Kind::Given => self.actions.len() as u32,
        }
    }
}

/// What of a stage's program is on the host while the device does not need it.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct OnHost {
    /// What forward leaves, until backward.
    pub stays: Stays,
    /// State, between steps.
    pub pieces: Pieces,
}

impl OnHost {
    /// Whether nothing is.
    pub fn is_nothing(&self) -> bool {
        self.stays.is_empty() && self.pieces.is_empty()
    }

    /// The settings of the passes with that.
    pub fn settings(&self, passes: &passes::Settings) -> passes::Settings {
        let Self { stays, pieces } = self.clone();
        passes::Settings { offload: stays, host_state: pieces, ..passes.clone() }
    }
}

/// What one stage is predicted to take.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StagePrediction {
    /// Its operations, in nanoseconds.
    pub busy_ns: i64,
    /// Waiting, for other stages and for collectives that nothing hides.
    pub waiting_ns: i64,
    /// Most memory of one of its ranks.
    pub peak_bytes: u64,
    /// What of it stays for small results.
    pub buffer_bytes: u64,
    /// Waiting for copies between device and host, in nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero_ns")]
    pub exposed_copies_ns: i64,
    /// What it copies to the host in a step, and back, in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub offloaded_bytes: u64,
    /// State of it that is on the host between steps, in bytes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_state_bytes: u64,
    /// The most that is on the host at once, that state included.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub host_bytes: u64,
}

impl Beyond for StagePrediction {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        Self {
            busy_ns: time_beyond(self.busy_ns, shorter.busy_ns, rounds),
            waiting_ns: time_beyond(self.waiting_ns, shorter.waiting_ns, rounds),
            ..self
        }
    }
}

/// Where a stage begins.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cut {
    /// With this operation: its position in the forward part of the step in canonical form.
    At(usize),
    /// With the first operation of this module, or of one within it.
    Module(String),
}

impl Cut {
    /// The position.
    pub fn position(&self, graph: &Graph) -> Result<usize> {
        let Self::Module(name) = self else {
            let Self::At(position) = self else { return Err(Diagnostic::bug("a cut is at no place")) };
            return Ok(*position);
        };
        let forward = &graph.order[..forward_end(graph)];
        let module =
            |id: &NodeId| graph.nodes[*id].module.map_or("", |module| graph.modules[module].as_str());
        let is_within = |id: &NodeId| {
            module(id)
                .strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        forward.iter().position(is_within).ok_or_else(|| {
            let known: BTreeSet<&str> =
                forward.iter().map(module).filter(|module| !module.is_empty()).collect();
            let message =
                format!("a stage cannot begin with `{name}`: no operation of forward is of such a module");
            Diagnostic::new(Code::BAD_MESH, message).hint(base::unknown_name_hint(name, known))
        })
    }
}

impl FromStr for Cut {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(text.parse().map_or_else(|_| Self::Module(text.to_owned()), Self::At))
    }
}
