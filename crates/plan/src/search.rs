//! The search: candidates from the solver under several prices, each partitioned, put through the passes and simulated; the best is kept.

use base::{Bytes, Code, Diagnostic, Fingerprint, Result};
use cluster::Cluster;
use cost::Machine;
use ir::{CollectiveKind, Graph, Mesh, MeshAxis, Placement, RankGraph};
use passes::{Direct, DirectAxes};
use shard::{Assignment, Space, canonical, partition_mesh};

use crate::{
    along::{Along, Model},
    effort::{Effort, Extent},
    labels::label,
    pins::{Pins, pinned},
    plan::{Plan, Prediction, RunnerUp},
    runners_up::pins_of,
};

/// What is asked for.
pub struct Request<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// The captured step that the graph comes from.
    pub captured: &'a Graph,
    /// The cluster.
    pub cluster: &'a Cluster,
    /// The ranks, the outer axis first.
    pub mesh: &'a Mesh,
    /// Most bytes of one rank.
    pub memory_limit: Option<u64>,
    /// Demands.
    pub pins: &'a Pins,
    /// How much is tried.
    pub effort: Effort,
}

/// A plan with what it was made on.
pub struct Searched {
    /// The plan.
    pub plan: Plan,
    /// The graph in canonical form, which the plan's positions along the first axis count in.
    pub canonical: Graph,
    /// The plan's decisions, one for each axis.
    pub assignments: Vec<Assignment>,
}

/// How many runners-up a plan names.
const MOST_RUNNERS_UP: usize = 5;

/// Finds the plan of least predicted time under the memory limit that keeps the pins.
pub fn search(request: &Request<'_>) -> Result<Searched> {
    std::thread::scope(|scope| {
        let fingerprint = scope.spawn(|| request.captured.fingerprint());
        searched(request, || fingerprint.join().expect("hashing panics nowhere"))
    })
}

/// The search beside the hashing of the captured step.
fn searched(request: &Request<'_>, fingerprint: impl FnOnce() -> Fingerprint) -> Result<Searched> {
    let canonical = canonical(request.graph);
    let run = Run {
        request,
        machine: Machine { cluster: request.cluster, mesh: request.mesh },
        direct: direct(request.cluster, request.mesh),
        extent: Extent::of(request.effort, canonical.order.len()),
    };
    let mut found = run.explored(&canonical, 0)?;
    found.extend(run.replicated(&canonical)?);
    let found = run.tuned(&canonical, ranked(found, request.memory_limit))?;
    let mut found = ranked(found, request.memory_limit).into_iter();
    let best = found.next().ok_or_else(|| Diagnostic::bug("the search made no candidate"))?;
    let others = found;
    if !best.fits(request.memory_limit) {
        return Err(too_small(request.memory_limit.unwrap_or(0), best.prediction.peak_bytes));
    }
    let mut plan = Plan::new(
        &canonical,
        (fingerprint(), request.cluster.fingerprint()),
        request.mesh,
        &best.assignments,
    )?;
    let name = |found: &Found| label(&canonical, &found.assignments, run.machine);
    plan.label = name(&best)?;
    plan.limit = limit(&best, request.memory_limit);
    plan.without_row = without_row(&canonical, request.mesh);
    plan.undivided = run.undivided(&canonical);
    plan.passes = best.passes;
    plan.prediction = best.prediction;
    for other in others {
        if plan.runners_up.len() == MOST_RUNNERS_UP {
            break;
        }
        let Prediction { step_ns, peak_bytes, .. } = other.prediction;
        let other_name = name(&other)?;
        // Of plans that are called alike the fastest is enough.
        if other_name == plan.label || plan.runners_up.iter().any(|known| known.name == other_name) {
            continue;
        }
        plan.runners_up.push(RunnerUp {
            name: other_name,
            step_ns,
            peak_bytes,
            fits: other.fits(request.memory_limit),
            pins: pins_of(&canonical, &other.assignments, request.mesh),
        });
    }
    Ok(Searched { plan, assignments: best.assignments, canonical })
}

/// A candidate with what it is predicted to take.
pub struct Found {
    /// The decisions along each axis.
    pub assignments: Vec<Assignment>,
    /// What its passes do.
    pub passes: passes::Settings,
    /// What it takes.
    pub prediction: Prediction,
}

impl Found {
    /// Whether it keeps a memory limit.
    pub fn fits(&self, limit: Option<u64>) -> bool {
        limit.is_none_or(|limit| self.prediction.peak_bytes <= limit)
    }

    /// Less is better.
    fn fitness(&self, limit: Option<u64>) -> (bool, i64, u64) {
        let Prediction { step_ns, peak_bytes, .. } = self.prediction;
        if self.fits(limit) {
            (false, step_ns, peak_bytes)
        } else {
            (true, i64::try_from(peak_bytes).unwrap_or(i64::MAX), 0)
        }
    }
}

/// What a search is for and on.
pub struct Run<'a> {
    /// What is asked for.
    pub request: &'a Request<'a>,
    /// Costs.
    pub machine: Machine<'a>,
    direct: DirectAxes,
    /// How much is tried.
    pub extent: Extent,
}

impl Run<'_> {
    fn axis(&self, number: usize) -> Option<&MeshAxis> {
        self.request.mesh.axes.get(number)
    }

    /// The candidates along the axes from `number` on, on the graph that the axes outside it leave.
    pub fn explored(&self, graph: &Graph, number: usize) -> Result<Vec<Found>> {
        let Some(axis) = self.axis(number) else {
            // One rank runs the graph as it was captured.
            let alone = self.request.mesh.ranks() == 1;
            return Ok(vec![self.predicted(if alone { self.request.captured } else { graph })?]);
        };
        let space = Space::new(graph, axis);
        let demands = pinned(graph, &space, self.request.pins, self.request.mesh)?;
        let along = Along { run: self, graph, number, axis, space: &space, demands: &demands };
        // One rank that nothing is demanded of has no choice.
        if axis.size == 1 && demands.is_empty() {
            return along.continued(&Assignment::default(), Model::default());
        }
        along.candidates()
    }

    /// The plan in which every rank does everything; none where pins demand otherwise.
    fn replicated(&self, graph: &Graph) -> Result<Option<Found>> {
        let free = self.request.pins.values().flat_map(|axes| axes.values());
        if free.clone().any(|placement| *placement != Placement::Replicate) || self.request.mesh.ranks() == 1
        {
            return Ok(None);
        }
        let mut found = self.predicted(graph)?;
        found.assignments = vec![Assignment::default(); self.request.mesh.axes.len()];
        Ok(Some(found))
    }

    /// What one rank's graph takes, with the largest buckets that fit.
    fn predicted(&self, graph: &RankGraph) -> Result<Found> {
        let mut last = None;
        for rung in passes::Settings::ladder() {
            let passes = passes::Settings { direct: self.direct.clone(), ..rung };
            let prediction = self.simulated(graph, &passes)?;
            let found = Found { assignments: Vec::new(), passes, prediction };
            if found.fits(self.request.memory_limit) || found.prediction.collectives == 0 {
                return Ok(found);
            }
            last = Some(found);
        }
        last.ok_or_else(|| Diagnostic::bug("there are no settings of passes"))
    }

    /// The same, the first few with those settings of the passes under which they are fastest.
    fn tuned(&self, canonical: &Graph, mut found: Vec<Found>) -> Result<Vec<Found>> {
        for one in found.iter_mut().take(self.extent.tuned) {
            if one.prediction.collectives == 0 {
                continue;
            }
            let mut decisions = one.assignments.iter();
            let next = |_: &Graph, _: &MeshAxis| Ok(decisions.next().cloned().unwrap_or_default());
            let graph = partition_mesh(canonical, self.request.mesh, 0, next)?;
            for rung in passes::Settings::ladder() {
                let passes = passes::Settings { direct: self.direct.clone(), ..rung };
                if passes == one.passes {
                    continue;
                }
                let Prediction { model_ns, bound_ns, .. } = one.prediction;
                let prediction = Prediction { model_ns, bound_ns, ..self.simulated(&graph, &passes)? };
                let other = Found { assignments: Vec::new(), passes, prediction };
                if other.fitness(self.request.memory_limit) < one.fitness(self.request.memory_limit) {
                    (one.passes, one.prediction) = (other.passes, other.prediction);
                }
            }
        }
        Ok(found)
    }

    fn simulated(&self, graph: &RankGraph, passes: &passes::Settings) -> Result<Prediction> {
        let graph = passes::run(&passes::pipeline(passes), graph, |_| {})?;
        let sim::Prediction { time, memory } = sim::predict(&graph, self.machine)?;
        let (most, buffers) = memory.within(self.request.memory_limit.map(Bytes));
        Ok(Prediction {
            step_ns: time.step.0,
            compute_ns: time.compute.0,
            communication_ns: time.communication.0,
            exposed_ns: time.exposed.0,
            peak_bytes: most.0,
            buffer_bytes: buffers.0,
            state_bytes: memory.state.0,
            collectives: time.collectives,
            ..Prediction::default()
        })
    }

    /// The axes along which nothing that is mostly computation can be sharded.
    fn undivided(&self, graph: &Graph) -> Vec<String> {
        let divides = |axis: &&MeshAxis| {
            let space = Space::new(graph, axis);
            graph.order.iter().any(|id| {
                let row = aten::row(graph.op_name(*id));
                let computes = row.is_some_and(|row| matches!(row.work, aten::Work::Flops(_)));
                let is_sharded = |placement: &Placement| matches!(placement, Placement::Shard { .. });
                let mut strategies = space.strategies(*id).iter();
                computes && strategies.any(|strategy| strategy.operands.iter().any(is_sharded))
            })
        };
        let axes = self.request.mesh.axes.iter().filter(|axis| axis.size > 1 && !divides(axis));
        axes.map(|axis| axis.name.clone()).collect()
    }
}

/// The candidates from the best on: those that fit in the order of their time, then the others in that of their memory; of equals the
/// first alone.
fn ranked(mut found: Vec<Found>, limit: Option<u64>) -> Vec<Found> {
    found.sort_by_key(|one| one.fitness(limit));
    let figures = |one: &Found| (one.prediction.step_ns, one.prediction.peak_bytes);
    found.dedup_by_key(|one| figures(one));
    found
}

/// Operators that run replicated because nothing is known of how they shard, with their number.
fn without_row(graph: &Graph, mesh: &Mesh) -> std::collections::BTreeMap<String, u32> {
    let axis = mesh.axes.iter().find(|axis| axis.size > 1);
    axis.map(|axis| Space::new(graph, axis).without_row.into_iter().collect()).unwrap_or_default()
}

/// Along which axes, and up to which size, collectives are faster from each rank to each.
pub fn direct(cluster: &Cluster, mesh: &Mesh) -> DirectAxes {
    let machine = Machine { cluster, mesh };
    let of = |axis: &MeshAxis| {
        let limit = |kind| cost::direct_limit(machine, kind, axis);
        let direct = Direct {
            ranks: axis.size,
            all_reduce: limit(CollectiveKind::AllReduce),
            all_gather: limit(CollectiveKind::AllGather),
            reduce_scatter: limit(CollectiveKind::ReduceScatter),
        };
        let limits = [direct.all_reduce, direct.all_gather, direct.reduce_scatter];
        let is_ever = axis.size > 1 && limits.iter().any(|limit| limit.0 > 0);
        is_ever.then(|| (axis.name.clone(), direct))
    };
    mesh.axes.iter().filter_map(of).collect()
}

/// What limits a plan, in a sentence.
fn limit(found: &Found, memory_limit: Option<u64>) -> String {
    let Prediction { step_ns, exposed_ns, peak_bytes, .. } = found.prediction;
    let near = memory_limit.is_some_and(|limit| peak_bytes * 10 > limit * 9);
    match (near, exposed_ns * 2 <= step_ns) {
        (true, _) => "memory: the plan uses over nine tenths of the limit".into(),
        (false, true) => "computation: operations take longer than waiting for collectives".into(),
        (false, false) => "communication: waiting for collectives takes longer than operations".into(),
    }
}

fn too_small(limit: u64, smallest: u64) -> Box<Diagnostic> {
    Diagnostic::new(Code::NO_PLAN, format!("no plan fits into {limit} bytes per rank"))
        .because(format!("the smallest plan found needs {smallest} bytes"))
        .hint("use more ranks, a smaller batch, or a higher memory limit")
}
