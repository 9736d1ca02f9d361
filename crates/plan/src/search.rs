//! The search: tables, solve, memory limit, runners-up.

use base::{Code, Diagnostic, Fingerprint, Result};
use cluster::Cluster;
use ir::{Graph, InputClass, Placement, RankGraph};
use shard::{Assignment, Axis, Space, canonical, partition};
use solve::{Failure, Options, Solver};

use crate::{
    pins::{Demand, Demands, Pins, pinned},
    plan::{Plan, Prediction, RunnerUp},
    tables::{Setting, Tables, demand_on_batch},
};

/// What is asked for.
pub struct Request<'a> {
    /// The graph.
    pub graph: &'a Graph,
    /// What identifies the captured step that the graph comes from.
    pub fingerprint: Fingerprint,
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

/// Most prices that are tried for a memory limit.
const MOST_PRICES: u32 = 24;
/// The first price that is tried, in picoseconds for a million bytes.
const FIRST_PRICE: i64 = 1_000_000;
const PICOS_PER_NANO: i64 = 1_000;

/// Finds the plan of least predicted time under the memory limit that keeps the pins.
pub fn search(request: &Request<'_>) -> Result<Searched> {
    let canonical = canonical(request.graph);
    let space = Space::new(&canonical, request.axis.ranks);
    let demands = pinned(&canonical, request.pins, &request.axis.name)?;
    let run = Run { request, canonical: &canonical, space: &space };
    let found = run.within_memory(&demands)?;
    let mut plan = Plan::new(
        &canonical,
        (request.fingerprint, request.cluster.fingerprint()),
        &request.axis,
        &found.assignment,
    );
    plan.prediction = found.prediction;
    plan.limit = limit(&found, request.memory_limit);
    plan.without_row = space.without_row.iter().cloned().collect();
    plan.runners_up = run.runners_up(&demands, &found);
    Ok(Searched { plan, assignment: found.assignment, canonical })
}

/// One solved problem.
struct Found {
    assignment: Assignment,
    prediction: Prediction,
}

struct Run<'a> {
    request: &'a Request<'a>,
    canonical: &'a Graph,
    space: &'a Space,
}

impl Run<'_> {
    /// The best plan at a price for memory.
    fn at_price(&self, demands: &Demands, price: i64) -> Result<Found> {
        let setting = Setting {
            graph: self.canonical,
            space: self.space,
            cluster: self.request.cluster,
            pins: demands,
            batch: demand_on_batch(self.canonical, demands),
            price,
        };
        let tables = Tables::new(&setting)?;
        let solution =
            Solver::new(&tables.problem, Options::default()).solve().map_err(|failure| explain(&failure))?;
        let assignment = tables.assignment(&solution.choices);
        let graph = partition(self.canonical, &assignment, &self.request.axis, 0)?;
        let mut prediction = self.predict(&graph);
        prediction.model_ns = solution.cost.primary() / PICOS_PER_NANO;
        prediction.bound_ns = solution.bound.primary() / PICOS_PER_NANO;
        Ok(Found { assignment, prediction })
    }

    fn predict(&self, graph: &RankGraph) -> Prediction {
        let time = cost::graph_time(self.request.cluster, graph, self.request.axis.ranks);
        let peak = cost::peak(graph);
        Prediction {
            step_ns: (time.compute + time.communication) / PICOS_PER_NANO,
            compute_ns: time.compute / PICOS_PER_NANO,
            communication_ns: time.communication / PICOS_PER_NANO,
            peak_bytes: peak.total.0,
            state_bytes: peak.state.0,
            collectives: time.collectives,
            ..Prediction::default()
        }
    }

    /// The fastest plan whose peak is within the limit: memory gets a price, the lowest at which the plan fits.
    fn within_memory(&self, demands: &Demands) -> Result<Found> {
        let free = self.at_price(demands, 0)?;
        let Some(limit) = self.request.memory_limit else { return Ok(free) };
        if free.prediction.peak_bytes <= limit {
            return Ok(free);
        }
        let (mut low, mut high, mut best) = (0, FIRST_PRICE, None);
        let mut smallest = free.prediction.peak_bytes;
        for _ in 0..MOST_PRICES {
            let found = self.at_price(demands, high)?;
            smallest = smallest.min(found.prediction.peak_bytes);
            if found.prediction.peak_bytes <= limit {
                best = Some(found);
                break;
            }
            low = high;
            high *= 8;
            if high > 1 << 45 {
                break;
            }
        }
        let mut best = best.ok_or_else(|| too_small(limit, smallest))?;
        while high - low > low / 16 + 1 {
            let middle = low + (high - low) / 2;
            let found = self.at_price(demands, middle)?;
            if found.prediction.peak_bytes <= limit {
                if found.prediction.step_ns <= best.prediction.step_ns {
                    best = found;
                }
                high = middle;
            } else {
                low = middle;
            }
        }
        Ok(best)
    }

    /// The best plan of each well-known family, where it is another one than `best`.
    fn runners_up(&self, demands: &Demands, best: &Found) -> Vec<RunnerUp> {
        let mut others = Vec::new();
        for (name, batch, state) in FAMILIES {
            let mut family = demands.clone();
            for (id, input) in self.canonical.inputs.iter() {
                let wanted = match input.class {
                    InputClass::Batch => Some(Demand::At { placement: batch, soft: true }),
                    InputClass::Parameter | InputClass::Optimizer => Some(state),
                    _ => None,
                };
                if let Some(demand) = wanted {
                    family.entry(id).or_insert(demand);
                }
            }
            let Ok(found) = self.at_price(&family, 0) else { continue };
            if found.prediction.step_ns != best.prediction.step_ns {
                let Prediction { step_ns, peak_bytes, .. } = found.prediction;
                others.push(RunnerUp { name: name.into(), step_ns, peak_bytes });
            }
        }
        others.sort_by_key(|other| other.step_ns);
        others
    }
}

/// Every rank holds the whole.
const WHOLE: Demand = Demand::At { placement: Placement::Replicate, soft: true };

/// Well-known families of plans: what they demand of the batch, and of state.
const FAMILIES: [(&str, Placement, Demand); 4] = [
    ("the batch cut, state whole", Placement::shard(0), WHOLE),
    ("the batch cut, state cut", Placement::shard(0), Demand::Cut),
    ("the batch whole, state cut", Placement::Replicate, Demand::Cut),
    ("everything whole on every rank", Placement::Replicate, WHOLE),
];

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

fn explain(failure: &Failure) -> Box<Diagnostic> {
    Diagnostic::new(Code::BAD_PIN, "no plan keeps all pins")
        .because(format!("{failure:?}"))
        .hint("remove pins until there is one")
}
