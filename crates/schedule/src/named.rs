//! The rows of schedules with one order of chunks.

use crate::{
    action::{Action, Pass},
    name::Name,
    rows::{Placement, Schedule},
    vshape,
};

impl Name {
    /// Where the chunks are.
    pub fn placement(self, stages: u32, chunks: u32) -> Placement {
        match self {
            Self::ZeroBubbleV | Self::DualPipeV => Placement::in_v(stages),
            _ => Placement::in_turn(stages, chunks),
        }
    }

    /// The schedule of so many micro-batches, with so many [chunks](Self::chunks) on each stage.
    pub fn schedule(self, stages: u32, chunks: u32, micro_batches: u32) -> Schedule {
        let placement = self.placement(stages, chunks);
        let row = |stage| match self {
            Self::GPipe => fill_and_drain(&placement, stage, micro_batches),
            Self::OneForwardOneBackward => one_by_one(stage, stages, micro_batches),
            Self::Interleaved => interleaved(stage, stages, chunks, micro_batches),
            Self::ZeroBubble1 => halves(stage, stages - stage, stage, micro_batches),
            Self::ZeroBubble2 => halves(stage, 2 * (stages - stage) - 1, 2 * stage, micro_batches),
            Self::ZeroBubbleV => vshape::zero_bubble(stage, stages, micro_batches),
            Self::DualPipeV => vshape::dual_pipe(stage, stages, micro_batches),
        };
        let rows = (0..stages).map(row).collect();
        Schedule { placement, micro_batches, rows }
    }
}

fn fill_and_drain(placement: &Placement, stage: u32, micro_batches: u32) -> Vec<Action> {
    let all = |chunk, work| (0..micro_batches).map(move |number| Action::new(chunk, work, number));
    let chunks: Vec<u32> = placement.chunks_of(stage).collect();
    let forward = chunks.iter().flat_map(|chunk| all(*chunk, Pass::Forward));
    let backward = chunks.iter().rev().flat_map(|chunk| all(*chunk, Pass::Backward));
    forward.chain(backward).collect()
}

fn one_by_one(stage: u32, stages: u32, micro_batches: u32) -> Vec<Action> {
    let ahead = micro_batches.min(stages - stage - 1);
    let action = |work| move |number| Action::new(stage, work, number);
    let (forward, backward) = (action(Pass::Forward), action(Pass::Backward));
    let fill = (0..ahead).map(forward);
    let steady = (ahead..micro_batches).flat_map(|number| [forward(number), backward(number - ahead)]);
    let drain = (micro_batches - ahead..micro_batches).map(backward);
    fill.chain(steady).chain(drain).collect()
}

/// Groups of as many micro-batches as stages go through a stage's chunks one after the other; the last group may be smaller.
fn interleaved(stage: u32, stages: u32, chunks: u32, micro_batches: u32) -> Vec<Action> {
    let group = stages * chunks;
    let all = micro_batches.div_ceil(stages) * group;
    let at = |number: u32| ((number % group) / stages, number / group * stages + number % stages);
    let forward = |number| {
        let (turn, batch) = at(number);
        Action::new(turn * stages + stage, Pass::Forward, batch)
    };
    let backward = |number| {
        let (turn, batch) = at(number);
        Action::new((chunks - 1 - turn) * stages + stage, Pass::Backward, batch)
    };
    let ahead = all.min(2 * (stages - stage - 1) + (chunks - 1) * stages);
    let fill = (0..ahead).map(forward);
    let steady = (ahead..all).flat_map(|number| [forward(number), backward(number - ahead)]);
    let drain = (all - ahead..all).map(backward);
    fill.chain(steady).chain(drain).filter(|action| action.micro_batch < micro_batches).collect()
}

/// Backward in halves: `ahead` forwards first, and the gradients of weights `behind` micro-batches later than what the stage before needs.
fn halves(stage: u32, ahead: u32, behind: u32, micro_batches: u32) -> Vec<Action> {
    let action = |work, number| Action::new(stage, work, number);
    let mut ahead = micro_batches.min(ahead);
    let mut row: Vec<Action> = (0..ahead).map(|number| action(Pass::Forward, number)).collect();
    for number in 0..micro_batches {
        row.push(action(Pass::Inputs, number));
        if let Some(number) = number.checked_sub(behind) {
            row.push(action(Pass::Weights, number));
        }
        if ahead < micro_batches {
            row.push(action(Pass::Forward, ahead));
            ahead += 1;
        }
    }
    let rest = micro_batches.saturating_sub(behind)..micro_batches;
    row.extend(rest.map(|number| action(Pass::Weights, number)));
    row
}
