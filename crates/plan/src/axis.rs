//! One axis of a search: what it is on, and what its solutions become with decisions along the axes within it.

use base::Result;
use ir::{AxisKind, Graph, MeshAxis};
use shard::{Assignment, Gathers, Space, first_iterations};
use solve::{Choices, Options, evaluate};

use crate::{
    effort::Extent,
    folded::Program,
    forbidden::Forbidden,
    intents::{Intent, Origins, left},
    moments::Charges,
    pins::{Demands, demand_on_batch},
    prices::Prices,
    run::{Found, Run},
    setting::Setting,
    tables::Tables,
};

/// The most cells of a table in searches that propose candidates.
const PROPOSED_TABLE_LIMIT: u64 = 1 << 18;
/// To predict what a solution takes is so much work for each operation, in cells of the solver's tables.
const PREDICTED: u64 = 1_000;
/// A peak is far over a memory limit where it is so many parts of the limit over it.
const FAR: u64 = 4;
/// Programs of so many micro-batches, and of one more, say what those of many take.
const FEW_SLICES: u32 = 2;
pub const PICOS_PER_NANO: i64 = 1_000;

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
    /// The search along all axes.
    pub run: &'a Run<'a>,
    /// What the axes outside this one leave.
    pub program: Program<'a>,
    /// Its graph.
    pub graph: &'a Graph,
    /// Which of its operations are those of the step.
    pub origins: &'a Origins,
    /// Which axis of the mesh this is.
    pub number: usize,
    /// The axis.
    pub axis: &'a MeshAxis,
    /// What each operation may do along it.
    pub space: &'a Space,
    /// Pins.
    pub demands: &'a Demands,
    /// The search along the axes within this one, on the graph that this one leaves.
    pub within: &'a dyn Fn(Program<'_>, &Origins) -> Result<Vec<Found>>,
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

impl Carried {
    /// The smallest peak of what it became, in bytes.
    pub fn peak(&self) -> u64 {
        self.found.iter().map(|found| found.prediction.peak_bytes).min().unwrap_or(u64::MAX)
    }
}

impl Along<'_> {
    /// How much is tried along it.
    pub fn extent(&self) -> Extent {
        self.run.extent_along(self.number)
    }

    /// Whether one of these keeps the memory limit.
    pub fn is_kept(&self, found: &[Found]) -> bool {
        found.iter().any(|one| one.fits(self.run.request.memory_limit))
    }

    /// Whether all of these are so far over the memory limit, even without what collectives hold, that none of the kind keeps it.
    pub fn is_hopeless(&self, found: &[Found]) -> bool {
        let Some(limit) = self.run.request.memory_limit else { return false };
        let is_far = |one: &Found| {
            one.prediction.peak_bytes - one.prediction.collective_bytes > limit.saturating_add(limit / FAR)
        };
        found.iter().all(is_far)
    }

    /// Whether it is of few layers that stand for all.
    pub const fn is_folded(&self) -> bool {
        matches!(self.program, Program::Folded(_))
    }

    /// Whether no axis is within this one.
    pub fn is_last(&self) -> bool {
        self.number + 1 == self.run.request.mesh.axes.len()
    }

    /// How a search proves what it finds. The plain prices of the outer axis do, whose bound a plan names; budgets, other prices, axes within a
    /// candidate, and few layers for many, only propose.
    pub fn options(&self, strict: bool, prices: Prices) -> Options {
        let options = self.proposing(strict);
        if prices == Prices::PLAIN && self.number == 0 && !self.is_folded() {
            return Options { blame: options.blame, ..Options::default() };
        }
        options
    }

    /// The same where a search only proposes.
    pub fn proposing(&self, strict: bool) -> Options {
        let is_last_try = !strict || demand_on_batch(self.graph, self.demands).is_none();
        Options {
            blame: is_last_try,
            table_limit: PROPOSED_TABLE_LIMIT,
            dual: false,
            enough: self.extent().enough,
            orders: self.extent().orders,
            ..Options::default()
        }
    }

    /// What becomes of a decision along this axis with the axes within it.
    pub fn continued(&self, assignment: &Assignment, model: Model) -> Result<Vec<Found>> {
        let mut found = match self.program {
            Program::Folded(folded) => match folded.along(self.axis, assignment, self.origins)? {
                Some((local, origins)) => (self.within)(Program::Folded(&local), &origins)?,
                None => Vec::new(),
            },
            Program::Whole(_) if self.axis.size == 1 => (self.within)(self.program, self.origins)?,
            Program::Whole(graph) if self.has_stages_of_many_slices() => {
                match self.sliced_few(graph, assignment)? {
                    Some(found) => vec![found],
                    None => self.left_whole(graph, assignment)?,
                }
            }
            Program::Whole(graph) => self.left_whole(graph, assignment)?,
        };
        for one in &mut found {
            one.assignments.insert(0, assignment.clone());
            if one.prediction.model_ns == 0 && self.axis.kind == AxisKind::Ranks {
                one.prediction.model_ns = model.time / PICOS_PER_NANO;
                one.prediction.bound_ns = model.bound / PICOS_PER_NANO;
            }
        }
        Ok(found)
    }

    /// What becomes of the graph that the axis leaves.
    fn left_whole(&self, graph: &Graph, assignment: &Assignment) -> Result<Vec<Found>> {
        let (local, origins) = left(graph, self.origins, assignment, self.axis)?;
        (self.within)(Program::Whole(&local), &origins)
    }

    /// Whether it is of many micro-batches of a large program in stages: that is taken apart and simulated behind the search, which compares plans alone.
    fn has_stages_of_many_slices(&self) -> bool {
        let Run { request, extent, .. } = self.run;
        let is_compared = request.mesh.stages() > 1 && extent.is_thrifty;
        is_compared && self.axis.kind == AxisKind::Time && self.axis.size > FEW_SLICES + 1
    }

    /// What the program of all micro-batches takes by those of few; none where that does not say it.
    fn sliced_few(&self, graph: &Graph, assignment: &Assignment) -> Result<Option<Found>> {
        let of = |count| first_iterations(graph, assignment, self.axis, count);
        let (Some(few), Some(more)) = (of(FEW_SLICES)?, of(FEW_SLICES + 1)?) else { return Ok(None) };
        let left_out = i64::from(self.axis.size - FEW_SLICES - 1);
        let found = self.run.predicted_beyond((&few, &more), left_out)?;
        if let Some(found) = &found {
            self.run.note_expected(found);
        }
        Ok(found)
    }

    /// What is decided along it already.
    pub fn intent(&self) -> Option<&Intent> {
        self.run.intents.get(self.number)?.as_ref()
    }

    /// What tables are made from, with weights of what is alive at some moments.
    pub fn setting<'s>(&'s self, strict: bool, charges: &'s Charges) -> Setting<'s> {
        Setting {
            graph: self.graph,
            folded: match self.program {
                Program::Folded(folded) => Some(folded),
                Program::Whole(_) => None,
            },
            space: self.space,
            intent: self.intent().map(|intent| (intent, self.origins)),
            machine: self.run.machine,
            charges,
            pins: self.demands,
            batch: demand_on_batch(self.graph, self.demands),
            strict,
            forbidden: self.forbidden(),
            reduce_dtype: self.run.request.reduce_dtype,
            gathers: Gathers::Once,
        }
    }

    /// The collectives that the plan does without along this axis; along time there are none.
    pub fn forbidden(&self) -> Forbidden {
        match self.axis.kind {
            AxisKind::Ranks => Forbidden::along(&self.axis.name, self.run.request.forbid),
            AxisKind::Time | AxisKind::Stage => Forbidden::default(),
        }
    }
}

/// The solutions met so far along an axis.
pub struct Tries<'a> {
    along: &'a Along<'a>,
    tables: &'a Tables<'a>,
    /// The least that the tables allow, in picoseconds.
    pub bound: i64,
    /// Each solution with the peak of what it became, in bytes.
    known: Vec<(Choices, u64)>,
    /// How many more are carried on to the axes within this one.
    room: usize,
    /// What they became.
    pub found: Vec<Found>,
}

impl<'a> Tries<'a> {
    /// None yet.
    pub fn new(along: &'a Along<'a>, tables: &'a Tables<'a>) -> Self {
        let room = along.extent().beam;
        Self { along, tables, bound: 0, known: Vec::new(), room, found: Vec::new() }
    }

    /// Makes room for as many solutions as at the start.
    pub fn make_room(&mut self) {
        self.room = self.along.extent().beam;
    }

    /// Carries a solution on, unless it is known or there are enough.
    pub fn carry(&mut self, choices: &Choices) -> Result<Option<Carried>> {
        let enough = !self.along.is_last() && self.room == 0;
        if enough || self.peak_of(choices).is_some() {
            return Ok(None);
        }
        self.room = self.room.saturating_sub(1);
        if self.along.is_last() {
            self.along.run.spend(self.along.graph.order.len() as u64 * PREDICTED);
        }
        let time = evaluate(&self.tables.problem, choices).primary();
        let assignment = self.tables.assignment(choices);
        let found = self.along.continued(&assignment, Model { time, bound: self.bound })?;
        let carried = Carried { choices: choices.clone(), assignment, found };
        self.known.push((choices.clone(), carried.peak()));
        Ok(Some(carried))
    }

    /// The peak of what a known solution became, in bytes.
    pub fn peak_of(&self, choices: &Choices) -> Option<u64> {
        self.known.iter().find(|(known, _)| known == choices).map(|(_, peak)| *peak)
    }
}
