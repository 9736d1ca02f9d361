//! Copies of state in a large search under a memory limit: in the tables they cost what it takes to run forward again for as much memory as they hold.
//!
//! A copy that is held from one part of the program to a later one saves a gather, and what it holds is not there for what forward leaves. The time that
//! this takes, for each byte, follows from what a candidate is over the limit; at that price the solver weighs copies against gathers in one solution,
//! where a budget takes one for each price on the way.

use base::Result;
use solve::{Choices, Cost, Failure, Price, Problem, Solver, evaluate, weigh};

use crate::{
    axis::{Along, Carried, Tries},
    run::Found,
};

/// Gathers that the tables count may be hidden behind operations: copies are tried at so many times the price too.
const HIGHER: [f64; 3] = [1.0, 4.0, 64.0];

/// What becomes of a solution may ask for less: that is tried where it is at most so much of the price.
const LOWER: f64 = 0.75;

/// Between two solutions those are weighed that hold so many of `PARTS` parts of what both differ by.
const BETWEEN: [u64; 4] = [1, 2, 4, 6];
const PARTS: u64 = 8;

/// So many of them are tried, of those that are expected to take less than both, but for so many percent: what is hidden of few gathers is not what is
/// hidden of many.
const MOST_BETWEEN: usize = 2;
const INEXACT: i64 = 2;

/// Prices are in so many parts of a cost unit per byte.
const FINE: i128 = 1 << 16;

/// The search for what copies may cost, under one price of communication.
pub struct Copies<'a, 'p> {
    along: &'a Along<'a>,
    problem: &'p Problem,
    solver: Solver<'p>,
}

impl<'a, 'p> Copies<'a, 'p> {
    /// For a problem whose weights are the bytes of copies, with demands that are strict or not.
    pub fn new(along: &'a Along<'a>, (problem, strict): (&'p Problem, bool)) -> Self {
        Self { along, problem, solver: Solver::new(problem, along.proposing(strict)) }
    }

    /// The solution at the price of the best candidate so far; nothing where there is none, or memory costs it nothing, or a bound is asked for.
    pub fn at_known_price(&mut self) -> Option<Choices> {
        let price = self.along.run.best_expected.get()?.byte_price;
        let asks_for_bound = self.along.number == 0 && !self.along.is_folded();
        (price > 0.0 && !asks_for_bound).then(|| self.at(price).ok()).flatten()
    }

    /// Adds what becomes of solutions at prices that follow from what the last one became, at first `first`, which is over the limit; and of those in
    /// between: layers that are alike all hold their copies at one price, and none at another.
    pub fn reprice(&mut self, first: &Carried, tries: &mut Tries<'_>) -> Result<()> {
        let Some(best) = self.best(&first.found) else { return Ok(()) };
        let own = self.along.run.byte_price_of(&first.found[best]);
        let mut light: Option<Light> = None;
        tries.make_room();
        for price in HIGHER.map(|times| own * times) {
            if light.is_some() && price > own * HIGHER[1] {
                break;
            }
            let next = self.tried(price, tries, &mut light)?;
            if next > 0.0 && next < price * LOWER {
                self.tried(next, tries, &mut light)?;
            }
        }
        light.map_or(Ok(()), |light| self.between(&light, first, tries))
    }

    /// Adds what becomes of the solution at a price; the price that this asks for.
    fn tried(&mut self, price: f64, tries: &mut Tries<'_>, light: &mut Option<Light>) -> Result<f64> {
        let Ok(choices) = self.at(price) else { return Ok(0.0) };
        let Some(Carried { found, .. }) = tries.carry(&choices)? else { return Ok(0.0) };
        let Some(best) = self.best(&found) else { return Ok(0.0) };
        let run = self.along.run;
        let next = run.byte_price_of(&found[best]);
        let is_better =
            |known: &Light| run.expected_ns(&found[best]) < run.expected_ns(&tries.found[known.at]);
        if light.as_ref().is_none_or(is_better) {
            *light = Some(Light { choices, at: tries.found.len() + best });
        }
        tries.found.extend(found);
        Ok(next)
    }

    /// Adds what becomes of the light solution with as many of the copies of the first one as are expected to be best, if any are.
    fn between(&self, light: &Light, first: &Carried, tries: &mut Tries<'_>) -> Result<()> {
        let Some(best) = self.best(&first.found) else { return Ok(()) };
        let ends = (&tries.found[light.at], &first.found[best]);
        let (from, to) = (weigh(self.problem, &light.choices), weigh(self.problem, &first.choices));
        let saved = |choices: &Choices| {
            let cost = |of: &Choices| evaluate(self.problem, of).primary();
            (cost(&light.choices) - cost(choices)) as f64
        };
        let all = saved(&first.choices);
        if to <= from || all <= 0.0 {
            return Ok(());
        }
        let expected = |choices: &Choices| {
            let held = (weigh(self.problem, choices) as f64 - from as f64) / (to - from) as f64;
            self.along.run.expected_between(ends, saved(choices) / all, held)
        };
        let some = |part: &u64| {
            let limit = from + (to - from) / PARTS * part;
            let choices = self.solver.between((&light.choices, &first.choices), limit);
            (expected(&choices), choices)
        };
        let least = expected(&light.choices).min(expected(&first.choices));
        let mut parts: Vec<(i64, Choices)> = BETWEEN.iter().map(some).collect();
        parts.sort_by_key(|(expected, _)| *expected);
        parts.retain(|(expected, _)| *expected / (100 + INEXACT) * 100 < least);
        for (_, choices) in parts.into_iter().take(MOST_BETWEEN) {
            let carried = tries.carry(&choices)?;
            tries.found.extend(carried.into_iter().flat_map(|carried| carried.found));
        }
        Ok(())
    }

    /// The solution at a price, in picoseconds for each byte that one rank holds.
    fn at(&mut self, price: f64) -> Result<Choices, Failure> {
        let cost = price * f64::from(1_u32 << Cost::SECONDARY_BITS);
        let numerator = (cost * FINE as f64) as i128;
        self.solver.solve_priced(Price { numerator, denominator: FINE })
    }

    fn best(&self, found: &[Found]) -> Option<usize> {
        (0..found.len()).min_by_key(|at| self.along.run.expected_ns(&found[*at]))
    }
}

/// The best solution at a price.
struct Light {
    choices: Choices,
    /// Where in what was found the best is that it became.
    at: usize,
}
