//! The search: candidates from the solver under several prices, each partitioned, put through the passes and simulated; the best is kept.

use base::{Bytes, Code, Diagnostic, Fingerprint, Result};
use cluster::Cluster;
use cost::Machine;
use ir::{CollectiveKind, Graph, Mesh, MeshAxis, Placement, RankGraph};
use passes::{Direct, DirectAxes};
use shard::{Assignment, Space, canonical, partition};
use solve::{Choices, Failure, Options, Solver, evaluate, weigh};

use crate::{
    labels::label,
    pins::{Demands, Pins, pinned},
    plan::{Plan, Prediction, RunnerUp},
    prices::Prices,
    runners_up::pins_of,
    tables::{Setting, Tables, demand_on_batch},
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

/// Budgets go down from the weight of the fastest plan by so many halvings of the way to the least: 1/32 of it first, all of it last.
const MOST_HALVINGS: u32 = 6;
/// How often a budget is raised again from one that keeps the memory limit towards one that does not, for a small and a large program.
const MOST_RAISES: [u32; 2] = [6, 2];
/// Programs with more nodes are searched under fewer prices.
const LARGE: usize = 2_000;
/// How many prices a large program is searched under.
const PRICES_OF_LARGE: usize = 3;
/// The most cells of a table in searches that propose candidates.
const PROPOSED_TABLE_LIMIT: u64 = 1 << 18;
/// How many candidates of an outer axis are carried on to the axes within it, of a small and of a large program.
const BEAM: [usize; 2] = [4, 2];
/// How many runners-up a plan names.
const MOST_RUNNERS_UP: usize = 5;
const PICOS_PER_NANO: i64 = 1_000;

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
        is_large: canonical.order.len() > LARGE,
    };
    let mut found = run.explored(&canonical, 0)?;
    found.extend(run.replicated(&canonical)?);
    let (best, others) =
        ranked(found, request.memory_limit).ok_or_else(|| Diagnostic::bug("the search made no candidate"))?;
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
    for other in &others {
        if plan.runners_up.len() == MOST_RUNNERS_UP {
            break;
        }
        let Prediction { step_ns, peak_bytes, .. } = other.prediction;
        let other_name = name(other)?;
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
struct Found {
    /// The decisions along each axis.
    assignments: Vec<Assignment>,
    passes: passes::Settings,
    prediction: Prediction,
}

impl Found {
    fn fits(&self, limit: Option<u64>) -> bool {
        limit.is_none_or(|limit| self.prediction.peak_bytes <= limit)
    }
}

/// What the tables say of a solution, in picoseconds: its time, and the least that they allow.
#[derive(Clone, Copy, Default)]
struct Model {
    time: i64,
    bound: i64,
}

struct Run<'a> {
    request: &'a Request<'a>,
    machine: Machine<'a>,
    direct: DirectAxes,
    is_large: bool,
}

impl Run<'_> {
    fn axis(&self, number: usize) -> Option<&MeshAxis> {
        self.request.mesh.axes.get(number)
    }

    /// The candidates along the axes from `number` on, on the graph that the axes outside it leave.
    fn explored(&self, graph: &Graph, number: usize) -> Result<Vec<Found>> {
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

/// The search along one axis.
struct Along<'a> {
    run: &'a Run<'a>,
    graph: &'a Graph,
    number: usize,
    axis: &'a MeshAxis,
    space: &'a Space,
    demands: &'a Demands,
}

impl Along<'_> {
    /// Distinct solutions under all prices, each carried on through the axes within this one.
    fn candidates(&self) -> Result<Vec<Found>> {
        let strict = self.solutions(true);
        let found = match strict {
            Ok(found) if self.is_kept(&found) => return Ok(found),
            other => other,
        };
        if demand_on_batch(self.graph, self.demands).is_none() {
            return found;
        }
        self.solutions(false)
    }

    fn is_kept(&self, found: &[Found]) -> bool {
        found.iter().any(|one| one.fits(self.run.request.memory_limit))
    }

    fn solutions(&self, strict: bool) -> Result<Vec<Found>> {
        let tried = if self.run.is_large { PRICES_OF_LARGE } else { Prices::TRIED.len() };
        let beam = BEAM[usize::from(self.run.is_large)];
        let is_last = self.number + 1 == self.run.request.mesh.axes.len();
        let setting = self.setting(strict, Prices::PLAIN);
        let plain = Tables::new(&setting)?;
        let mut known: Vec<Choices> = Vec::new();
        let mut found = Vec::new();
        let mut bound = 0;
        for prices in &Prices::TRIED[..tried] {
            let setting = self.setting(strict, *prices);
            let priced;
            let tables = if *prices == Prices::PLAIN {
                &plain
            } else {
                priced = Tables::new(&setting)?;
                &priced
            };
            let is_last_try = !strict || setting.batch.is_none();
            // What the plain prices prove, the others need not prove again: they only propose.
            let table_limit =
                if *prices == Prices::PLAIN { Options::default().table_limit } else { PROPOSED_TABLE_LIMIT };
            let options = Options { table_limit, blame: is_last_try, ..Options::default() };
            let mut solver = Solver::new(&tables.problem, options);
            let solution = solver.solve().map_err(|failure| self.explained(tables, &failure))?;
            if *prices == Prices::PLAIN {
                bound = solution.bound.primary();
            }
            let mut carry = |choices: &Choices| -> Result<Vec<Found>> {
                if known.contains(choices) || (!is_last && known.len() >= beam) {
                    return Ok(Vec::new());
                }
                known.push(choices.clone());
                let model = Model { time: evaluate(&plain.problem, choices).primary(), bound };
                self.continued(&plain.assignment(choices), model)
            };
            let free = carry(&solution.choices)?;
            let fits = self.is_kept(&free);
            found.extend(free);
            if !fits && self.run.request.memory_limit.is_some() {
                found.extend(self.limited(&mut solver, tables, &solution.choices, &mut carry)?);
            }
        }
        Ok(found)
    }

    /// Candidates of less memory than the free one: with budgets from its weight down to the least, up to the first that keeps the
    /// limit, and then up again as far as time is won.
    ///
    /// The solver keeps the weight to a budget: state, and what lives between two parts of the program. The peak follows it.
    fn limited(
        &self,
        solver: &mut Solver<'_>,
        tables: &Tables<'_>,
        free: &Choices,
        carry: &mut impl FnMut(&Choices) -> Result<Vec<Found>>,
    ) -> Result<Vec<Found>> {
        let weight = weigh(&tables.problem, free);
        let least = match solver.solve_within(0) {
            Err(Failure::OverBudget { least }) => least,
            _ => 0,
        };
        let mut all = Vec::new();
        let (mut over, mut kept) = (weight, None);
        for halvings in (0..MOST_HALVINGS).rev() {
            let budget = weight - ((weight - least) >> halvings);
            let Ok(budgeted) = solver.solve_within(budget) else { break };
            let found = carry(&budgeted.solution.choices)?;
            let fits = self.is_kept(&found);
            all.extend(found);
            if fits {
                kept = Some(budget);
                break;
            }
            over = budget;
        }
        let Some(mut low) = kept else { return Ok(all) };
        for _ in 0..MOST_RAISES[usize::from(self.run.is_large)] {
            let budget = low + (over - low) / 2;
            let Ok(budgeted) = solver.solve_within(budget) else { break };
            let found = carry(&budgeted.solution.choices)?;
            if self.is_kept(&found) {
                low = budget;
            } else {
                over = budget;
            }
            all.extend(found);
        }
        Ok(all)
    }

    /// What becomes of a decision along this axis with the axes within it.
    fn continued(&self, assignment: &Assignment, model: Model) -> Result<Vec<Found>> {
        let local = if self.axis.size == 1 {
            self.graph.clone()
        } else {
            partition(self.graph, assignment, self.axis, 0)?.into_renumbered()
        };
        let mut found = self.run.explored(&local, self.number + 1)?;
        for one in &mut found {
            one.assignments.insert(0, assignment.clone());
            if one.prediction.model_ns == 0 {
                one.prediction.model_ns = model.time / PICOS_PER_NANO;
                one.prediction.bound_ns = model.bound / PICOS_PER_NANO;
            }
        }
        Ok(found)
    }

    fn setting(&self, strict: bool, prices: Prices) -> Setting<'_> {
        Setting {
            graph: self.graph,
            space: self.space,
            machine: self.run.machine,
            prices,
            pins: self.demands,
            batch: demand_on_batch(self.graph, self.demands),
            strict,
        }
    }

    fn explained(&self, tables: &Tables<'_>, failure: &Failure) -> Box<Diagnostic> {
        let Failure::Infeasible { variables } = failure else {
            return Diagnostic::new(Code::NO_PLAN, "the search for a plan failed")
                .because(failure.to_string());
        };
        let (inputs, nodes) = tables.meaning(variables);
        let names = inputs.iter().map(|id| format!("`{}`", self.graph.inputs[*id].name));
        let operators = nodes.iter().map(|id| format!("`{}`", self.graph.op_name(*id)));
        let among: Vec<String> = names.chain(operators).take(MOST_NAMES).collect();
        let diagnostic =
            Diagnostic::new(Code::BAD_PIN, format!("no plan keeps all pins along `{}`", self.axis.name))
                .because(format!("no choice suits all of {}", among.join(", ")))
                .hint("remove pins of these until there is one");
        match nodes.iter().find_map(|id| self.graph.place(*id)) {
            Some(place) => diagnostic.at_line(&place.file, place.line, 0),
            None => diagnostic,
        }
    }
}

/// Maximum number of names listed in an error.
const MOST_NAMES: usize = 6;

/// The fastest candidate that fits (else the smallest), and the others in order of their time; of equals the first.
fn ranked(mut found: Vec<Found>, limit: Option<u64>) -> Option<(Found, Vec<Found>)> {
    let fitness = |one: &Found| {
        let Prediction { step_ns, peak_bytes, .. } = one.prediction;
        if one.fits(limit) { (0, step_ns, peak_bytes) } else { (1, peak_bytes as i64, 0) }
    };
    found.sort_by_key(fitness);
    let mut found = found.into_iter();
    let best = found.next()?;
    let figures = |one: &Found| (one.prediction.step_ns, one.prediction.peak_bytes);
    let mut others: Vec<Found> = Vec::new();
    for other in found {
        if figures(&other) != figures(&best) && others.iter().all(|known| figures(known) != figures(&other)) {
            others.push(other);
        }
    }
    others.sort_by_key(|other| (!other.fits(limit), other.prediction.step_ns));
    Some((best, others))
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
