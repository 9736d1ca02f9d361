//! Pipeline stages: where the program is cut, and in which order each stage runs its micro-batches.
//!
//! Along all other axes the search is that of a mesh without stages, for a rank that has the memory of all stages. What it finds is taken apart
//! at the cuts that keep the slowest stage least busy, under each schedule, put through the passes and simulated, all stages together.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use base::{Bytes, Code, Diagnostic, Result};
use cost::Machine;
use ir::{Graph, InputId, MeshAxis, NodeId, RankGraph};
use memory::Category;
use serde::{Deserialize, Serialize};
use shard::{
    partition_mesh,
    stages::{Schedule, StageSet, Staged, forward_end, stage_graphs, staged},
};

use crate::{
    cuts::Profile,
    pins::Pins,
    plan::{Plan, Prediction, RunnerUp},
    run::Request,
    runners_up::MOST_RUNNERS_UP,
    search::{Searched, search, too_small},
};

/// How a step is taken apart into pipeline stages.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stages {
    /// In which order each stage runs its micro-batches.
    pub schedule: Schedule,
    /// The operations with which all stages but the first begin, by position in the forward part of the step in canonical form.
    pub cuts: Vec<usize>,
    /// State that only some stages hold, with those; the first one's values count.
    #[serde(default)]
    pub state: BTreeMap<String, Vec<u32>>,
    /// What each stage is predicted to take.
    #[serde(default)]
    pub predicted: Vec<StagePrediction>,
}

impl Stages {
    /// Those that cuts make of a step in canonical form, and its graph with the stages of its operations.
    pub fn of(graph: &Graph, cuts: &[usize], schedule: Schedule) -> Result<(Self, Staged)> {
        let staged = staged(graph, cuts)?;
        let name = |input: &InputId| graph.inputs[*input].name.clone();
        let state = staged.held.iter().map(|(input, on)| (name(input), on.stages().collect()));
        Ok((Self { schedule, cuts: cuts.to_vec(), state: state.collect(), predicted: Vec::new() }, staged))
    }

    /// The share of a step of so many nanoseconds in which stages run no operation, on average.
    pub fn bubble(&self, step_ns: i64) -> f64 {
        let busy: i64 = self.predicted.iter().map(|stage| stage.busy_ns).sum();
        let all = step_ns * self.predicted.len() as i64;
        if all > 0 { 1.0 - busy as f64 / all as f64 } else { 0.0 }
    }

    /// How many there are.
    pub const fn count(&self) -> u32 {
        self.cuts.len() as u32 + 1
    }
}

/// The graphs of all stages, of the program of a rank that has them all.
pub fn taken_apart(
    whole: &RankGraph,
    held: &BTreeMap<InputId, StageSet>,
    stages: &Stages,
    passes: &passes::Settings,
) -> Result<Vec<RankGraph>> {
    let settled = passes::run(&passes::cleaned(passes.without_checkpoints), whole, |_| {})?;
    stage_graphs(&settled, stages.count(), held, stages.schedule)
}

/// What a step in stages is predicted to take: the time until the last stage is done, and the memory of the stage that needs most.
pub fn predicted(
    graphs: &[RankGraph],
    machine: Machine<'_>,
    passes: &passes::Settings,
    limit: Option<u64>,
) -> Result<(Prediction, Vec<StagePrediction>)> {
    let run = |graph: &RankGraph| passes::run(&passes::pipeline(passes), graph, |_| {});
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
        let of = |category| alive.of(category).0;
        if alive.total().0 > worst.peak_bytes {
            worst = Prediction {
                peak_bytes: alive.total().0,
                state_bytes: of(Category::State),
                batch_bytes: of(Category::Batch),
                kept_bytes: of(Category::Kept),
                activation_bytes: of(Category::Activation),
                gradient_bytes: of(Category::Gradient),
                collective_bytes: of(Category::Collective),
                temporary_bytes: of(Category::Temporary),
                buffer_bytes: buffers.0,
                ..worst
            };
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
    fn position(&self, graph: &Graph) -> Result<usize> {
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

/// What is asked of stages beside what is asked of any plan.
#[derive(Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// The schedule; the best one where it is not said.
    pub schedule: Option<Schedule>,
    /// Where the stages begin; where the slowest takes least if it is not said.
    pub cuts: Option<&'a [Cut]>,
}

/// Shares of the memory of all stages, in percent, that plans along the other axes are searched for until one keeps the limit in each stage:
/// stages need different amounts.
const SHARES: [u64; 6] = [100, 85, 70, 60, 50, 40];

/// The plan of least predicted time on a mesh with stages, its micro-batches given.
pub fn search_stages(request: &Request<'_>, wanted: Wanted<'_>) -> Result<Plan> {
    let machine = Machine { cluster: request.cluster, mesh: request.mesh };
    let stages = request.mesh.stages();
    let mut best: Option<Plan> = None;
    for share in SHARES {
        let all = request
            .memory_limit
            .map(|limit| (limit.saturating_mul(u64::from(stages)) / 100).saturating_mul(share));
        let searched = match search(&Request { memory_limit: all, ..*request }) {
            Ok(searched) => searched,
            Err(refused) if best.is_none() => return Err(refused),
            Err(_) => break,
        };
        let plan = in_stages(request, wanted, machine, &searched)?;
        let is_better = |known: &Plan| known.prediction.peak_bytes > plan.prediction.peak_bytes;
        let fits = request.memory_limit.is_none_or(|limit| plan.prediction.peak_bytes <= limit);
        if fits {
            return Ok(plan);
        }
        if best.as_ref().is_none_or(is_better) {
            best = Some(plan);
        }
    }
    let least = best.map_or(Prediction::default(), |plan| plan.prediction);
    Err(too_small(request.memory_limit.unwrap_or(0), &least))
}

/// What a search has found, taken apart in the best way.
fn in_stages(
    request: &Request<'_>,
    wanted: Wanted<'_>,
    machine: Machine<'_>,
    searched: &Searched,
) -> Result<Plan> {
    let Searched { plan, canonical, assignments } = searched;
    let stages = request.mesh.stages();
    let ways: Vec<Vec<usize>> = if let Some(cuts) = wanted.cuts {
        vec![cuts.iter().map(|cut| cut.position(canonical)).collect::<Result<_>>()?]
    } else {
        let mut ways = Profile::of(canonical, machine).ways(stages);
        if request.memory_limit.is_some() {
            ways.extend(Profile::of_memory(canonical, stages, request.mesh.micro_batches()).ways(stages));
        }
        ways
    };
    if ways.is_empty() {
        return Err(too_many(canonical, stages));
    }
    if let Some(cuts) = ways.iter().find(|cuts| cuts.len() as u32 + 1 != stages) {
        let message = format!("{} cuts for {stages} stages", cuts.len());
        return Err(
            Diagnostic::new(Code::BAD_MESH, message).hint("give one position for each stage but the first")
        );
    }
    let schedules: Vec<Schedule> = match wanted.schedule {
        Some(schedule) => vec![schedule],
        None => Schedule::NAMES.iter().rev().map(|(schedule, _)| *schedule).collect(),
    };
    let mut found = Vec::new();
    let limit = request.memory_limit.unwrap_or(u64::MAX);
    let ways: BTreeSet<Vec<usize>> = ways.into_iter().collect();
    for cuts in &ways {
        let (made, staged) = Stages::of(canonical, cuts, Schedule::default())?;
        let mut decisions = assignments.iter();
        let next = |_: &Graph, _: &MeshAxis| Ok(decisions.next().cloned().unwrap_or_default());
        let whole = partition_mesh(&staged.graph, request.mesh, 0, next)?;
        for schedule in &schedules {
            let stages = Stages { schedule: *schedule, ..made.clone() };
            let graphs = taken_apart(&whole, &staged.held, &stages, &plan.passes)?;
            found.extend(tried(request, machine, &stages, &graphs, &plan.passes)?);
        }
    }
    let fitness = |(_, one, _): &(Stages, Prediction, passes::Settings)| {
        if one.peak_bytes > limit {
            (true, one.peak_bytes as i64, 0)
        } else {
            (false, one.step_ns, one.peak_bytes)
        }
    };
    let best = found
        .iter()
        .min_by_key(|one| fitness(one))
        .ok_or_else(|| Diagnostic::bug("no schedule was tried"))?;
    let mut plan = plan.clone();
    plan.prediction = best.1;
    plan.stages = Some(best.0.clone());
    plan.passes = best.2.clone();
    plan.label = format!("{stages} pipeline stages ({}); {}", best.0.schedule, plan.label);
    plan.limit = "the pipeline: the slowest stage, and what the others wait for it".into();
    plan.runners_up = found
        .iter()
        .filter(|one| (&one.0.cuts, one.0.schedule) != (&best.0.cuts, best.0.schedule))
        .map(|(stages, prediction, _)| RunnerUp {
            name: format!("stages from {:?} on in the order {}", stages.cuts, stages.schedule),
            step_ns: prediction.step_ns,
            peak_bytes: prediction.peak_bytes,
            exposed_ns: Some(prediction.exposed_ns),
            fits: prediction.peak_bytes <= limit,
            pins: Pins::default(),
        })
        .collect();
    plan.runners_up.sort_by_key(|other| (!other.fits, other.step_ns));
    let mut named = BTreeSet::new();
    plan.runners_up.retain(|other| named.insert(other.name.clone()));
    plan.runners_up.truncate(MOST_RUNNERS_UP);
    Ok(plan)
}

/// What stages take with smaller and smaller buckets, until they keep the limit.
fn tried(
    request: &Request<'_>,
    machine: Machine<'_>,
    stages: &Stages,
    graphs: &[RankGraph],
    passes: &passes::Settings,
) -> Result<Vec<(Stages, Prediction, passes::Settings)>> {
    let mut found = Vec::new();
    for rung in rungs(passes) {
        let (prediction, of_each) = predicted(graphs, machine, &rung, request.memory_limit)?;
        found.push((Stages { predicted: of_each, ..stages.clone() }, prediction, rung));
        if request.memory_limit.is_none_or(|limit| prediction.peak_bytes <= limit) {
            break;
        }
    }
    Ok(found)
}

/// Settings of the passes, from those that a search has found on to smaller buckets.
fn rungs(found: &passes::Settings) -> impl Iterator<Item = passes::Settings> {
    let smaller = passes::Settings::ladder().filter(|rung| rung.bucket_limit < found.bucket_limit);
    let rung = |rung: passes::Settings| passes::Settings {
        direct: found.direct.clone(),
        without_checkpoints: found.without_checkpoints,
        ..rung
    };
    std::iter::once(found.clone()).chain(smaller.map(rung).collect::<Vec<_>>())
}

fn too_many(graph: &Graph, stages: u32) -> Box<Diagnostic> {
    let operations = forward_end(graph);
    let message =
        format!("a step whose forward part has {operations} operations cannot be cut into {stages} stages");
    Diagnostic::new(Code::BAD_MESH, message).hint("use fewer stages")
}
