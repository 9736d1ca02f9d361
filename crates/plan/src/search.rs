//! The search: tables, solve, memory limit, runners-up.

use base::{Bytes, Code, Diagnostic, Fingerprint, Result};
use cluster::Cluster;
use ir::{CollectiveKind, Graph, InputClass, Placement, RankGraph};
use shard::{Assignment, Axis, Space, canonical, partition};
use solve::{Failure, Options, Solution, Solver, weigh};

use crate::{
    pins::{Demand, Demands, Pins, pinned},
    plan::{Plan, Prediction, RunnerUp},
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
    /// The axis.
    pub axis: Axis,
    /// Most bytes of one rank.
    pub memory_limit: Option<u64>,
    /// Demands.
    pub pins: &'a Pins,
}

/// A plan with what it was made on.
pub struct Searched {
    /// The plan.
    pub plan: Plan,
    /// The graph in canonical form, which the plan's positions count in.
    pub canonical: Graph,
    /// The plan's decisions on it.
    pub assignment: Assignment,
}

/// Budgets go down from the weight of the fastest plan by so many halvings of the way to the least: 1/32 of it first, all of it last.
const MOST_HALVINGS: u32 = 6;
/// How often a budget is raised again from one that suits the memory limit towards one that does not.
const MOST_RAISES: u32 = 3;
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
    let space = Space::new(&canonical, request.axis.ranks);
    let demands = pinned(&canonical, request.pins, &request.axis.name)?;
    let run = Run { request, canonical: &canonical, space: &space };
    // One rank that nothing is demanded of has no choice.
    let (best, runners_up) = if request.axis.ranks == 1 && demands.is_empty() {
        (run.alone()?, Vec::new())
    } else {
        run.compared(&demands)?
    };
    if !best.fits(request.memory_limit) {
        return Err(too_small(request.memory_limit.unwrap_or(0), best.prediction.peak_bytes));
    }
    let mut plan = Plan::new(
        &canonical,
        (fingerprint(), request.cluster.fingerprint()),
        &request.axis,
        &best.assignment,
    );
    plan.limit = limit(&best, request.memory_limit);
    plan.passes = best.passes;
    plan.prediction = best.prediction;
    plan.without_row = space.without_row.iter().cloned().collect();
    plan.runners_up = runners_up;
    Ok(Searched { plan, assignment: best.assignment, canonical })
}

/// One solved problem.
struct Found {
    name: &'static str,
    assignment: Assignment,
    passes: passes::Settings,
    prediction: Prediction,
}

impl Found {
    fn fits(&self, limit: Option<u64>) -> bool {
        limit.is_none_or(|limit| self.prediction.peak_bytes <= limit)
    }
}

struct Run<'a> {
    request: &'a Request<'a>,
    canonical: &'a Graph,
    space: &'a Space,
}

impl Run<'_> {
    /// The only plan of one rank.
    fn alone(&self) -> Result<Found> {
        let mut found = self.predicted("one rank", Assignment::default())?;
        found.prediction.model_ns = found.prediction.step_ns;
        found.prediction.bound_ns = found.prediction.step_ns;
        Ok(found)
    }

    /// The best plan and those that it was chosen over; the families are searched beside it.
    fn compared(&self, demands: &Demands) -> Result<(Found, Vec<RunnerUp>)> {
        let (found, others) = std::thread::scope(|scope| {
            let families = FAMILIES.map(|family| scope.spawn(move || self.family(demands, family)));
            let found = self.best("the plan of least time in the model", demands);
            let whole = self.whole(demands);
            let families = families.map(|family| family.join().expect("the search panics nowhere"));
            (found, families.into_iter().chain([whole]).flatten().collect())
        });
        Ok(self.ranked(found?, others))
    }

    fn setting<'a>(&'a self, demands: &'a Demands, strict: bool) -> Setting<'a> {
        Setting {
            graph: self.canonical,
            space: self.space,
            cluster: self.request.cluster,
            pins: demands,
            batch: demand_on_batch(self.canonical, demands),
            strict,
        }
    }

    /// Every rank does everything; none where pins demand otherwise.
    fn whole(&self, demands: &Demands) -> Option<Found> {
        let whole = |demand: &Demand| matches!(demand, Demand::At { placement: Placement::Replicate, .. });
        if !demands.values().all(whole) {
            return None;
        }
        self.predicted("everything whole on every rank", Assignment::default()).ok()
    }

    /// The plan that a solution is.
    fn found(&self, name: &'static str, tables: &Tables<'_>, solution: &Solution) -> Result<Found> {
        let mut found = self.predicted(name, tables.assignment(&solution.choices))?;
        found.prediction.model_ns = solution.cost.primary() / PICOS_PER_NANO;
        found.prediction.bound_ns = solution.bound.primary() / PICOS_PER_NANO;
        Ok(found)
    }

    /// A plan with the time and memory of what will run: the rank's graph after the passes, with the largest buckets that fit.
    fn predicted(&self, name: &'static str, assignment: Assignment) -> Result<Found> {
        // One rank runs the graph as it was captured.
        let graph = match self.request.axis.ranks {
            1 => self.request.captured.clone(),
            _ => partition(self.canonical, &assignment, &self.request.axis, 0)?,
        };
        let mut last = None;
        let direct = direct(self.request.cluster, self.request.axis.ranks);
        for rung in passes::Settings::ladder() {
            let passes = passes::Settings { direct, ..rung };
            let prediction = self.predict(&graph, passes)?;
            let fits = self.request.memory_limit.is_none_or(|limit| prediction.peak_bytes <= limit);
            let found = last.insert((passes, prediction));
            if fits || found.1.collectives == 0 {
                break;
            }
        }
        let (passes, prediction) = last.expect("the ladder has a rung");
        Ok(Found { name, assignment, passes, prediction })
    }

    fn predict(&self, graph: &RankGraph, passes: passes::Settings) -> Result<Prediction> {
        let graph = passes::run(&passes::pipeline(passes), graph, |_| {})?;
        let time = cost::graph_time(self.request.cluster, &graph, self.request.axis.ranks);
        let peak = memory::peak(&graph);
        let (most, buffers) = peak.within(self.request.memory_limit.map(Bytes));
        Ok(Prediction {
            step_ns: (time.compute + time.communication) / PICOS_PER_NANO,
            compute_ns: time.compute / PICOS_PER_NANO,
            communication_ns: time.communication / PICOS_PER_NANO,
            peak_bytes: most.0,
            buffer_bytes: buffers.0,
            state_bytes: peak.state.0,
            collectives: time.collectives,
            ..Prediction::default()
        })
    }

    /// The best plan in which nothing speaks against what is demanded of the batch; where that is impossible or too large, one in which as
    /// little as possible does.
    fn best(&self, name: &'static str, demands: &Demands) -> Result<Found> {
        let setting = self.setting(demands, true);
        let tables = Tables::new(&setting)?;
        let mut solver = Solver::new(&tables.problem, Options { blame: false, ..Options::default() });
        if let Ok(solution) = solver.solve() {
            let found = self.limited(name, &tables, &mut solver, &solution)?;
            if found.fits(self.request.memory_limit) || setting.batch.is_none() {
                return Ok(found);
            }
        }
        let setting = self.setting(demands, false);
        let tables = Tables::new(&setting)?;
        let mut solver = Solver::new(&tables.problem, Options::default());
        let solution = solver.solve().map_err(|failure| self.explain(&tables, &failure))?;
        self.limited(name, &tables, &mut solver, &solution)
    }

    /// The plan that `solution` is, or, where it is over the memory limit, the fastest one that is met within it, or the one of least peak.
    ///
    /// The peak is what the solver can keep to a budget, the weight, and what lives between two operations; so budgets from that of the
    /// fastest plan down to the least are tried.
    fn limited(
        &self,
        name: &'static str,
        tables: &Tables<'_>,
        solver: &mut Solver<'_>,
        solution: &Solution,
    ) -> Result<Found> {
        let free = self.found(name, tables, solution)?;
        if free.fits(self.request.memory_limit) {
            return Ok(free);
        }
        let weight = weigh(&tables.problem, &solution.choices);
        let least = match solver.solve_within(0) {
            Err(Failure::OverBudget { least }) => least,
            _ => 0,
        };
        let (mut over, mut smallest) = (weight, free);
        for halvings in (0..MOST_HALVINGS).rev() {
            let budget = weight - ((weight - least) >> halvings);
            let Ok(budgeted) = solver.solve_within(budget) else { break };
            let found = self.found(name, tables, &budgeted.solution)?;
            if found.fits(self.request.memory_limit) {
                let within = &mut |budget| {
                    let budgeted = solver.solve_within(budget).ok()?;
                    self.found(name, tables, &budgeted.solution).ok()
                };
                return Ok(self.raised(found, (budget, over), within));
            }
            over = budget;
            if found.prediction.peak_bytes < smallest.prediction.peak_bytes {
                smallest = found;
            }
        }
        Ok(smallest)
    }

    /// Raises the budget from one that a plan kept the limit with towards one with which it was not kept, as far as time is won.
    fn raised(
        &self,
        mut best: Found,
        (mut low, mut over): (u64, u64),
        within: &mut impl FnMut(u64) -> Option<Found>,
    ) -> Found {
        for _ in 0..MOST_RAISES {
            let budget = low + (over - low) / 2;
            let Some(found) = within(budget).filter(|_| budget > low) else { break };
            if found.fits(self.request.memory_limit) {
                low = budget;
                if found.prediction.step_ns < best.prediction.step_ns {
                    best = found;
                }
            } else {
                over = budget;
            }
        }
        best
    }

    /// The best plan of a family.
    fn family(&self, demands: &Demands, (name, batch, state): Family) -> Option<Found> {
        let mut demands = demands.clone();
        for (id, input) in self.canonical.inputs.iter() {
            let wanted = match input.class {
                InputClass::Batch => Some(Demand::At { placement: batch, soft: true }),
                InputClass::Parameter | InputClass::Optimizer => Some(state),
                _ => None,
            };
            if let Some(demand) = wanted {
                demands.entry(id).or_insert(demand);
            }
        }
        self.best(name, &demands).ok()
    }

    /// The plan that is predicted to be fastest, and those that it was chosen over. A family's plan can be the fastest where the passes
    /// make more of it than the model knew.
    fn ranked(&self, found: Found, families: Vec<Found>) -> (Found, Vec<RunnerUp>) {
        let limit = self.request.memory_limit;
        let bound_ns = found.prediction.bound_ns;
        let mut all = vec![found];
        all.extend(families);
        let fitness = |index: &usize| {
            let Prediction { step_ns, peak_bytes, .. } = all[*index].prediction;
            // Of plans that fit the fastest, else the smallest; of equals the first.
            if all[*index].fits(limit) { (0, step_ns, *index) } else { (1, peak_bytes as i64, *index) }
        };
        let fastest = (0..all.len()).min_by_key(fitness).unwrap_or(0);
        let mut best = all.remove(fastest);
        if fastest > 0 {
            best.prediction.model_ns = best.prediction.step_ns;
            best.prediction.bound_ns = bound_ns;
        }
        let figures = |found: &Found| (found.prediction.step_ns, found.prediction.peak_bytes);
        let mut others: Vec<RunnerUp> = Vec::new();
        all.sort_by_key(|other| other.prediction.step_ns);
        for other in all.iter().filter(|other| figures(other) != figures(&best)) {
            let (step_ns, peak_bytes) = figures(other);
            others.push(RunnerUp { name: other.name.into(), step_ns, peak_bytes, fits: other.fits(limit) });
        }
        (best, others)
    }

    fn explain(&self, tables: &Tables<'_>, failure: &Failure) -> Box<Diagnostic> {
        let Failure::Infeasible { variables } = failure else {
            return Diagnostic::new(Code::NO_PLAN, "the search for a plan failed")
                .because(failure.to_string());
        };
        let (inputs, nodes) = tables.meaning(variables);
        let names = inputs.iter().map(|id| format!("`{}`", self.canonical.inputs[*id].name));
        let operators = nodes.iter().map(|id| format!("`{}`", self.canonical.op_name(*id)));
        let among: Vec<String> = names.chain(operators).take(MOST_NAMES).collect();
        let diagnostic = Diagnostic::new(Code::BAD_PIN, "no plan keeps all pins")
            .because(format!("no choice suits all of {}", among.join(", ")))
            .hint("remove pins of these until there is one");
        match nodes.iter().find_map(|id| self.canonical.place(*id)) {
            Some(place) => diagnostic.at_line(&place.file, place.line, 0),
            None => diagnostic,
        }
    }
}

/// So many names stand in a message.
const MOST_NAMES: usize = 6;

/// Every rank holds the whole.
const WHOLE: Demand = Demand::At { placement: Placement::Replicate, soft: true };

/// A well-known family of plans: its name, and what it demands of the batch and of state.
type Family = (&'static str, Placement, Demand);

const FAMILIES: [Family; 3] = [
    ("the batch cut, state whole", Placement::shard(0), WHOLE),
    ("the batch cut, state cut", Placement::shard(0), Demand::Cut),
    ("the batch whole, state cut", Placement::Replicate, Demand::Cut),
];

/// Which collectives among `ranks` ranks are faster from each to each.
pub fn direct(cluster: &Cluster, ranks: u32) -> Option<passes::Direct> {
    let limit = |kind| cost::direct_limit(cluster, kind, ranks);
    let direct = passes::Direct {
        ranks,
        all_reduce: limit(CollectiveKind::AllReduce),
        all_gather: limit(CollectiveKind::AllGather),
        reduce_scatter: limit(CollectiveKind::ReduceScatter),
    };
    let limits = [direct.all_reduce, direct.all_gather, direct.reduce_scatter];
    (ranks > 1 && limits.iter().any(|limit| limit.0 > 0)).then_some(direct)
}

/// What limits a plan, in a sentence.
fn limit(found: &Found, memory_limit: Option<u64>) -> String {
    let Prediction { compute_ns, communication_ns, peak_bytes, .. } = found.prediction;
    let near = memory_limit.is_some_and(|limit| peak_bytes * 10 > limit * 9);
    match (near, compute_ns >= communication_ns) {
        (true, _) => "memory: the plan uses over nine tenths of the limit".into(),
        (false, true) => "computation: operations take longer than collectives".into(),
        (false, false) => "communication: collectives take longer than operations".into(),
    }
}

fn too_small(limit: u64, smallest: u64) -> Box<Diagnostic> {
    Diagnostic::new(Code::NO_PLAN, format!("no plan fits into {limit} bytes per rank"))
        .because(format!("the smallest plan found needs {smallest} bytes"))
        .hint("use more ranks, a smaller batch, or a higher memory limit")
}
