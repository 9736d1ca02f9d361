//! The search along the axes of a mesh, from the outer one on: solutions under several prices, each carried on through the axes within.

use std::collections::BTreeSet;

use base::{Code, Diagnostic, Result};
use ir::{AxisKind, InputClass, Placement};
use shard::Assignment;
use solve::{Failure, Problem, Solution, Solver};

use crate::{
    axis::{Along, Carried, Model, Tries},
    divides::space,
    effort::Effort,
    folded::Program,
    intents::Origins,
    moments::{Alive, Charges},
    pins::{Demand, Demands, can_be, demand_on_batch, pinned},
    plan::Prediction,
    priced_copies::Copies,
    prices::Prices,
    run::{Found, Met, Request, Run},
    tables::Tables,
};

/// A bound is close where a solution costs at most one part in so many more.
const CLOSE: i64 = 50;

/// How much longer than the best a candidate takes, in percent, that is not decided under other prices along its inner axes.
const BEATEN: i64 = 25;

/// Maximum number of names listed in an error.
const MOST_NAMES: usize = 6;

/// The candidates along the axes from `number` on, on the graph that the axes outside it leave.
pub fn explored(run: &Run<'_>, program: Program<'_>, origins: &Origins, number: usize) -> Result<Vec<Found>> {
    let request = run.request;
    let graph = program.graph();
    let Some(axis) = request.mesh.axes.get(number) else {
        if let Program::Folded(folded) = program {
            let found = run.predicted_folded(folded)?;
            if let Some(found) = &found {
                run.note_expected(found);
            }
            return Ok(found.into_iter().collect());
        }
        // One rank runs the graph as it was captured.
        let alone = request.mesh.is_trivial();
        let found = run.predicted(if alone { request.captured } else { graph })?;
        run.note_expected(&found);
        return Ok(vec![found]);
    };
    if axis.kind == AxisKind::Stage {
        return explored(run, program, origins, number + 1);
    }
    let space = space(graph, request.mesh, axis);
    let demands = match axis.kind {
        AxisKind::Ranks => pinned(graph, &space, request.pins, request.mesh)?,
        AxisKind::Time | AxisKind::Stage => Demands::default(),
    };
    let within = |local: Program<'_>, origins: &Origins| explored(run, local, origins, number + 1);
    let along = Along {
        run,
        program,
        graph,
        origins,
        number,
        axis,
        space: &space,
        demands: &demands,
        within: &within,
    };
    // One rank that nothing is demanded of has no choice.
    if axis.size == 1 && demands.is_empty() {
        return along.continued(&Assignment::default(), Model::default());
    }
    match axis.kind {
        AxisKind::Ranks => along.candidates(),
        AxisKind::Time | AxisKind::Stage => along.sliced(),
    }
}

impl Along<'_> {
    /// Distinct solutions under all prices, each carried on through the axes within this one.
    fn candidates(&self) -> Result<Vec<Found>> {
        if !self.run.intents.is_empty() {
            return self.steered();
        }
        let strict = self.solutions(true);
        let found = match strict {
            // Nothing is found only where few layers say nothing of all.
            Ok(found) if self.is_kept(&found) || self.is_folded() && found.is_empty() => {
                return Ok(found);
            }
            other => other,
        };
        let mut found = match found {
            Ok(found) if self.run.has_done_enough() => return Ok(found),
            _ if demand_on_batch(self.graph, self.demands).is_some() => {
                return self.solutions(false);
            }
            found => found?,
        };
        if self.extent().is_thrifty && found.iter().any(|one| self.run.is_in_reach(one)) {
            return Ok(found);
        }
        let is_in_vain = self.is_hopeless(&found) || self.run.is_slower(&found);
        if self.number == 0 && !is_in_vain && self.run.request.effort == Effort::Full {
            found.extend(self.branched());
        }
        Ok(found)
    }

    /// Solutions where it is decided already what operations of the step do, carried on: what is left to decide is what stands between them.
    fn steered(&self) -> Result<Vec<Found>> {
        let charges = Charges::default();
        let setting = self.setting(true, &charges);
        let tables = Tables::new(&setting)?;
        let mut tries = Tries::new(self, &tables);
        let prices = if self.is_last() { self.prices() } else { vec![Prices::HALF] };
        for prices in prices {
            let problem = tables.problem.scaled(|class| prices.percent(class));
            let solution = Solver::new(&problem, self.proposing(true)).solve();
            let solution = solution.map_err(|failure| self.explained(&tables, &failure))?;
            let carried = tries.carry(&solution.choices)?;
            tries.found.extend(carried.into_iter().flat_map(|carried| carried.found));
        }
        Ok(tries.found)
    }

    /// Solutions under a limit that none of the free ones keeps: for each dimension along which the batch can be sharded, those that shard
    /// it there. What collectives hold is in no weight, and free solutions of little weight gather much.
    fn branched(&self) -> Vec<Found> {
        let batch = || self.graph.inputs.iter().filter(|(_, input)| input.class == InputClass::Batch);
        let offers = batch().flat_map(|(_, input)| &self.space.offers[input.value]);
        let offers: BTreeSet<Placement> = offers.copied().collect();
        let mut found = Vec::new();
        for placement in offers {
            if self.run.has_done_enough() {
                break;
            }
            let sharded = batch().filter(|(id, _)| can_be(self.graph, self.space, *id, placement));
            let mut demands = self.demands.clone();
            demands.inputs.extend(sharded.map(|(id, _)| (id, Demand { placement, soft: true })));
            let branch = Along { demands: &demands, ..*self };
            match branch.solutions(true) {
                Ok(kept) if self.is_kept(&kept) => found.extend(kept),
                // An error says that nothing shards it so.
                _ if self.run.has_done_enough() => {}
                Ok(_) | Err(_) => found.extend(branch.solutions(false).unwrap_or_default()),
            }
        }
        found
    }

    fn solutions(&self, strict: bool) -> Result<Vec<Found>> {
        let weighs_copies = self.weighs_copies();
        let charges = if weighs_copies { Alive::of(self.program).copies() } else { Charges::default() };
        let setting = self.setting(strict, &charges);
        let tables = Tables::new(&setting)?;
        let mut tries = Tries::new(self, &tables);
        let mut over: Vec<(Prices, Carried)> = Vec::new();
        let mut was_met = false;
        for prices in self.prices() {
            let is_plain = prices == Prices::PLAIN;
            let scaled;
            let problem = if is_plain {
                &tables.problem
            } else {
                scaled = tables.problem.scaled(|class| prices.percent(class));
                &scaled
            };
            let mut copies = weighs_copies.then(|| Copies::new(self, (problem, strict)));
            let priced = copies.as_mut().and_then(Copies::at_known_price);
            let is_priced = priced.is_some();
            let choices = match priced {
                Some(choices) => choices,
                None => match self.solved(problem, strict, prices) {
                    Ok(free) => {
                        if is_plain {
                            tries.bound = free.bound.primary();
                        }
                        self.run.spend(free.statistics.cells_computed);
                        free.choices
                    }
                    // What other prices would have proposed can be done without.
                    Err(Failure::TooLarge { .. }) if !is_plain => continue,
                    Err(failure) => return Err(self.explained(&tables, &failure)),
                },
            };
            let Some(first) = tries.carry(&choices)? else { continue };
            if self.run.request.memory_limit.is_none() || self.is_kept(&first.found) {
                tries.found.extend(first.found);
            } else {
                was_met |= over.is_empty() && self.was_met(strict, &first);
                let is_beaten = self.run.is_beaten(&first.found)
                    || self.run.is_slower(&first.found)
                    || is_priced && self.run.is_beaten_elsewhere(&first.found);
                if let Some(copies) = copies.as_mut().filter(|_| !was_met && !is_beaten) {
                    copies.reprice(&first, &mut tries)?;
                }
                over.push((prices, first));
            }
            if self.is_beaten_under_any(&tries.found) || self.run.has_done_enough() {
                break;
            }
        }
        let is_thrifty = self.extent().is_thrifty;
        let mut enough = was_met || is_thrifty && !self.is_last() && !tries.found.is_empty();
        if weighs_copies {
            let found = || tries.found.iter().chain(over.iter().flat_map(|(_, first)| &first.found));
            enough |= found().any(|found| self.run.could_fit(found));
        } else if !was_met && self.run.may_hold_less() && !over.is_empty() {
            self.without_copies(strict, over.iter().map(|(prices, free)| (*prices, free)), &mut tries)?;
        }
        for (prices, free) in over {
            if enough || self.run.has_done_enough() || self.run.is_slower(&free.found) {
                tries.found.extend(free.found);
                continue;
            }
            tries.make_room();
            let met = tries.found.len();
            let is_kept = self.limited(strict, prices, free, &mut tries)?;
            // The lightest is the same under all prices.
            enough = !is_kept && (is_thrifty || self.is_hopeless(&tries.found[met..]));
        }
        Ok(tries.found)
    }

    /// Whether copies of state cost in the tables what it takes to run forward again for what they hold: in a large search under a memory limit.
    fn weighs_copies(&self) -> bool {
        let run = self.run;
        self.extent().is_thrifty && run.request.memory_limit.is_some() && run.may_hold_less()
    }

    /// Whether, of few layers, what is found under one price takes so much longer than what axes outside lead to that are decided otherwise, that no
    /// other price makes up for it.
    fn is_beaten_under_any(&self, found: &[Found]) -> bool {
        let least = self.run.least_expected_ns.get();
        let own = found.iter().map(|one| self.run.expected_ns(one)).min();
        self.number > 0 && self.is_folded() && own.is_some_and(|own| own / (100 + BEATEN) * 100 > least)
    }

    /// The prices that are tried. A single look at few layers that stand for many is under those that plans are best under most often. In micro-batches
    /// under a memory limit those are tried next under which each gathers for itself.
    fn prices(&self) -> Vec<Prices> {
        let Request { mesh, memory_limit, .. } = *self.run.request;
        let tried: &[Prices] = match self.program {
            Program::Folded(_) => &Prices::OF_FEW,
            Program::Whole(_) => &Prices::TRIED,
        };
        let mut tried = tried[..self.extent().prices.min(tried.len())].to_vec();
        if mesh.micro_batches() > 1 && memory_limit.is_some() {
            let of_each = Prices::of_each(mesh.micro_batches());
            if !tried.contains(&of_each) {
                tried.insert(1, of_each);
            }
        }
        tried
    }

    /// The solution under some prices. In a large search of several axes no bound of the outer one is asked for: what only proposes will do where it
    /// is close.
    fn solved(&self, problem: &Problem, strict: bool, prices: Prices) -> Result<Solution, Failure> {
        let (options, proposing) = (self.options(strict, prices), self.proposing(strict));
        let may_do = self.extent().is_thrifty && !self.is_last();
        if options == proposing || !may_do {
            return Solver::new(problem, options).solve();
        }
        let mut solver = Solver::new(problem, proposing);
        match solver.solve() {
            Ok(found) if found.cost.primary() - found.bound.primary() <= found.cost.primary() / CLOSE => {
                Ok(found)
            }
            _ => {
                solver.set_options(options);
                solver.solve()
            }
        }
    }

    /// Whether, in a large search, the axes outside were decided otherwise before, and that came to the same along this one: so would all else.
    fn was_met(&self, strict: bool, first: &Carried) -> bool {
        let first = first.found.first().filter(|_| self.number > 0 && self.extent().is_thrifty);
        first.is_some_and(|first| {
            let Prediction { step_ns, peak_bytes, .. } = first.prediction;
            self.run.was_met(Met { search: (self.number, strict), step_ns, peak_bytes })
        })
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
        let axis = &self.axis.name;
        let (message, hint) = match self.forbidden().text() {
            None => {
                (format!("no plan keeps all pins along `{axis}`"), "remove pins of these until there is one")
            }
            Some(kinds) => (
                format!("no plan does without {kinds} along `{axis}` and keeps all pins"),
                "forbid less, or remove pins of these until there is one",
            ),
        };
        let diagnostic = Diagnostic::new(Code::BAD_PIN, message)
            .because(format!("no choice suits all of {}", among.join(", ")))
            .hint(hint);
        match nodes.iter().find_map(|id| self.graph.place(*id)) {
            Some(place) => diagnostic.at_line(&place.file, place.line, 0),
            None => diagnostic,
        }
    }
}
