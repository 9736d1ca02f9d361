//! Integer costs: a primary quantity, and a secondary one that decides between equals.

use std::{fmt, iter::Sum, ops::Add};

use serde::{Deserialize, Serialize};

/// A cost: an integer in units of `1 / 256` of the primary quantity.
///
/// The primary quantity (picoseconds, in the planner) stands in the upper bits, a secondary one (a number of collectives,
/// a distance from regularity) in the lower [`SECONDARY_BITS`](Self::SECONDARY_BITS): where two sums agree in the first,
/// the second decides. A secondary sum over 256 carries into one primary unit, which is harmless where that is a picosecond.
/// Addition saturates at [`INFINITE`](Self::INFINITE), which marks what is forbidden.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Cost(pub i64);

impl Cost {
    /// No cost.
    pub const ZERO: Self = Self(0);
    /// Forbidden. Seven of them can be added without overflow.
    pub const INFINITE: Self = Self(1 << 60);
    /// Finite costs must be smaller in magnitude. Where the sum of the greatest costs of tables that share a variable is not, the solver adds in coarser
    /// units, and what is rounded off is between cost and bound.
    pub const LIMIT: Self = Self(1 << 58);
    /// How many of the lower bits hold the secondary quantity.
    pub const SECONDARY_BITS: u32 = 8;

    /// A cost of `primary` with a tie-breaker. What exceeds the range becomes [`LIMIT`](Self::LIMIT).
    pub const fn new(primary: i64, secondary: u32) -> Self {
        let packed = ((primary as i128) << Self::SECONDARY_BITS) + secondary as i128;
        Self::saturated(packed)
    }

    /// The primary quantity, without what was carried into it beyond the secondary bits.
    pub const fn primary(self) -> i64 {
        self.0 >> Self::SECONDARY_BITS
    }

    /// Whether this is a cost and not a prohibition.
    pub const fn is_finite(self) -> bool {
        self.0 < Self::INFINITE.0
    }

    /// This percentage of the primary quantity, rounded down.
    #[must_use]
    pub fn at(self, percent: u32) -> Self {
        if !self.is_finite() {
            return self;
        }
        let primary = self.primary();
        let secondary = self.0 - (primary << Self::SECONDARY_BITS);
        let scaled = (i128::from(primary) * i128::from(percent)).div_euclid(100);
        Self::saturated((scaled << Self::SECONDARY_BITS) + i128::from(secondary))
    }

    /// So many times this.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        if self.is_finite() { Self::saturated(i128::from(self.0) * i128::from(count)) } else { self }
    }

    /// What no sum of costs falls below, of one that may be larger than any cost.
    pub(crate) fn bound(packed: i128) -> Self {
        Self(packed.clamp(i64::MIN.into(), (Self::INFINITE.0 - 1).into()) as i64)
    }

    pub(crate) const fn saturated(packed: i128) -> Self {
        let limit = Self::LIMIT.0 as i128;
        if packed >= limit {
            Self::LIMIT
        } else if packed <= -limit {
            Self(-Self::LIMIT.0)
        } else {
            Self(packed as i64)
        }
    }
}

impl Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        if self.is_finite() && other.is_finite() {
            Self((self.0 + other.0).min(Self::INFINITE.0))
        } else {
            Self::INFINITE
        }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Debug for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `primary+secondary`, or `infinite`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_finite() {
            let secondary = self.0 - (self.primary() << Self::SECONDARY_BITS);
            write!(f, "{}+{secondary}", self.primary())
        } else {
            f.write_str("infinite")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secondary_quantity_decides_only_between_equals() {
        assert!(Cost::new(5, 9) < Cost::new(6, 0));
        assert!(Cost::new(5, 1) < Cost::new(5, 2));
        assert_eq!(Cost::new(-5, 2).primary(), -5);
        assert_eq!(Cost::new(-5, 2).to_string(), "-5+2");
    }

    #[test]
    fn nothing_is_cheaper_than_forbidden_plus_something() {
        assert_eq!(Cost::INFINITE + Cost::new(-7, 0), Cost::INFINITE);
        assert_eq!([Cost::INFINITE; 40].into_iter().sum::<Cost>(), Cost::INFINITE);
    }
}
