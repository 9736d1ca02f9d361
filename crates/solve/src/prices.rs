//! Candidates: the choices that are best when weights have a price, or when part of the costs is discounted.

use serde::{Deserialize, Serialize};

use crate::{Choices, Cost, Failure, Solver, evaluate, network::Objective, weigh};

/// A price: cost units ([`Cost`]`.0`) for each unit of weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    /// Cost units.
    pub numerator: i128,
    /// For this many units of weight, at least 1.
    pub denominator: i128,
}

impl Price {
    /// Weights are free.
    pub const FREE: Self = Self { numerator: 0, denominator: 1 };
}

/// What a solve minimises: costs, less what is taken off their hideable part, plus weights at a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prices {
    /// The price of weights.
    pub weight: Price,
    /// How many thousandths of the hideable costs count; at most 1000.
    pub shown: u32,
}

impl Prices {
    /// Costs as they are.
    pub const NONE: Self = Self { weight: Price::FREE, shown: 1000 };

    /// What one cell comes to, rounded down.
    pub(crate) fn sum(self, cost: i64, hideable: i64, weight: i64) -> i64 {
        let Price { numerator, denominator } = self.weight;
        let hidden = i128::from(hideable) * i128::from(1000 - self.shown.min(1000));
        let price = i128::from(weight).saturating_mul(numerator).div_euclid(denominator);
        Cost::saturated(price.saturating_add(i128::from(cost) - (hidden + 999) / 1000)).0
    }
}

impl Default for Prices {
    fn default() -> Self {
        Self::NONE
    }
}

/// Choices that are best, or nearly, at some prices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The prices.
    pub prices: Prices,
    /// The state of each variable.
    pub choices: Choices,
    /// What they cost without any price or discount, as [`evaluate`] says.
    pub cost: Cost,
    /// What they weigh.
    pub weight: u64,
    /// At these prices, no choices come to less.
    pub bound: Cost,
}

impl Solver<'_> {
    /// The choices that come to least at these prices.
    pub fn solve_at(&mut self, prices: Prices) -> Result<Candidate, Failure> {
        let minimum = self.minimise(Objective::Priced(prices), &[], &mut self.statistics())?;
        let (cost, weight) =
            (evaluate(self.problem, &minimum.choices), weigh(self.problem, &minimum.choices));
        Ok(Candidate {
            prices,
            choices: minimum.choices,
            cost,
            weight,
            bound: Cost::saturated(minimum.bound),
        })
    }

    /// A candidate for each of several prices, without those that are equal to one before. Tables that the prices do not change are not
    /// computed again.
    pub fn candidates(&mut self, prices: &[Prices]) -> Result<Vec<Candidate>, Failure> {
        let mut found: Vec<Candidate> = Vec::new();
        for prices in prices {
            let candidate = self.solve_at(*prices)?;
            if found.iter().all(|other| other.choices != candidate.choices) {
                found.push(candidate);
            }
        }
        Ok(found)
    }
}
