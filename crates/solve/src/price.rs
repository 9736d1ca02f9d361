//! Prices of weight.

use serde::{Deserialize, Serialize};

use crate::Cost;

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

    /// A cost and a weight at this price, rounded down.
    pub(crate) fn sum(self, cost: i64, weight: i64) -> i64 {
        let price = i128::from(weight).saturating_mul(self.numerator).div_euclid(self.denominator);
        Cost::saturated(price.saturating_add(i128::from(cost))).0
    }
}
