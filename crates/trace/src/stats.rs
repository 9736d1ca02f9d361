//! Statistics as data frames define them: sample deviation, quartiles by linear interpolation, halves rounded to even.

use serde::Serialize;

/// Microseconds of nanoseconds.
pub fn micros(nanos: i64) -> f64 {
    nanos as f64 / 1000.0
}

/// `value` with `digits` decimals, halves to even.
pub fn round(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round_ties_even() / scale
}

/// `part` of `whole` in per cent with `digits` decimals.
pub fn percent(part: f64, whole: f64, digits: i32) -> f64 {
    round(100.0 * part / whole, digits)
}

/// Count, sum, extremes and the exact sum of squares of integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// How many.
    pub count: u64,
    /// Their sum.
    pub sum: i64,
    /// The greatest.
    pub max: i64,
    /// The least.
    pub min: i64,
    squares: i128,
}

impl Moments {
    /// Adds a value.
    pub fn add(&mut self, value: i64) {
        (self.max, self.min) =
            if self.count == 0 { (value, value) } else { (self.max.max(value), self.min.min(value)) };
        self.count += 1;
        self.sum += value;
        self.squares += i128::from(value) * i128::from(value);
    }

    /// Of all `values`.
    pub fn of(values: impl IntoIterator<Item = i64>) -> Self {
        let mut moments = Self::default();
        values.into_iter().for_each(|value| moments.add(value));
        moments
    }

    /// The mean; NaN of nothing.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// The sample standard deviation; NaN of fewer than two values.
    pub fn deviation(&self) -> f64 {
        let count = i128::from(self.count);
        let spread = self.squares * count - i128::from(self.sum) * i128::from(self.sum);
        if count < 2 {
            return f64::NAN;
        }
        (spread as f64 / (count * (count - 1)) as f64).sqrt()
    }
}

/// What a data frame's `describe` says of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Describe {
    /// How many values.
    pub count: f64,
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation.
    pub std: f64,
    /// Least.
    pub min: f64,
    /// First quartile.
    #[serde(rename = "25%")]
    pub q25: f64,
    /// Median.
    #[serde(rename = "50%")]
    pub q50: f64,
    /// Third quartile.
    #[serde(rename = "75%")]
    pub q75: f64,
    /// Greatest.
    pub max: f64,
}

impl Describe {
    /// Of `values`, which are sorted in place. All but the count are NaN of nothing.
    pub fn of(values: &mut [f64]) -> Self {
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let spread: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let std = if values.len() < 2 { f64::NAN } else { (spread / (count - 1.0)).sqrt() };
        let at = |q| quantile(values, q);
        Self { count, mean, std, min: at(0.0), q25: at(0.25), q50: at(0.5), q75: at(0.75), max: at(1.0) }
    }

    /// All with `digits` decimals.
    #[must_use]
    pub fn rounded(self, digits: i32) -> Self {
        let r = |value| round(value, digits);
        Self {
            count: self.count,
            mean: r(self.mean),
            std: r(self.std),
            min: r(self.min),
            q25: r(self.q25),
            q50: r(self.q50),
            q75: r(self.q75),
            max: r(self.max),
        }
    }
}

/// The `q`-quantile of sorted values by linear interpolation; NaN of nothing.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let position = last as f64 * q;
    let below = position.floor() as usize;
    let (low, high) = (sorted[below], sorted[(below + 1).min(last)]);
    low + (high - low) * (position - below as f64)
}

/// The median of integers, which are sorted in place, and the median of the distances from it.
pub fn median_and_deviation(values: &mut [i64]) -> (i64, i64) {
    let middle = median(values);
    let mut distances: Vec<i64> = values.iter().map(|value| (value - middle).abs()).collect();
    (middle, median(&mut distances))
}

/// The median of integers, which are sorted in place; 0 of nothing.
pub fn median(values: &mut [i64]) -> i64 {
    values.sort_unstable();
    match values.len() {
        0 => 0,
        n if n % 2 == 1 => values[n / 2],
        n => i64::midpoint(values[n / 2 - 1], values[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_interpolate_and_the_deviation_is_that_of_a_sample() {
        let description = Describe::of(&mut [4.0, 1.0, 3.0, 2.0]);
        assert_eq!((description.q25, description.q50, description.q75), (1.75, 2.5, 3.25));
        let moments = Moments::of([1, 2, 3, 4]);
        assert!((moments.deviation() - description.std).abs() < 1e-12);
        assert!(Moments::of([1]).deviation().is_nan());
    }

    #[test]
    fn the_median_deviation_ignores_one_outlier() {
        assert_eq!(median_and_deviation(&mut [10, 11, 9, 10, 1000]), (10, 1));
    }
}
