//! The search along one axis: solutions under several prices, each carried on through the axes within it.

use base::{Code, Diagnostic, Result};
use ir::{Graph, MeshAxis};
use shard::{Assignment, Space, partition};
use solve::{Choices, Failure, Options, Solver, evaluate};

use crate::{
    limits::peak,
    moments::Charges,
    pins::Demands,
    prices::Prices,
    search::{Found, Run},
    tables::{Setting, Tables, demand_on_batch},
};

/// The most cells of a table in searches that propose candidates.
const PROPOSED_TABLE_LIMIT: u64 = 1 << 18;
/// Maximum number of names listed in an error.
const MOST_NAMES: usize = 6;
const PICOS_PER_NANO: i64 = 1_000;

/// What the tables say of a solution, in picoseconds: its time, and the least that they allow.
#[derive(Clone, Copy, Default)]
pub struct Model {
    /// The time.
    pub time: i64,
    /// The bound.
    pub bound: i64,
}

/// The search along one axis.
pub struct Along<'a> {
    /// The whole search.
    pub run: &'a Run<'a>,
    /// The graph that the axes outside this one leave.
    pub graph: &'a Graph,
    /// Which axis of the mesh this is.
    pub number: usize,
    /// The axis.
    pub axis: &'a MeshAxis,
    /// What each operation may do along it.
    pub space: &'a Space,
    /// Pins.
    pub demands: &'a Demands,
}

/// What a solution became.
pub struct Carried {
    /// The decisions along this axis.
    pub choices: Choices,
    /// The same for each operation.
    pub assignment: Assignment,
    /// What they became with decisions along the axes within this one.
    pub found: Vec<Found>,
}

impl Along<'_> {
    /// Distinct solutions under all prices, each carried on through the axes within this one.
    pub fn candidates(&self) -> Result<Vec<Found>> {
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

    /// Whether one of these keeps the memory limit.
    pub fn is_kept(&self, found: &[Found]) -> bool {
        found.iter().any(|one| one.fits(self.run.request.memory_limit))
    }

    fn solutions(&self, strict: bool) -> Result<Vec<Found>> {
        let charges = Charges::default();
        let setting = self.setting(strict, &charges);
        let tables = Tables::new(&setting)?;
        let mut tries =
            Tries { along: self, tables: &tables, bound: 0, known: Vec::new(), found: Vec::new() };
        for prices in Prices::TRIED.iter().take(self.run.extent.prices) {
            let is_plain = *prices == Prices::PLAIN;
            let scaled;
            let problem = if is_plain {
                &tables.problem
            } else {
                scaled = tables.problem.scaled(|class| prices.percent(class));
                &scaled
            };
            let solution = match Solver::new(problem, self.options(strict, *prices)).solve() {
                Ok(solution) => solution,
                // What other prices would have proposed can be done without.
                Err(Failure::TooLarge { .. }) if !is_plain => continue,
                Err(failure) => return Err(self.explained(&tables, &failure)),
            };
            if is_plain {
                tries.bound = solution.bound.primary();
            }
            let Some(free) = tries.carry(&solution.choices)? else { continue };
            if self.run.request.memory_limit.is_some() && !self.is_kept(&free.found) {
                self.limited(strict, *prices, free, &mut tries)?;
            } else {
                tries.found.extend(free.found);
            }
        }
        Ok(tries.found)
    }

    /// What the plain prices prove, the others need not prove again: they only propose.
    pub fn options(&self, strict: bool, prices: Prices) -> Options {
        let is_last_try = !strict || demand_on_batch(self.graph, self.demands).is_none();
        let options = Options { blame: is_last_try, ..Options::default() };
        if prices == Prices::PLAIN {
            return options;
        }
        Options { table_limit: PROPOSED_TABLE_LIMIT, dual: false, ..options }
    }

    /// What becomes of a decision along this axis with the axes within it.
    pub fn continued(&self, assignment: &Assignment, model: Model) -> Result<Vec<Found>> {
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

    /// What tables are made from, with weights of what is alive at some moments.
    pub fn setting<'s>(&'s self, strict: bool, charges: &'s Charges) -> Setting<'s> {
        Setting {
            graph: self.graph,
            space: self.space,
            machine: self.run.machine,
            charges,
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

/// The solutions met so far along an axis.
pub struct Tries<'a> {
    along: &'a Along<'a>,
    tables: &'a Tables<'a>,
    bound: i64,
    /// Each solution with the peak of what it became, in bytes.
    known: Vec<(Choices, u64)>,
    /// What they became.
    pub found: Vec<Found>,
}

impl Tries<'_> {
    /// Carries a solution on, unless it is known or there are enough.
    pub fn carry(&mut self, choices: &Choices) -> Result<Option<Carried>> {
        let run = self.along.run;
        let is_last = self.along.number + 1 == run.request.mesh.axes.len();
        let enough = !is_last && self.known.len() >= run.extent.beam;
        if enough || self.peak_of(choices).is_some() {
            return Ok(None);
        }
        let time = evaluate(&self.tables.problem, choices).primary();
        let assignment = self.tables.assignment(choices);
        let found = self.along.continued(&assignment, Model { time, bound: self.bound })?;
        let carried = Carried { choices: choices.clone(), assignment, found };
        self.known.push((choices.clone(), peak(&carried)));
        Ok(Some(carried))
    }

    /// The peak of what a known solution became, in bytes.
    pub fn peak_of(&self, choices: &Choices) -> Option<u64> {
        self.known.iter().find(|(known, _)| known == choices).map(|(_, peak)| *peak)
    }
}
