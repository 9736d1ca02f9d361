//! What a sample costs: exact integers, overflow refused up front.

use base::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

/// The largest sum of costs that is accepted, in units: sums of two of them still fit in 64 bits.
pub const COST_LIMIT: u64 = 1 << 62;

/// The cost of a sample as a function of its length.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// `linear·L + quadratic·L² + constant`: a transformer's token-wise layers, its attention, and what a sample costs
    /// however short it is.
    Polynomial(Polynomial),
    /// Measured points, straight lines between them.
    Table(Table),
}

/// Coefficients of `linear·L + quadratic·L² + constant`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Polynomial {
    /// Cost per token.
    #[serde(default)]
    pub linear: u64,
    /// Cost per pair of tokens.
    #[serde(default)]
    pub quadratic: u64,
    /// Cost per sample.
    #[serde(default)]
    pub constant: u64,
}

/// A monotone table of (length, cost) points.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Table {
    points: Vec<(u64, u64)>,
}

impl Table {
    /// A table of at least one point, lengths strictly rising, costs never falling.
    pub fn new(points: Vec<(u64, u64)>) -> Result<Self> {
        if points.is_empty() {
            return Err(Diagnostic::new(Code::BAD_PROBLEM, "a cost table needs at least one point"));
        }
        if let Some(at) = points.windows(2).position(|w| w[0].0 >= w[1].0 || w[0].1 > w[1].1) {
            let ((l0, c0), (l1, c1)) = (points[at], points[at + 1]);
            return Err(Diagnostic::new(
                Code::BAD_PROBLEM,
                format!("the cost table falls or repeats a length between ({l0}, {c0}) and ({l1}, {c1})"),
            )
            .hint("give points with rising lengths and costs that never fall"));
        }
        Ok(Self { points })
    }

    /// Interpolates between the neighbouring points, rounding down. Before the first point the line to (0, 0) is used,
    /// after the last one the last segment is prolonged.
    fn at(&self, length: u128) -> Option<u128> {
        let after = self.points.partition_point(|point| u128::from(point.0) < length);
        let wide = |index: usize| (u128::from(self.points[index].0), u128::from(self.points[index].1));
        let last = self.points.len() - 1;
        let (from, to) = match after {
            0 => ((0, 0), wide(0)),
            _ if after > last && last == 0 => ((0, 0), wide(0)),
            _ if after > last => (wide(last - 1), wide(last)),
            _ => (wide(after - 1), wide(after)),
        };
        if to.0 == from.0 {
            return Some(to.1);
        }
        let rise = (to.1 - from.1).checked_mul(length - from.0)?;
        Some(from.1 + rise / (to.0 - from.0))
    }
}

impl Polynomial {
    fn at(self, length: u128) -> Option<u128> {
        let square = length.checked_mul(length)?;
        let linear = u128::from(self.linear).checked_mul(length)?;
        let quadratic = u128::from(self.quadratic).checked_mul(square)?;
        linear.checked_add(quadratic)?.checked_add(u128::from(self.constant))
    }

    /// The same in units; `unit` divides every coefficient.
    const fn divided(self, unit: u64) -> Self {
        Self { linear: self.linear / unit, quadratic: self.quadratic / unit, constant: self.constant / unit }
    }

    /// The value at a length of which the caller knows that it fits 64 bits.
    const fn small(self, length: u64) -> u64 {
        (self.linear + self.quadratic * length) * length + self.constant
    }

    /// What divides every cost.
    fn divisor(self) -> u64 {
        gcd(gcd(self.linear, self.quadratic), self.constant).max(1)
    }
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

impl Cost {
    /// A polynomial without its constant.
    pub const fn polynomial(linear: u64, quadratic: u64, constant: u64) -> Self {
        Self::Polynomial(Polynomial { linear, quadratic, constant })
    }

    /// The cost of one length, or `None` where it exceeds 128 bits.
    pub fn at(&self, length: u64) -> Option<u128> {
        match self {
            Self::Polynomial(polynomial) => polynomial.at(u128::from(length)),
            Self::Table(table) => table.at(u128::from(length)),
        }
    }

    fn divisor(&self) -> u64 {
        match self {
            Self::Polynomial(polynomial) => polynomial.divisor(),
            Self::Table(_) => 1,
        }
    }
}

/// The costs of many samples: `values[i] · unit` is what sample `i` costs.
///
/// The unit is the greatest common divisor of the coefficients: dividing by it loses nothing and keeps sums of large costs
/// (1e16 operations per sample) within 64 bits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Costs {
    /// In units, by sample.
    pub values: Vec<u64>,
    /// What one unit is in the units of the cost function.
    pub unit: u64,
}

impl Costs {
    /// The cost of every length. Refuses a sum of more than [`COST_LIMIT`] units and names the sample that exceeds it.
    pub fn of(cost: &Cost, lengths: &[u64]) -> Result<Self> {
        Self::with_unit(cost, lengths, cost.divisor())
    }

    /// Polynomials whose largest cost shows that nothing can overflow are evaluated in 64 bits.
    fn with_unit(cost: &Cost, lengths: &[u64], unit: u64) -> Result<Self> {
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let most = cost.at(longest).and_then(|most| most.checked_mul(lengths.len() as u128));
        match cost {
            Cost::Polynomial(polynomial)
                if most.is_some_and(|most| most / u128::from(unit) <= u128::from(COST_LIMIT)) =>
            {
                let divided = polynomial.divided(unit);
                let values = lengths.iter().map(|length| divided.small(*length)).collect();
                Ok(Self { values, unit })
            }
            _ => Self::checked(cost, lengths, unit),
        }
    }

    fn checked(cost: &Cost, lengths: &[u64], unit: u64) -> Result<Self> {
        let mut total = 0_u64;
        let mut one = |(index, length): (usize, &u64)| {
            let length = *length;
            let value = cost.at(length).map(|cost| cost / u128::from(unit));
            let value = value.and_then(|value| u64::try_from(value).ok());
            let sum = value.and_then(|value| total.checked_add(value)).filter(|sum| *sum <= COST_LIMIT);
            total = sum.ok_or_else(|| overflow(index, length, unit))?;
            Ok(value.expect("the sum exists only if the value does"))
        };
        let values = lengths.iter().enumerate().map(&mut one).collect::<Result<_>>()?;
        Ok(Self { values, unit })
    }
}

/// What divides the costs of all phases.
pub fn phase_unit(costs: &[Cost]) -> u64 {
    costs.iter().fold(0, |unit, cost| gcd(unit, cost.divisor())).max(1)
}

/// The costs of every sample in every phase, in a unit that all phases share. The sum over all phases is limited as in
/// [`Costs::of`].
pub fn phase_costs(costs: &[Cost], lengths: &[Vec<u64>]) -> Result<(Vec<Vec<u64>>, u64)> {
    let unit = phase_unit(costs);
    let phases = costs.iter().zip(lengths);
    let phases: Vec<Vec<u64>> = phases
        .map(|(cost, lengths)| Ok(Costs::with_unit(cost, lengths, unit)?.values))
        .collect::<Result<_>>()?;
    let total: u128 = phases.iter().flatten().map(|cost| u128::from(*cost)).sum();
    if total > u128::from(COST_LIMIT) {
        return Err(Diagnostic::new(
            Code::COST_OVERFLOW,
            format!("the costs of all phases add up to {total}"),
        )
        .because(format!("the sum exceeds 2^62 units of {unit}"))
        .hint("divide the cost coefficients by a common number: only ratios matter to the balance"));
    }
    Ok((phases, unit))
}

fn overflow(index: usize, length: u64, unit: u64) -> Box<Diagnostic> {
    let what = format!("the costs overflow at sample {index} of length {length}");
    Diagnostic::new(Code::COST_OVERFLOW, what)
        .because(format!("the sum of all costs exceeds 2^62 units of {unit}"))
        .hint("divide the cost coefficients by a common number: only ratios matter to the balance")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_polynomial_is_exact_and_divided_by_its_common_factor() {
        let costs = Costs::of(&Cost::polynomial(6, 3, 9), &[1, 10]).unwrap();
        assert_eq!((costs.values, costs.unit), (vec![6, 123], 3));
    }

    #[test]
    fn costs_of_real_models_do_not_overflow() {
        let wan = Cost::polynomial(24_330_000_000, 819_200, 0);
        assert!(Costs::of(&wan, &vec![147_600; 65_536]).is_ok());
    }

    #[test]
    fn an_overflow_names_the_sample_and_its_length() {
        let error = Costs::of(&Cost::polynomial(1, 1, 0), &[5, u64::MAX]).unwrap_err();
        assert!(error.message.contains("sample 1 of length 18446744073709551615"), "{error}");
    }

    #[test]
    fn a_table_interpolates_and_prolongs() {
        let table = Cost::Table(Table::new(vec![(10, 100), (20, 300)]).unwrap());
        let at: Vec<_> = [5, 10, 15, 20, 30].map(|length| table.at(length).unwrap()).to_vec();
        assert_eq!(at, [50, 100, 200, 300, 500]);
        assert!(Table::new(vec![(10, 5), (20, 4)]).is_err());
        assert!(Table::new(vec![]).is_err());
    }
}
