//! A program taken apart into the stages of a pipeline, and what these are predicted to take.

use std::collections::BTreeMap;

use base::{Bytes, Result};
use cost::Machine;
use ir::{InputId, RankGraph};
use passes::{Positions, Recompute};
use schedule::Schedule;
use shard::stages::{StageSet, stage_graphs};

use crate::{
    plan::Prediction,
    run::{offloaded, state_on_host},
    stages::{OnHost, StagePrediction},
};

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

/// What a step in stages is predicted to take, of their settled programs: the time until the last stage is done, and the memory of the stage that
/// needs most.
pub fn predicted(
    settled: &[RankGraph],
    machine: Machine<'_>,
    (passes, on_host): (&passes::Settings, &[OnHost]),
    limit: Option<u64>,
) -> Result<(Prediction, Vec<StagePrediction>)> {
    let run = |(number, graph): (usize, &RankGraph)| {
        let passes = on_host.get(number).map_or_else(|| passes.clone(), |one| one.settings(passes));
        passes::run_unverified(&passes::scheduled(&passes), graph)
    };
    let programs = settled.iter().enumerate().map(run).collect::<Result<Vec<_>>>()?;
    predicted_of(&programs, machine, limit)
}

/// The same of the programs that stages run.
pub fn predicted_of(
    programs: &[RankGraph],
    machine: Machine<'_>,
    limit: Option<u64>,
) -> Result<(Prediction, Vec<StagePrediction>)> {
    let of_each = sim::predict_stages(&programs.iter().collect::<Vec<_>>(), machine)?;
    let mut worst = Prediction::default();
    let mut stages: Vec<StagePrediction> = Vec::new();
    for (sim::Prediction { time, call, memory }, program) in of_each.into_iter().zip(programs) {
        let (alive, buffers) = memory.within(limit.map(Bytes));
        let held = Prediction::default().holding(&alive, buffers).beside(memory.on_host, machine.cluster);
        let of_stage = StagePrediction {
            busy_ns: time.compute.0,
            waiting_ns: time.exposed.0,
            peak_bytes: held.peak_bytes,
            buffer_bytes: buffers.0,
            exposed_copies_ns: time.exposed_copies.0,
            offloaded_bytes: offloaded(program),
            host_state_bytes: state_on_host(program),
            host_bytes: held.host_bytes,
        };
        stages.push(of_stage);
        if held.peak_bytes > worst.peak_bytes {
            worst = worst.holding(&alive, buffers).beside(memory.on_host, machine.cluster);
        }
        if (time.step + call).0 > worst.step_ns {
            (worst.step_ns, worst.call_ns) = ((time.step + call).0, call.0);
        }
        // Of the stage that is busy longest.
        if time.compute.0 > worst.compute_ns {
            worst.compute_ns = time.compute.0;
            worst.communication_ns = time.communication.0;
            worst.exposed_ns = time.exposed.0;
            worst.collectives = time.collectives;
        }
    }
    // Of the stage that has most on the host.
    let most = stages.iter().rev().max_by_key(|stage| stage.host_bytes).copied().unwrap_or_default();
    let StagePrediction { offloaded_bytes, host_state_bytes, host_bytes, exposed_copies_ns, .. } = most;
    Ok((Prediction { exposed_copies_ns, offloaded_bytes, host_state_bytes, host_bytes, ..worst }, stages))
}
