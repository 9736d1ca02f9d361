//! Candidates under a memory limit: budgets on what is alive at the worst moments, until one keeps the limit, and then up again as far as
//! time is won.

use base::Result;
use solve::{Solver, weigh};

use crate::{
    along::{Along, Carried, Tries},
    moments::Alive,
    prices::Prices,
    tables::Tables,
};

/// How often moments are added at which a plan within the budget still holds too much.
const ROUNDS: usize = 3;
/// How many budgets are tried to get below the limit in each round.
const FALLS: usize = 5;
/// How often a budget is raised again from one that keeps the memory limit towards one that does not, for a small and a large program.
const RAISES: [usize; 2] = [6, 2];

/// The smallest peak of what a solution became, in bytes.
pub fn peak(carried: &Carried) -> u64 {
    carried.found.iter().map(|found| found.prediction.peak_bytes).min().unwrap_or(u64::MAX)
}

/// What became of a budget.
struct Tried {
    /// What the solution weighs.
    weight: u64,
    /// The smallest peak of what it became, in bytes.
    peak: u64,
    /// The solution, where it is not one that is known.
    new: Option<Carried>,
}

impl Along<'_> {
    /// Adds candidates of less memory than `free`, which is over the limit.
    pub fn limited(&self, strict: bool, prices: Prices, free: Carried, tries: &mut Tries<'_>) -> Result<()> {
        let alive = Alive::new(self.graph);
        let mut moments: Vec<usize> = Vec::new();
        let mut over = free;
        for _ in 0..ROUNDS {
            let known = moments.len();
            let worst = alive.worst(&over.assignment, self.axis, self.excess(peak(&over)));
            moments.extend(worst);
            moments.sort_unstable();
            moments.dedup();
            if moments.len() == known {
                break;
            }
            let charges = alive.charges(&moments);
            let setting = self.setting(strict, &charges);
            let tables = Tables::new(&setting)?;
            let problem = tables.problem.scaled(|class| prices.percent(class));
            let mut solver = Solver::new(&problem, self.options(strict, prices));
            let mut round = Round { along: self, solver: &mut solver, tables: &tables, tries };
            let (next, fits) = round.fall(over, moments.len() as u64)?;
            over = next;
            if fits {
                break;
            }
        }
        tries.found.extend(over.found);
        Ok(())
    }

    /// By how much a peak is over the limit, in bytes.
    fn excess(&self, peak: u64) -> u64 {
        peak.saturating_sub(self.run.request.memory_limit.unwrap_or(u64::MAX))
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
    /// Lowers the budget by what candidates are over the limit, until one keeps it, and raises it again. Gives back the smallest
    /// that is over the limit, and whether one kept it.
    fn fall(&mut self, mut over: Carried, moments: u64) -> Result<(Carried, bool)> {
        let mut excess = self.along.excess(peak(&over));
        let (mut light, mut heavy) = (0, weigh(&self.tables.problem, &over.choices));
        for _ in 0..FALLS {
            let budget = match light {
                0 => heavy.saturating_sub(moments * excess),
                light => light + (heavy - light) / 2,
            };
            let Some(tried) = self.tried(budget)? else {
                light = budget + 1;
                if heavy <= light {
                    break;
                }
                continue;
            };
            excess = self.along.excess(tried.peak);
            if excess == 0 {
                self.tries.found.extend(tried.new.map(|new| new.found).into_iter().flatten());
                self.raise(budget, heavy)?;
                return Ok((over, true));
            }
            heavy = heavy.min(tried.weight);
            let Some(new) = tried.new else { continue };
            let larger = if tried.peak < peak(&over) { std::mem::replace(&mut over, new) } else { new };
            self.tries.found.extend(larger.found);
        }
        Ok((over, false))
    }

    /// Budgets between one that keeps the limit and one that does not.
    fn raise(&mut self, mut kept: u64, mut over: u64) -> Result<()> {
        for _ in 0..RAISES[usize::from(self.along.run.is_large)] {
            let budget = kept + over.saturating_sub(kept) / 2;
            let Some(tried) = self.tried(budget)? else { return Ok(()) };
            let fits = self.along.excess(tried.peak) == 0;
            *(if fits { &mut kept } else { &mut over }) = budget;
            self.tries.found.extend(tried.new.map(|new| new.found).into_iter().flatten());
        }
        Ok(())
    }

    /// The solution within a budget, carried on; none where nothing weighs so little.
    fn tried(&mut self, budget: u64) -> Result<Option<Tried>> {
        let Ok(budgeted) = self.solver.solve_within(budget) else { return Ok(None) };
        let choices = &budgeted.solution.choices;
        let weight = weigh(&self.tables.problem, choices);
        if let Some(peak) = self.tries.peak_of(choices) {
            return Ok(Some(Tried { weight, peak, new: None }));
        }
        let carried = self.tries.carry(choices)?;
        Ok(carried.map(|new| Tried { weight, peak: peak(&new), new: Some(new) }))
    }
}
