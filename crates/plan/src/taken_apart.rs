//! A program taken apart into the stages of a pipeline, and what these are predicted to take.

use std::collections::BTreeMap;

use base::{Bytes, Result};
use cost::Machine;
use ir::{InputId, RankGraph};
use passes::{Positions, Recompute};
use schedule::Schedule;
use shard::stages::{StageSet, stage_graphs};

use crate::{plan::Prediction, stages::StagePrediction};

/// The graphs of all stages, of the program of a rank that has them all, of which `again` runs again in backward.
pub fn taken_apart(
    whole: &RankGraph,
    again: &Positions,
    held: &BTreeMap<InputId, StageSet>,
    schedule: &Schedule,
    passes: &passes::Settings,
) -> Result<Vec<RankGraph>> {
    let settled = passes::run(&passes::cleaned(passes.without_checkpoints), whole, |_| {})?;
    stage_graphs(&with_again(settled, again)?, held, schedule)
}

/// A program in which these of its operations run again in backward.
pub fn with_again(settled: RankGraph, again: &Positions) -> Result<RankGraph> {
    if again.is_empty() {
        return Ok(settled);
    }
    passes::run(&[Box::new(Recompute { again: again.clone() })], &settled, |_| {})
}

/// What a step in stages is predicted to take: the time until the last stage is done, and the memory of the stage that needs most.
pub fn predicted(
    graphs: &[RankGraph],
    machine: Machine<'_>,
    passes: &passes::Settings,
    limit: Option<u64>,
) -> Result<(Prediction, Vec<StagePrediction>)> {
    let run = |graph: &RankGraph| passes::run_unverified(&passes::pipeline(passes), graph);
    let programs = graphs.iter().map(run).collect::<Result<Vec<_>>>()?;
    let of_each = sim::predict_stages(&programs.iter().collect::<Vec<_>>(), machine)?;
    let mut worst = Prediction::default();
    let mut stages = Vec::new();
    for sim::Prediction { time, memory } in of_each {
        let (alive, buffers) = memory.within(limit.map(Bytes));
        stages.push(StagePrediction {
            busy_ns: time.compute.0,
            waiting_ns: time.exposed.0,
            peak_bytes: alive.total().0,
            buffer_bytes: buffers.0,
        });
        if alive.total().0 > worst.peak_bytes {
            worst = worst.holding(&alive, buffers);
        }
        if time.step.0 > worst.step_ns {
            worst.step_ns = time.step.0;
        }
        // Of the stage that is busy longest.
        if time.compute.0 > worst.compute_ns {
            worst.compute_ns = time.compute.0;
            worst.communication_ns = time.communication.0;
            worst.exposed_ns = time.exposed.0;
            worst.collectives = time.collectives;
        }
    }
    Ok((worst, stages))
}
