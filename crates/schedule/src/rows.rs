//! A schedule: where chunks are, and what each stage does.

use crate::action::{Action, Pass};

/// On which stage each chunk of a program is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Placement {
    /// How many stages there are.
    pub stages: u32,
    /// The stage of each chunk.
    pub stage_of: Vec<u32>,
}

impl Placement {
    /// Chunks dealt out to the stages in turn: stage `s` of `S` has chunks `s`, `s + S`, and so on.
    pub fn in_turn(stages: u32, chunks: u32) -> Self {
        Self { stages, stage_of: (0..stages * chunks).map(|chunk| chunk % stages).collect() }
    }

    /// Two chunks on each stage, down and up again: the first stage has the first one and the last one.
    pub fn in_v(stages: u32) -> Self {
        Self { stages, stage_of: (0..stages).chain((0..stages).rev()).collect() }
    }

    /// How many chunks there are.
    pub const fn chunks(&self) -> u32 {
        self.stage_of.len() as u32
    }

    /// The chunks of a stage.
    pub fn chunks_of(&self, stage: u32) -> impl Iterator<Item = u32> + Clone {
        (0..).zip(&self.stage_of).filter(move |(_, one)| **one == stage).map(|(chunk, _)| chunk)
    }

    /// The most chunks that a stage has.
    pub fn most(&self) -> u32 {
        (0..self.stages).map(|stage| self.chunks_of(stage).count() as u32).max().unwrap_or(0)
    }
}

/// What each stage computes, in its order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Schedule {
    /// On which stage each chunk is.
    pub placement: Placement,
    /// How many micro-batches there are.
    pub micro_batches: u32,
    /// The actions of each stage.
    pub rows: Vec<Vec<Action>>,
}

impl Schedule {
    /// The same with backward as its two halves, one behind the other: no action ends later, and what the chunk before needs is there sooner.
    #[must_use]
    pub fn in_halves(&self) -> Self {
        let halves = |action: &Action| {
            let half = |work| Action { work, ..*action };
            match action.work {
                Pass::Backward => vec![half(Pass::Inputs), half(Pass::Weights)],
                _ => vec![*action],
            }
        };
        let rows = self.rows.iter().map(|row| row.iter().flat_map(halves).collect()).collect();
        Self { placement: self.placement.clone(), micro_batches: self.micro_batches, rows }
    }
}
