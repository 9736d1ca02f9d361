//! The parts of a program, or what of them an action of a schedule computes, in the order in which a stage runs them.

use ir::{Graph, Part, PartId, PartKind};
use schedule::{Action, Pass, Schedule};

/// Which operations of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// All.
    Both,
    /// Those that other chunks need.
    Needed,
    /// All others.
    Rest,
}

/// A part of the program, or what of it is in a chunk, or a half of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell {
    /// The part.
    pub part: PartId,
    /// The chunk; none for all.
    pub chunk: Option<u32>,
    /// Which half.
    pub half: Half,
}

/// What a stage runs under a schedule. What belongs to no micro-batch stays where it is.
pub fn cells(graph: &Graph, schedule: &Schedule, stage: u32) -> Vec<Cell> {
    let parts: Vec<PartId> = graph.parts.ids().collect();
    let batch_of = |part: &PartId| graph.parts[*part].micro_batch;
    let whole = |part: &PartId| Cell { part: *part, chunk: None, half: Half::Both };
    let mut ordered = Vec::with_capacity(parts.len());
    for loop_or_not in parts.chunk_by(|a, b| batch_of(a).is_some() == batch_of(b).is_some()) {
        let has = |kind| loop_or_not.iter().any(|part| graph.parts[*part].kind == kind);
        let count = loop_or_not.iter().filter_map(batch_of).max().map_or(0, |last| last + 1);
        if count != schedule.micro_batches || !has(PartKind::Forward) || !has(PartKind::Backward) {
            ordered.extend(loop_or_not.iter().map(whole));
            continue;
        }
        for action in &schedule.rows[stage as usize] {
            let of_action = loop_or_not.iter().filter(|part| is_of(graph.parts[**part], *action));
            let cell = |part: &PartId| Cell { part: *part, chunk: Some(action.chunk), half: half(*action) };
            ordered.extend(of_action.map(cell));
        }
    }
    ordered
}

/// Whether an action computes operations of a part; what a loop does beside forward is backward's.
fn is_of(part: Part, action: Action) -> bool {
    let is_forward = part.kind == PartKind::Forward;
    part.micro_batch == Some(action.micro_batch) && is_forward == (action.work == Pass::Forward)
}

const fn half(action: Action) -> Half {
    match action.work {
        Pass::Forward | Pass::Backward => Half::Both,
        Pass::Inputs => Half::Needed,
        Pass::Weights => Half::Rest,
    }
}
