//! Candidates under a memory limit: budgets on what is alive at the worst moments, until one keeps the limit, and then up again as far as
//! time is won.

use base::Result;
use shard::Assignment;
use solve::{Choices, Failure, Solver, weigh};

use crate::{
    axis::{Along, Carried, Tries},
    moments::Alive,
    prices::Prices,
    tables::Tables,
};

/// How often weights are made of other moments: of those at which the plans found hold most.
const ROUNDS: usize = 4;
/// How many budgets are tried to get below the limit in each round.
const FALLS: usize = 6;
/// Budgets along an outer axis fall by at least this part, because each is carried on through the axes within it.
const STEPS: u64 = 8;
/// Budgets on copies of state lie so many parts of what is between the least and the most apart.
const PARTS: u64 = 4;

/// A solution that was carried on.
#[derive(Clone)]
struct Known {
    choices: Choices,
    assignment: Assignment,
    /// The smallest peak of what it became, in bytes.
    peak: u64,
}

impl Known {
    /// Hands over what a solution became.
    fn new(carried: Carried, tries: &mut Tries<'_>) -> Self {
        let peak = carried.peak();
        let Carried { choices, assignment, found } = carried;
        tries.found.extend(found);
        Self { choices, assignment, peak }
    }
}

impl Along<'_> {
    /// Adds candidates that hold no or fewer copies of state from one part of the program to a later one, as far as shards of it do: gathered
    /// again in backward instead of being kept. What they hold for backward beside that, forward can be run again for.
    pub fn without_copies<'f>(
        &self,
        strict: bool,
        over: impl Iterator<Item = (Prices, &'f Carried)>,
        tries: &mut Tries<'_>,
    ) -> Result<()> {
        let charges = Alive::of(self.program).copies();
        let setting = self.setting(strict, &charges);
        let tables = Tables::new(&setting)?;
        for (number, (prices, free)) in over.enumerate() {
            tries.make_room();
            let problem = tables.problem.scaled(|class| prices.percent(class));
            let mut solver = Solver::new(&problem, self.proposing(strict));
            let mut round = Round { along: self, solver: &mut solver, tables: &tables, tries };
            let least = match round.tried(0)? {
                Tried::Nothing { least } if least > 0 => {
                    round.tried(least)?;
                    least
                }
                _ => 0,
            };
            // In between only under the first prices: each budget is a solution, and those of other prices gain little.
            if number > 0 {
                continue;
            }
            let most = weigh(&tables.problem, &free.choices);
            for part in 1..PARTS {
                round.tried(least + most.saturating_sub(least) / PARTS * part)?;
            }
        }
        Ok(())
    }

    /// Adds candidates of less memory than `free`, which is over the limit. Returns whether one of them keeps it.
    pub fn limited(
        &self,
        strict: bool,
        prices: Prices,
        free: Carried,
        tries: &mut Tries<'_>,
    ) -> Result<bool> {
        let alive = Alive::of(self.program);
        let worst = |of: &Known| alive.worst(&of.assignment, self.axis, self.run.excess(of.peak));
        let free = Known::new(free, tries);
        let (mut over, mut kept) = (free.clone(), None);
        let mut moments = worst(&free);
        for _ in 0..ROUNDS {
            let charges = alive.charges(&moments);
            let setting = self.setting(strict, &charges);
            let tables = Tables::new(&setting)?;
            let problem = tables.problem.scaled(|class| prices.percent(class));
            let mut solver = Solver::new(&problem, self.proposing(strict));
            let mut round = Round { along: self, solver: &mut solver, tables: &tables, tries };
            let before = moments.clone();
            if kept.is_none() {
                kept = round.fall(&mut over, moments.len() as u64)?;
            }
            if let Some(kept) = &kept {
                let (light, heavy) = (round.weight(kept), round.weight(&free));
                round.raise(light, heavy)?;
                moments.clear();
            }
            moments.extend(worst(kept.as_ref().unwrap_or(&over)));
            moments.sort_unstable();
            moments.dedup();
            if moments == before || self.run.has_done_enough() {
                break;
            }
        }
        Ok(kept.is_some())
    }
}

/// Budgets on the weights at some moments.
struct Round<'a, 'b, 's, 'p> {
    along: &'a Along<'a>,
    solver: &'s mut Solver<'p>,
    tables: &'a Tables<'a>,
    tries: &'s mut Tries<'b>,
}

impl Round<'_, '_, '_, '_> {
    fn weight(&self, of: &Known) -> u64 {
        weigh(&self.tables.problem, &of.choices)
    }

    /// Lowers the budget by what candidates are over the limit, until one keeps it, which is given back. `over` becomes the smallest that
    /// is over it.
    fn fall(&mut self, over: &mut Known, moments: u64) -> Result<Option<Known>> {
        let (mut light, mut heavy) = (0, self.weight(over));
        let mut excess = self.weight_of_excess(over, heavy, moments);
        for _ in 0..FALLS {
            // Not even all that weights differ by is enough: the lightest shows other moments, and that is all.
            let is_hopeless = light > 0 && excess > moments.saturating_mul(heavy - light);
            let budget = match light {
                0 => heavy.saturating_sub(excess),
                _ if is_hopeless => light,
                light => light + (heavy - light) / 2,
            };
            match self.tried(budget)? {
                Tried::Enough => break,
                Tried::Nothing { least } => light = least.max(budget + 1),
                Tried::Solution(tried) => {
                    if self.along.run.excess(tried.peak) == 0 {
                        return Ok(Some(tried));
                    }
                    let weight = self.weight(&tried);
                    heavy = heavy.min(weight);
                    excess = self.weight_of_excess(&tried, weight, moments);
                    if tried.peak < over.peak {
                        *over = tried;
                    }
                }
            }
            if heavy <= light || is_hopeless {
                break;
            }
        }
        Ok(None)
    }

    /// What a candidate of this weight has to lose at all of some moments together, so that its peak keeps the limit: what is over it at each.
    /// Where axes within this one divide what is weighed, the same part of the weight, and no less than a step of `STEPS`.
    fn weight_of_excess(&self, of: &Known, weight: u64, moments: u64) -> u64 {
        let excess = self.along.run.excess(of.peak);
        let alone = moments.saturating_mul(excess);
        if self.along.is_last() {
            return alone;
        }
        let share = u128::from(weight) * u128::from(excess) / u128::from(of.peak.max(1));
        alone.max(u64::try_from(share).unwrap_or(u64::MAX)).max(weight / STEPS)
    }

    /// Budgets between one that keeps the limit and one that does not.
    fn raise(&mut self, mut kept: u64, mut over: u64) -> Result<()> {
        for _ in 0..self.along.extent().raises {
            let budget = kept + over.saturating_sub(kept) / 2;
            let Tried::Solution(tried) = self.tried(budget)? else { return Ok(()) };
            let fits = self.along.run.excess(tried.peak) == 0;
            *(if fits { &mut kept } else { &mut over }) = budget;
        }
        Ok(())
    }

    /// The solution within a budget, carried on.
    fn tried(&mut self, budget: u64) -> Result<Tried> {
        if self.along.run.has_done_enough() {
            return Ok(Tried::Enough);
        }
        let before = self.solver.cells_computed();
        let within = self.solver.solve_within(budget);
        self.along.run.spend(self.solver.cells_computed() - before);
        let choices = match within {
            Ok(budgeted) => budgeted.solution.choices,
            Err(Failure::OverBudget { least }) => return Ok(Tried::Nothing { least }),
            Err(_) => return Ok(Tried::Nothing { least: 0 }),
        };
        if let Some(peak) = self.tries.peak_of(&choices) {
            let assignment = self.tables.assignment(&choices);
            return Ok(Tried::Solution(Known { choices, assignment, peak }));
        }
        let carried = self.tries.carry(&choices)?;
        Ok(carried.map_or(Tried::Enough, |carried| Tried::Solution(Known::new(carried, self.tries))))
    }
}

/// What a budget gives.
enum Tried {
    /// A solution.
    Solution(Known),
    /// Nothing weighs so little, but only from `least` on.
    Nothing { least: u64 },
    /// One that was not carried on, because enough were.
    Enough,
}
