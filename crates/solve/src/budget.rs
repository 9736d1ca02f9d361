//! The least cost within a budget of weight: a price on the weight, and independent exchanges between the two plans that the
//! right price cannot tell apart.
//!
//! For every price `p`, `min (cost + p weight) - p limit` is a bound. The greatest such bound lies at a price where a plan
//! over the limit and one within it tie; they are found by going from tie to tie, each a whole minimisation.

use serde::{Deserialize, Serialize};

use crate::{
    Choices, Cost, Failure, Price, Solution, Solver, Statistics, Stop, components::components, evaluate,
    knapsack, network::Objective, weigh,
};

/// What one plan on the way costs and weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Its cost.
    pub cost: Cost,
    /// Its weight.
    pub weight: u64,
}

/// The best choices found within a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budgeted {
    /// The choices, their cost, and a bound for all choices within the budget.
    pub solution: Solution,
    /// What the choices weigh.
    pub weight: u64,
    /// The price at which the bound was found; 0 where the budget does not bind.
    pub price: Price,
    /// The plans met on the way, from the lightest to the heaviest.
    pub points: Vec<Point>,
    /// How many independent exchanges there were to choose from at the end.
    pub exchanges: u32,
}

/// Plans on the way are rarely more than ten.
const MOST_PRICES: usize = 60;

#[derive(Clone)]
struct Plan {
    choices: Choices,
    cost: Cost,
    weight: u64,
}

impl Plan {
    fn value(&self, price: Price) -> i128 {
        i128::from(self.cost.0)
            .saturating_mul(price.denominator)
            .saturating_add(i128::from(self.weight).saturating_mul(price.numerator))
    }
}

/// The search for the price: a plan over the limit, a plan within it, and the greatest bound.
struct Hull {
    limit: u64,
    heavy: Plan,
    light: Plan,
    bound: i128,
    price: Price,
    points: Vec<Point>,
}

impl Solver<'_> {
    /// The choices of least cost that weigh at most `limit`.
    pub fn solve_within(&mut self, limit: u64) -> Result<Budgeted, Failure> {
        let mut statistics = self.statistics();
        let (heavy, bound) = self.plan(Objective::COSTS, &mut statistics)?;
        let points = vec![heavy.point()];
        if heavy.weight <= limit {
            return Ok(finish(heavy, bound, Price::FREE, points, 0, statistics));
        }
        let (light, least) = self.plan(Objective::Weights, &mut statistics)?;
        if light.weight > limit {
            return Err(Failure::OverBudget { least: u64::try_from(least).unwrap_or(0) });
        }
        let mut hull = Hull { limit, heavy, light, bound, price: Price::FREE, points };
        self.find_price(&mut hull, &mut statistics)?;
        let (best, exchanges) = self.exchange((&hull.light, &hull.heavy), limit);
        let Hull { bound, price, mut points, .. } = hull;
        points.sort_by_key(|point| (point.weight, point.cost));
        points.dedup();
        Ok(finish(best, bound, price, points, exchanges, statistics))
    }

    /// The choices of least cost where each unit of weight costs as much as the price says, as far as the solver gets.
    pub fn solve_priced(&mut self, price: Price) -> Result<Choices, Failure> {
        let mut statistics = self.statistics();
        Ok(self.minimise(Objective::Priced(price), &[], &mut statistics)?.choices)
    }

    /// From light choices that weigh at most `limit`, those that differ by the independent exchanges towards heavy ones which gain most within it.
    pub fn between(&self, (light, heavy): (&Choices, &Choices), limit: u64) -> Choices {
        let plan = |choices: &Choices| {
            let (cost, weight) = (evaluate(self.problem, choices), weigh(self.problem, choices));
            Plan { choices: choices.clone(), cost, weight }
        };
        self.exchange((&plan(light), &plan(heavy)), limit).0.choices
    }

    fn plan(&mut self, objective: Objective, statistics: &mut Statistics) -> Result<(Plan, i128), Failure> {
        let minimum = self.minimise(objective, &[], statistics)?;
        let cost = evaluate(self.problem, &minimum.choices);
        let weight = weigh(self.problem, &minimum.choices);
        Ok((Plan { choices: minimum.choices, cost, weight }, minimum.bound))
    }

    /// Goes from tie to tie until no plan is below the line through the heavy and the light one.
    fn find_price(&mut self, hull: &mut Hull, statistics: &mut Statistics) -> Result<(), Failure> {
        for _ in 0..MOST_PRICES {
            let numerator = i128::from(hull.light.cost.0) - i128::from(hull.heavy.cost.0);
            let denominator = i128::from(hull.heavy.weight) - i128::from(hull.light.weight);
            if numerator <= 0 {
                return Ok(());
            }
            let price = Price { numerator, denominator };
            let (plan, minimum) = match self.plan(Objective::Priced(price), statistics) {
                Ok(found) => found,
                // The bound found so far holds, and so does the light plan.
                Err(Failure::CostOverflow) => return Ok(()),
                Err(failure) => return Err(failure),
            };
            hull.raise_bound(minimum, price);
            hull.points.push(plan.point());
            if plan.value(price) >= hull.heavy.value(price) {
                return Ok(());
            }
            if plan.weight > hull.limit {
                hull.heavy = plan;
            } else {
                hull.light = plan;
            }
        }
        Ok(())
    }

    /// From the light plan, makes the exchanges towards the heavy one that gain most within the limit.
    fn exchange(&self, (light, heavy): (&Plan, &Plan), limit: u64) -> (Plan, u32) {
        let components = components(self.problem, &light.choices, &heavy.choices);
        let exchanges: Vec<_> = components.iter().map(|component| component.exchange).collect();
        let made = knapsack::choose(&exchanges, i128::from(limit) - i128::from(light.weight));
        let mut choices: Vec<u32> = light.choices.values().copied().collect();
        for (component, _) in components.iter().zip(made).filter(|&(_, made)| made) {
            for &variable in &component.variables {
                choices[variable.0 as usize] = heavy.choices[variable];
            }
        }
        let choices = Choices::from_iter(choices);
        let (cost, weight) = (evaluate(self.problem, &choices), weigh(self.problem, &choices));
        assert!(weight <= limit, "exchanges add up");
        // Which exchanges are made is not exact to the last.
        let made = if cost <= light.cost { Plan { choices, cost, weight } } else { light.clone() };
        (made, exchanges.len() as u32)
    }
}

impl Plan {
    fn point(&self) -> Point {
        Point { cost: self.cost, weight: self.weight }
    }
}

impl Hull {
    /// No plan within the limit costs less than `minimum - price * limit`, and costs are whole.
    fn raise_bound(&mut self, minimum: i128, price: Price) {
        let paid = price.numerator.saturating_mul(i128::from(self.limit)).div_euclid(price.denominator);
        if minimum - paid > self.bound {
            self.bound = minimum - paid;
            self.price = price;
        }
    }
}

fn finish(
    plan: Plan,
    bound: i128,
    price: Price,
    points: Vec<Point>,
    exchanges: u32,
    statistics: Statistics,
) -> Budgeted {
    let bound = Cost::bound(bound);
    assert!(bound <= plan.cost, "the bound of {bound} holds for choices that cost {}", plan.cost);
    let stop = if plan.cost == bound { Stop::Optimal } else { Stop::Budget };
    let solution = Solution { choices: plan.choices, cost: plan.cost, bound, stop, statistics };
    Budgeted { solution, weight: plan.weight, price, points, exchanges }
}
