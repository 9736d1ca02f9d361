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
    /// The same, with what backward makes for the stage before first, and the gradients of weights later, where the stage would wait: stage
    /// `s` is behind with those of `s` micro-batches, and each has up to `S` under way (ZB-H1, Qi et al. 2024).
    ZeroBubble,
}

impl Schedule {
    /// All schedules with their names.
    pub const NAMES: [(Self, &str); 3] =
        [(Self::GPipe, "gpipe"), (Self::OneForwardOneBackward, "1f1b"), (Self::ZeroBubble, "zb-h1")];

    /// What stage `stage` of `stages` does with `micro_batches` micro-batches, in its order.
    pub fn actions(self, stage: u32, stages: u32, micro_batches: u32) -> Vec<Action> {
        let action = |work| move |micro_batch| Action { work, micro_batch };
        let forward = action(Pass::Forward);
        let ahead = match self {
            Self::GPipe => micro_batches,
            Self::OneForwardOneBackward => micro_batches.min(stages.saturating_sub(stage + 1)),
            Self::ZeroBubble => return zero_bubble(stage, stages, micro_batches),
        };
        let backward = action(Pass::Backward);
        let fill = (0..ahead).map(forward);
        let steady = (ahead..micro_batches).flat_map(|number| [forward(number), backward(number - ahead)]);
        let drain = (micro_batches - ahead..micro_batches).map(backward);
        fill.chain(steady).chain(drain).collect()
    }

    /// The parts of a program, or halves of them, in the order in which a stage runs them. What belongs to no micro-batch stays where it is.
    pub fn cells(self, graph: &Graph, stage: u32, stages: u32) -> Vec<Cell> {
        let parts: Vec<PartId> = graph.parts.ids().collect();
        let batch_of = |part: &PartId| graph.parts[*part].micro_batch;
        let whole = |part: &PartId| Cell { part: *part, half: Half::Both };
        let mut ordered = Vec::with_capacity(parts.len());
        for loop_or_not in parts.chunk_by(|a, b| batch_of(a).is_some() == batch_of(b).is_some()) {
            let has = |kind| loop_or_not.iter().any(|part| graph.parts[*part].kind == kind);
            let count = loop_or_not.iter().filter_map(batch_of).max().map(|last| last + 1);
            let Some(count) = count.filter(|_| has(PartKind::Forward) && has(PartKind::Backward)) else {
                ordered.extend(loop_or_not.iter().map(whole));
                continue;
            };
            for action in self.actions(stage, stages, count) {
                let of_action = loop_or_not.iter().filter(|part| action.is_of(graph.parts[**part]));
                ordered.extend(of_action.map(|part| Cell { part: *part, half: action.half() }));
            }
        }
        ordered
    }
}

/// The actions of [`Schedule::ZeroBubble`].
fn zero_bubble(stage: u32, stages: u32, micro_batches: u32) -> Vec<Action> {
    let action = |work, micro_batch| Action { work, micro_batch };
    let mut ahead = micro_batches.min(stages.saturating_sub(stage));
    let mut actions: Vec<Action> = (0..ahead).map(|number| action(Pass::Forward, number)).collect();
    for number in 0..micro_batches {
        actions.push(action(Pass::Inputs, number));
        if let Some(behind) = number.checked_sub(stage) {
            actions.push(action(Pass::Weights, behind));
        }
        if ahead < micro_batches {
            actions.push(action(Pass::Forward, ahead));
            ahead += 1;
        }
    }
    let rest = micro_batches.saturating_sub(stage)..micro_batches;
    actions.extend(rest.map(|number| action(Pass::Weights, number)));
    actions
}

/// What an action computes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Pass {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// What of backward other stages need.
    Inputs,
    /// The rest of backward: gradients of weights.
    Weights,
}

/// Forward or backward of a micro-batch, or a half of backward.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Action {
    /// Which of them.
    pub work: Pass,
    /// The number of the micro-batch.
    pub micro_batch: u32,
}

impl Action {
    /// Whether a part of the program belongs to it; what a loop does beside forward is backward's.
    fn is_of(self, part: Part) -> bool {
        let is_forward = part.kind == PartKind::Forward;
        part.micro_batch == Some(self.micro_batch) && is_forward == (self.work == Pass::Forward)
    }

    const fn half(self) -> Half {
        match self.work {
            Pass::Forward | Pass::Backward => Half::Both,
            Pass::Inputs => Half::Needed,
            Pass::Weights => Half::Rest,
        }
    }
}

impl fmt::Display for Action {
    /// As torch's schedules write it: `F0`, `B0`, `I0`, `W0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.work {
            Pass::Forward => 'F',
            Pass::Backward => 'B',
            Pass::Inputs => 'I',
            Pass::Weights => 'W',
        };
        write!(f, "{letter}{}", self.micro_batch)
    }
}

/// Which operations of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// All.
    Both,
    /// Those that other stages need.
    Needed,
    /// All others.
    Rest,
}

/// A part of the program, or a half of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The part.
    pub part: PartId,
    /// Which half.
    pub half: Half,
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
    use std::collections::HashMap;

    use super::*;

    fn text(schedule: Schedule, stage: u32, stages: u32, count: u32) -> String {
        let actions = schedule.actions(stage, stages, count);
        actions.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
    }

    /// When all is done, and the most micro-batches that a stage has under way, where forward and each half of backward take 1.
    fn ran(schedule: Schedule, stages: u32, count: u32) -> (u32, u32) {
        let rows: Vec<Vec<Action>> =
            (0..stages).map(|stage| schedule.actions(stage, stages, count)).collect();
        let mut ends: HashMap<(u32, Pass, u32), u32> = HashMap::new();
        let (mut next, mut now) = (vec![0; rows.len()], vec![0_u32; rows.len()]);
        while next.iter().zip(&rows).any(|(next, row)| *next < row.len()) {
            let before = next.clone();
            for stage in 0..stages {
                let at = stage as usize;
                while let Some(Action { work, micro_batch }) = rows[at].get(next[at]).copied() {
                    let end = |stage: u32, work| ends.get(&(stage, work, micro_batch)).copied();
                    let back = || end(stage + 1, Pass::Backward).or(end(stage + 1, Pass::Inputs));
                    let ready = match work {
                        Pass::Forward if stage == 0 => Some(0),
                        Pass::Forward => end(stage - 1, Pass::Forward),
                        Pass::Weights => end(stage, Pass::Inputs),
                        _ if stage + 1 == stages => end(stage, Pass::Forward),
                        _ => back(),
                    };
                    let Some(ready) = ready else { break };
                    let takes = if work == Pass::Backward { 2 } else { 1 };
                    now[at] = now[at].max(ready) + takes;
                    ends.insert((stage, work, micro_batch), now[at]);
                    next[at] += 1;
                }
            }
            assert_ne!(before, next, "stages wait for each other");
        }
        let under_way = |row: &Vec<Action>| {
            let change = |action: &Action| match action.work {
                Pass::Forward => 1,
                Pass::Backward | Pass::Weights => -1,
                Pass::Inputs => 0,
            };
            let held = row.iter().scan(0_i32, |sum, action| {
                *sum += change(action);
                Some(*sum)
            });
            held.max().unwrap_or(0) as u32
        };
        (now.into_iter().max().unwrap_or(0), rows.iter().map(under_way).max().unwrap_or(0))
    }

    #[test]
    fn bubbles_and_memory_are_those_of_the_published_formulas() {
        for (stages, count) in [(2, 4), (4, 8), (4, 16), (8, 16), (8, 32)] {
            let busy = 3 * count;
            assert_eq!(ran(Schedule::GPipe, stages, count), (busy + 3 * (stages - 1), count));
            assert_eq!(
                ran(Schedule::OneForwardOneBackward, stages, count),
                (busy + 3 * (stages - 1), stages)
            );
            // (P - 1)(F + I - W), with the memory of 1F1B's first stage on all.
            assert_eq!(ran(Schedule::ZeroBubble, stages, count), (busy + stages - 1, stages));
        }
        for schedule in Schedule::NAMES.map(|(schedule, _)| schedule) {
            for (stages, count) in [(4, 1), (5, 3), (1, 4)] {
                ran(schedule, stages, count);
            }
        }
    }

    #[test]
    fn stages_run_the_actions_of_the_published_schedules() {
        assert_eq!(text(Schedule::GPipe, 0, 2, 3), "F0 F1 F2 B0 B1 B2");
        assert_eq!(text(Schedule::OneForwardOneBackward, 0, 3, 4), "F0 F1 F2 B0 F3 B1 B2 B3");
        assert_eq!(text(Schedule::OneForwardOneBackward, 1, 3, 4), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(text(Schedule::OneForwardOneBackward, 2, 3, 4), "F0 B0 F1 B1 F2 B2 F3 B3");
        assert_eq!(text(Schedule::OneForwardOneBackward, 0, 4, 2), "F0 F1 B0 B1");
        assert_eq!(text(Schedule::ZeroBubble, 0, 2, 3), "F0 F1 I0 W0 F2 I1 W1 I2 W2");
        assert_eq!(text(Schedule::ZeroBubble, 1, 2, 3), "F0 I0 F1 I1 W0 F2 I2 W1 W2");
    }
}
