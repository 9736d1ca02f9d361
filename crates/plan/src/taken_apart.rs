//! A program taken apart into the stages of a pipeline, and what these are predicted to take.

use std::collections::BTreeMap;

use base::{Bytes, Result};
use cost::Machine;
use ir::{InputId, RankGraph};
use passes::{Positions, Recompute};
use schedule::Schedule;
use shard::stages::{StageSet, stage_graphs};

use crate::{
    beyond::Known,
    in_part::{Written, same_in},
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

/// The program of all stages in which these operations of the longer one run again in backward.
pub fn all_with_again(written: &Known<Written>, again: &Positions) -> Result<Known<Written>> {
    written.map(|one| {
        let same = same_in(one, again, &written.longer)?;
        Ok(Written { program: with_again(one.program.clone(), &same)?, ..*one })
    })
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
    settled: &Known<Vec<RankGraph>>,
    machine: Machine<'_>,
    (passes, on_host): (&passes::Settings, &[OnHost]),
    limit: Option<u64>,
) -> Result<(Prediction, Vec<StagePrediction>)> {
    let run = |(number, graph): (usize, &RankGraph)| {
        let passes = on_host.get(number).map_or_else(|| passes.clone(), |one| one.settings(passes));
        passes::run_unverified(&passes::scheduled(&passes), graph)
    };
    let programs = settled.map(|settled| settled.iter().enumerate().map(run).collect::<Result<Vec<_>>>())?;
    predicted_of(&programs, machine, limit)
}

/// The same of the programs that stages run.
pub fn predicted_of(
    programs: &Known<Vec<RankGraph>>,
    machine: Machine<'_>,
    limit: Option<u64>,
) -> Result<(Prediction, Vec<StagePrediction>)> {
    Ok(together(&programs.map(|programs| of_each(programs, machine, limit))?.whole()))
}

/// What each stage takes and holds, beside all others.
fn of_each(programs: &[RankGraph], machine: Machine<'_>, limit: Option<u64>) -> Result<Vec<OfStage>> {
    let simulated = sim::predict_stages(&programs.iter().collect::<Vec<_>>(), machine)?;
    let of_stage = |(found, program): (sim::Prediction, &RankGraph)| {
        let prediction = Prediction::default().of(&found, limit.map(Bytes), machine.cluster);
        let on_stage = StagePrediction {
            busy_ns: prediction.compute_ns,
            waiting_ns: prediction.exposed_ns,
            peak_bytes: prediction.peak_bytes,
            buffer_bytes: prediction.buffer_bytes,
            exposed_copies_ns: prediction.exposed_copies_ns,
            offloaded_bytes: offloaded(program),
            host_state_bytes: state_on_host(program),
            host_bytes: prediction.host_bytes,
        };
        (prediction, on_stage)
    };
    Ok(simulated.into_iter().zip(programs).map(of_stage).collect())
}

/// What a stage takes and holds, and what the plan says of it.
type OfStage = (Prediction, StagePrediction);

/// What all stages take.
fn together(of_each: &[OfStage]) -> (Prediction, Vec<StagePrediction>) {
    let predictions = || of_each.iter().map(|(one, _)| one);
    let stages: Vec<StagePrediction> = of_each.iter().map(|(_, one)| *one).collect();
    // Of equals the first.
    let first_of = |of: fn(&Prediction) -> i64| {
        predictions().rev().max_by_key(|one| of(one)).copied().unwrap_or_default()
    };
    let last = first_of(|one| one.step_ns);
    let busiest = first_of(|one| one.compute_ns);
    let largest = predictions().rev().max_by_key(|one| one.peak_bytes).copied().unwrap_or_default();
    // Of the stage that has most on the host.
    let most = stages.iter().rev().max_by_key(|stage| stage.host_bytes).copied().unwrap_or_default();
    let StagePrediction { offloaded_bytes, host_state_bytes, host_bytes, exposed_copies_ns, .. } = most;
    let all = Prediction {
        step_ns: last.step_ns,
        call_ns: last.call_ns,
        compute_ns: busiest.compute_ns,
        communication_ns: busiest.communication_ns,
        exposed_ns: busiest.exposed_ns,
        collectives: busiest.collectives,
        exposed_copies_ns,
        offloaded_bytes,
        host_state_bytes,
        host_bytes,
        ..largest
    };
    (all, stages)
}
