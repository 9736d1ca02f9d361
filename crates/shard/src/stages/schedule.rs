//! In which order a stage computes the micro-batches.

use std::{fmt, str::FromStr};

use ir::{Graph, Part, PartId, PartKind};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A schedule by its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Schedule {
    /// Forward of all micro-batches, then backward of all (Huang et al. 2019).
    GPipe,
    /// Backward of a micro-batch as soon as it can begin: stage `s` of `S` has at most `S - s` micro-batches under way (`PipeDream`-flush,
    /// Narayanan et al. 2021).
    #[default]
    OneForwardOneBackward,
}

impl Schedule {
    /// All schedules with their names.
    pub const NAMES: [(Self, &str); 2] = [(Self::GPipe, "gpipe"), (Self::OneForwardOneBackward, "1f1b")];

    /// What stage `stage` of `stages` does with `micro_batches` micro-batches, in its order.
    pub fn actions(self, stage: u32, stages: u32, micro_batches: u32) -> Vec<Action> {
        let ahead = match self {
            Self::GPipe => micro_batches,
            Self::OneForwardOneBackward => micro_batches.min(stages.saturating_sub(stage + 1)),
        };
        let forward = |number| Action { kind: PartKind::Forward, micro_batch: number };
        let backward = |number| Action { kind: PartKind::Backward, micro_batch: number };
        let fill = (0..ahead).map(forward);
        let steady = (ahead..micro_batches).flat_map(|number| [forward(number), backward(number - ahead)]);
        let drain = (micro_batches - ahead..micro_batches).map(backward);
        fill.chain(steady).chain(drain).collect()
    }

    /// The parts of a program in the order in which a stage runs them. What belongs to no micro-batch stays where it is.
    pub fn parts(self, graph: &Graph, stage: u32, stages: u32) -> Vec<PartId> {
        let parts: Vec<PartId> = graph.parts.ids().collect();
        let batch_of = |part: &PartId| graph.parts[*part].micro_batch;
        let mut ordered = Vec::with_capacity(parts.len());
        for loop_or_not in parts.chunk_by(|a, b| batch_of(a).is_some() == batch_of(b).is_some()) {
            let has = |kind| loop_or_not.iter().any(|part| graph.parts[*part].kind == kind);
            let count = loop_or_not.iter().filter_map(batch_of).max().map(|last| last + 1);
            let Some(count) = count.filter(|_| has(PartKind::Forward) && has(PartKind::Backward)) else {
                ordered.extend(loop_or_not);
                continue;
            };
            for action in self.actions(stage, stages, count) {
                ordered.extend(loop_or_not.iter().filter(|part| action.is_of(graph.parts[**part])));
            }
        }
        ordered
    }
}

/// Forward or backward of a micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// Which of the two.
    pub kind: PartKind,
    /// The number of the micro-batch.
    pub micro_batch: u32,
}

impl Action {
    /// Whether a part of the program belongs to it; what a loop does beside forward is backward's.
    fn is_of(self, part: Part) -> bool {
        let is_forward = part.kind == PartKind::Forward;
        part.micro_batch == Some(self.micro_batch) && is_forward == (self.kind == PartKind::Forward)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(schedule, _)| schedule == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl FromStr for Schedule {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.iter().find(|(_, name)| *name == text).map(|(schedule, _)| *schedule);
        known.ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|(_, name)| *name).collect();
            format!("`{text}` is no schedule: {}", names.join(", "))
        })
    }
}

impl Serialize for Schedule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Schedule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(schedule: Schedule, stage: u32, stages: u32, count: u32) -> String {
        let actions = schedule.actions(stage, stages, count);
        let word = |action: &Action| {
            format!("{}{}", if action.kind == PartKind::Forward { 'F' } else { 'B' }, action.micro_batch)
        };
        actions.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn stages_run_the_actions_of_the_published_schedules() {
        assert_eq!(text(Schedule::GPipe, 0, 2, 3), "F0 F1 F2 B0 B1 B2");
        assert_eq!(text(Schedule::OneForwardOneBackward, 0, 3, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(text(Schedule::OneForwardOneBackward, 1, 3, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(text(Schedule::OneForwardOneBackward, 2, 3, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(text(Schedule::OneForwardOneBackward, 0, 4, 2), "F0 F1 B0 B1");
    }
}
