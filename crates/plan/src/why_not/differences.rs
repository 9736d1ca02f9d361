//! Two plans for one step, held against each other: where their programs take other times, and why.

use base::Result;
use cluster::Cluster;
use cost::Machine;
use indexmap::IndexMap;
use ir::{Graph, PartKind, RankGraph};
use serde::Serialize;

use crate::{
    account::{Times, busiest, changes, meant, millis, timed},
    kernels::seen,
    plan::Plan,
    simulate::pipeline,
    step::program,
    text::patterns::folded,
};

/// From this share of all that costs on, in percent, the first difference that costs is worth naming.
const NAMED: i64 = 1;

/// An input that two plans place otherwise.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct PlacedOtherwise {
    /// The first one.
    pub name: String,
    /// Its placement along each axis in the plan that was chosen, where it is another than `replicate`.
    pub chosen: IndexMap<String, String>,
    /// The same in the alternative.
    pub alternative: IndexMap<String, String>,
    /// How many inputs there are.
    pub inputs: u32,
}

/// The first line of the step, in program order, at which the alternative takes longer.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct FirstDifference {
    /// The part of the program.
    pub part: &'static str,
    /// The module.
    pub module: String,
    /// The line of the user's code.
    pub place: Option<String>,
    /// How much longer, in milliseconds.
    pub ms: f64,
    /// What of it is operations.
    pub compute_ms: f64,
    /// What of it is waiting for collectives.
    pub exposed_ms: f64,
    /// What costs most there: a change of placement, or an operation.
    pub what: String,
}

/// What the alternative takes longer for one cause.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Difference {
    /// `waiting` for collectives, `operations`, or `idle`: other ranks have not come to a collective, or sent, yet.
    pub of: &'static str,
    /// The collective with the change of placement that it serves, or the module with the part of the program.
    pub what: String,
    /// How much longer, in milliseconds.
    pub ms: f64,
}

/// What is said of two plans.
pub struct Compared {
    /// What they place otherwise.
    pub placed_otherwise: Option<PlacedOtherwise>,
    /// Where the second one first takes longer.
    pub first: Option<FirstDifference>,
    /// By cause.
    pub differences: Vec<Difference>,
}

/// The plan that was chosen and another one.
pub fn compared(graph: &Graph, plans: (&Plan, &Plan), cluster: &Cluster) -> Result<Compared> {
    let chosen = Costs::of(graph, plans.0, cluster)?;
    let other = Costs::of(graph, plans.1, cluster)?;
    let mut differences = by_cause(&chosen.causes, &other.causes);
    differences.sort_by_key(|(_, _, picos)| -picos);
    let costs: i64 = differences.iter().map(|(.., picos)| (*picos).max(0)).sum();
    let named = differences.into_iter().map(|(of, what, picos)| Difference { of, what, ms: millis(picos) });
    Ok(Compared {
        placed_otherwise: placed_otherwise(graph, plans),
        first: first(&chosen, &other, (costs * NAMED / 100).max(1)),
        differences: named.collect(),
    })
}

/// What two plans place otherwise.
fn placed_otherwise(graph: &Graph, (chosen, other): (&Plan, &Plan)) -> Option<PlacedOtherwise> {
    let layout = |plan: &Plan, name: &str| -> IndexMap<String, String> {
        let layout = plan.inputs.get(name).into_iter().flatten();
        layout.map(|(axis, placement)| (axis.clone(), placement.to_string())).collect()
    };
    let names = || graph.inputs.values().map(|input| input.name.as_str());
    let differs = |name: &&str| layout(chosen, name) != layout(other, name);
    let name = names().find(differs)?;
    Some(PlacedOtherwise {
        name: name.to_owned(),
        chosen: layout(chosen, name),
        alternative: layout(other, name),
        inputs: names().filter(differs).count() as u32,
    })
}

/// A line of the step within a module.
type Key = (PartKind, String, Option<String>);
/// What a cause is of, and what it is.
type Cause = (&'static str, String);

/// What a line takes, in picoseconds.
#[derive(Clone, Default)]
struct Line {
    compute: i64,
    exposed: i64,
    /// By operator, and by collective with its change of placement.
    parts: IndexMap<String, i64>,
}

/// What the program of the rank, or of the busiest stage, takes.
struct Costs {
    /// In program order.
    lines: IndexMap<Key, Line>,
    causes: IndexMap<Cause, i64>,
}

impl Costs {
    fn of(graph: &Graph, plan: &Plan, cluster: &Cluster) -> Result<Self> {
        let programs = match pipeline(graph, plan, cluster)? {
            Some(stages) => stages.programs,
            None => vec![seen(program(graph, plan, 0, |_| {})?, plan)?],
        };
        let mesh = plan.mesh();
        let times = timed(&programs.iter().collect::<Vec<_>>(), Machine { cluster, mesh: &mesh })?;
        let mut costs = Self { lines: IndexMap::new(), causes: IndexMap::new() };
        if let Some((number, times)) = busiest(&times) {
            costs.read(&programs[number], times);
        }
        Ok(costs)
    }

    fn read(&mut self, graph: &RankGraph, times: &Times) {
        for (at, id) in graph.order.iter().enumerate() {
            let (compute, exposed) = (times.operations[at], times.exposed[at]);
            let node = &graph.nodes[*id];
            let module = node.module.map_or("", |module| graph.modules[module].as_str());
            let place = graph.place(*id).map(|place| format!("{}:{}", place.file, place.line));
            let part = graph.part_kind(*id);
            let line = self.lines.entry((part, module.to_owned(), place)).or_default();
            line.compute += compute;
            line.exposed += exposed;
            if let Some(collective) = graph.collective(*id) {
                let why = crate::explain::changes(&changes(graph, *id));
                let (kind, is_direct) = meant(graph, *id);
                let kind = if is_direct { format!("direct {kind}") } else { kind };
                let what = format!("{kind} on {}, {why}", collective.axis);
                *line.parts.entry(what.clone()).or_default() += exposed;
                *self.causes.entry(("waiting", what)).or_default() += exposed;
            } else {
                *line.parts.entry(graph.op_name(*id).to_owned()).or_default() += compute;
                let module = if module.is_empty() { "the step itself".into() } else { folded(module) };
                let what = format!("{module}, {}", part.text());
                *self.causes.entry(("operations", what)).or_default() += compute;
            }
        }
        *self.causes.entry(("idle", "before other ranks come, or send".into())).or_default() += times.idle;
    }
}

/// What each cause takes longer.
fn by_cause(chosen: &IndexMap<Cause, i64>, other: &IndexMap<Cause, i64>) -> Vec<(&'static str, String, i64)> {
    let mut all: IndexMap<&Cause, i64> = other.iter().map(|(cause, picos)| (cause, *picos)).collect();
    for (cause, picos) in chosen {
        *all.entry(cause).or_default() -= picos;
    }
    let differs = all.into_iter().filter(|(_, picos)| *picos != 0);
    differs.map(|((of, what), picos)| (*of, what.clone(), picos)).collect()
}

/// The first line that takes longer by at least `least`; the one that takes most longer where all are less.
fn first(chosen: &Costs, other: &Costs, least: i64) -> Option<FirstDifference> {
    let none = Line::default();
    let longer = |key: &Key, line: &Line| {
        let known = chosen.lines.get(key).unwrap_or(&none);
        (line.compute - known.compute) + (line.exposed - known.exposed)
    };
    let lines = || other.lines.iter().map(|(key, line)| (key, line, longer(key, line)));
    let found = lines().find(|(.., longer)| *longer >= least);
    let (key, line, longer) = found.or_else(|| lines().max_by_key(|(.., longer)| *longer))?;
    if longer <= 0 {
        return None;
    }
    let known = chosen.lines.get(key).unwrap_or(&none);
    let part = |(what, picos): (&String, &i64)| {
        (*picos - known.parts.get(what).copied().unwrap_or(0), std::cmp::Reverse(what.clone()))
    };
    let (_, std::cmp::Reverse(what)) = line.parts.iter().map(part).max()?;
    let (kind, module, place) = key;
    Some(FirstDifference {
        part: kind.text(),
        module: module.clone(),
        place: place.clone(),
        ms: millis(longer),
        compute_ms: millis(line.compute - known.compute),
        exposed_ms: millis(line.exposed - known.exposed),
        what,
    })
}
