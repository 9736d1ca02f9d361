//! From what calls of an operator took to the coefficients that tell others: the least squares of relative errors over coefficients
//! that are not negative.

use crate::{Amounts, Device, Fit};

/// What the rates of a device say of operators: calls of sizes that were not measured tend to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Rates {
    /// Nanoseconds of an operation on hardly any data.
    pub operation_ns: f64,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Floating-point operations a second of products in the element type of the calls, where that is known.
    pub flops: Option<f64>,
    /// The same of the element type that is the slowest.
    pub least_flops: f64,
}

impl Device {
    /// Its rates for an element type.
    pub fn rates(&self, dtype: &str) -> Rates {
        Rates {
            operation_ns: self.operation_ns,
            bandwidth: self.memory_bandwidth,
            flops: self.matmul_flops.get(dtype).copied(),
            least_flops: self.matmul_flops.values().copied().fold(f64::INFINITY, f64::min),
        }
    }
}

/// Sizes of caches that are tried, in bytes; 0 where a byte takes as long in any amount.
const CACHES: [u64; 5] = [0, 1 << 18, 1 << 20, 1 << 22, 1 << 24];
/// By how much a coefficient more must make the error smaller.
const WORTH: f64 = 0.95;
/// The mean square of relative errors below which only rounding is left.
const EXACT: f64 = 1e-12;
/// Measured sizes that are apart by less than this factor say little of others: a smaller and a larger call are supposed then.
const RANGE: u64 = 16;
/// How much a supposed call counts beside a measured one.
const SUPPOSED: f64 = 0.1;
/// The larger one is so many times as large, and has so many bytes at least.
const FAR: f64 = 64.0;
const LARGE: f64 = (1 << 26) as f64;
/// How many times as long as one on hardly any data a call takes whose time is that of its data.
const BY_DATA: f64 = 5.0;
/// How much worse coefficients may tell what was measured that are right for larger calls.
const AS_GOOD: f64 = 2.0;
/// The part of a device's rate of products from which on a call is held up by its products.
const NEAR: f64 = 0.5;
/// How small what is left of a column may be, beside the column, until it is a sum of others.
const DEPENDENT: f64 = 1e-10;

/// Start, floating-point operations, bytes, bytes beyond a cache, tensors.
const COEFFICIENTS: usize = 5;

/// A call and the nanoseconds that it takes.
type Timed = (Amounts, f64);

impl Fit {
    /// Coefficients for the calls of `rows`, as a description has them, which are kept beside.
    pub fn of(rows: Vec<(f64, u64, usize, f64)>, rates: Rates) -> Self {
        let timed = rows.iter().filter(|row| row.3 > 0.0);
        let timed: Vec<Timed> =
            timed.map(|&(flops, bytes, tensors, nanos)| (Amounts { flops, bytes, tensors }, nanos)).collect();
        if timed.is_empty() {
            return Self { measured: rows, ..Self::default() };
        }
        let (free, left) = fitted(&timed, rates, 0.0);
        let bounded = least_flop(&timed, rates.flops).map(|least| fitted(&timed, rates, least));
        let fit = bounded.filter(|(_, bounded)| *bounded <= left * AS_GOOD).map_or(free, |(fit, _)| fit);
        Self { measured: rows, ..fit }
    }
}

/// The coefficients that tell calls best, of which a floating-point operation takes `least` nanoseconds at least, and the mean square of the
/// relative errors that they leave.
fn fitted(timed: &[Timed], rates: Rates, least: f64) -> (Fit, f64) {
    let supposed = supposed(timed, rates);
    let weighed = || {
        let supposed = supposed.iter().map(|call| (call, SUPPOSED));
        timed.iter().map(|call| (call, 1.0)).chain(supposed)
    };
    let counts =
        |column: usize| column != 4 || timed.iter().any(|(one, _)| one.tensors != timed[0].0.tensors);
    let mut best: Option<(Fit, f64)> = None;
    for cache in CACHES {
        let columns = |amounts: &Amounts| -> [f64; COEFFICIENTS] {
            let beyond = if cache > 0 { amounts.bytes.saturating_sub(cache) } else { 0 };
            let all = [1.0, amounts.flops, amounts.bytes as f64, beyond as f64, amounts.tensors as f64];
            std::array::from_fn(|column| if counts(column) { all[column] } else { 0.0 })
        };
        let relative = |((amounts, nanos), weight): (&Timed, f64)| {
            (
                columns(amounts).map(|x| x * weight / nanos).to_vec(),
                weight * (1.0 - amounts.flops * least / nanos),
            )
        };
        let (rows, wanted): (Vec<Vec<f64>>, Vec<f64>) = weighed().map(relative).unzip();
        let (mut found, left) = least_squares(&rows, &wanted);
        if best.as_ref().is_some_and(|(_, least)| left >= least * WORTH) {
            continue;
        }
        found[1] += least;
        let told =
            |amounts: &Amounts| -> f64 { columns(amounts).iter().zip(&found).map(|(x, c)| x * c).sum() };
        let wrong = timed.iter().map(|(amounts, nanos)| (told(amounts) / nanos - 1.0).abs());
        let [start, flop, byte, uncached, tensor] = std::array::from_fn(|column| found[column]);
        let fit = Fit {
            start_ns: digits(start),
            flop_ps: digits(digits(flop) * 1e3),
            byte_ps: digits(digits(byte) * 1e3),
            cached_bytes: if uncached > 0.0 { cache } else { 0 },
            uncached_byte_ps: digits(digits(uncached) * 1e3),
            tensor_ps: digits(digits(tensor) * 1e3),
            error: (median(wrong.collect()) * 1e3).round() / 1e3,
            measured: Vec::new(),
        };
        best = Some((fit, left));
    }
    best.expect("some cache is tried first")
}

/// Four digits of a number, which is what files hold.
fn digits(number: f64) -> f64 {
    format!("{number:.3e}").parse().unwrap_or(number)
}

/// The middle of numbers, or what is between the two in the middle; 0 of none.
pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len() / 2;
    match numbers.len() % 2 {
        _ if numbers.is_empty() => 0.0,
        0 => f64::midpoint(numbers[middle - 1], numbers[middle]),
        _ => numbers[middle],
    }
}

/// The least nanoseconds of a floating-point operation in any call, where some call comes near to a device's rate of products: that of
/// the fastest call. Calls that were measured may be told well by their bytes alone, and larger ones would be much too fast.
fn least_flop(timed: &[Timed], rate: Option<f64>) -> Option<f64> {
    let fastest = timed.iter().map(|(amounts, nanos)| amounts.flops / nanos).fold(0.0, f64::max);
    rate.filter(|rate| fastest * 1e9 > NEAR * rate).map(|_| 1.0 / fastest)
}

/// Calls much smaller and much larger than those that were measured, where these are nearly of one size.
///
/// A call that takes much longer than an operation on hardly any data takes that long for its data; another for its start.
fn supposed(timed: &[Timed], rates: Rates) -> Vec<Timed> {
    let sizes = || timed.iter().map(|(amounts, _)| amounts.bytes.max(1));
    let largest = timed.iter().max_by_key(|(amounts, _)| amounts.bytes);
    let (Some(least), Some(most), Some((call, _))) = (sizes().min(), sizes().max(), largest) else {
        return Vec::new();
    };
    if most >= RANGE * least {
        return Vec::new();
    }
    // Of several of the largest size the first counts.
    let (call, nanos) = timed.iter().find(|(amounts, _)| amounts.bytes == call.bytes).expect("it is there");
    let factor = FAR.max(LARGE / call.bytes.max(1) as f64);
    let small = Amounts { flops: 0.0, bytes: 0, tensors: call.tensors };
    let bytes = (call.bytes as f64 * factor) as u64;
    let large = Amounts { flops: call.flops * factor, bytes, tensors: call.tensors };
    let Rates { operation_ns, bandwidth, flops, least_flops } = rates;
    if *nanos > BY_DATA * operation_ns {
        return vec![(small, operation_ns), (large, (nanos - operation_ns) * factor)];
    }
    let products = large.flops / flops.unwrap_or(least_flops);
    let seconds = (bytes as f64 / bandwidth).max(products);
    vec![(small, *nanos), (large, operation_ns + seconds * 1e9)]
}

/// Coefficients, none negative, with which the columns of some rows come nearest to what is wanted, and the mean square of what is left; as
/// few as serve.
pub fn least_squares(rows: &[Vec<f64>], wanted: &[f64]) -> (Vec<f64>, f64) {
    let count = rows.first().map_or(0, Vec::len);
    let scale: Vec<f64> =
        (0..count).map(|column| rows.iter().map(|row| row[column]).fold(0.0, f64::max)).collect();
    let square = |left: &[f64]| left.iter().map(|x| x * x).sum::<f64>() / left.len() as f64;
    let (mut found, mut least) = (vec![0.0; count], square(wanted));
    let used: Vec<usize> = (0..count).filter(|column| scale[*column] > 0.0).collect();
    for chosen in subsets(&used, rows.len().min(count)) {
        let columns: Vec<Vec<f64>> = chosen
            .iter()
            .map(|&column| rows.iter().map(|row| row[column] / scale[column]).collect())
            .collect();
        let Some((some, left)) = solved(&columns, wanted) else { continue };
        let error = square(&left);
        if least > EXACT && error < least * WORTH && some.iter().all(|coefficient| *coefficient >= 0.0) {
            found = vec![0.0; count];
            chosen.iter().zip(some).for_each(|(&column, value)| found[column] = value / scale[column]);
            least = error;
        }
    }
    (found, least)
}

/// All sets of one and up to `most` of some numbers: small sets first, then by their members.
fn subsets(of: &[usize], most: usize) -> Vec<Vec<usize>> {
    let members =
        |mask: u32| of.iter().enumerate().filter(move |(at, _)| mask >> at & 1 == 1).map(|(_, one)| *one);
    let all = (1..1_u32 << of.len()).map(|mask| members(mask).collect::<Vec<usize>>());
    let mut all: Vec<Vec<usize>> = all.filter(|set| set.len() <= most).collect();
    all.sort_by_key(|set| (set.len(), set.clone()));
    all
}

/// The least squares of some columns, and what they leave; nothing where one is a sum of others.
fn solved(columns: &[Vec<f64>], wanted: &[f64]) -> Option<(Vec<f64>, Vec<f64>)> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let take =
        |from: &mut [f64], share: f64, of: &[f64]| from.iter_mut().zip(of).for_each(|(x, y)| *x -= share * y);
    let count = columns.len();
    let (mut bases, mut upper): (Vec<Vec<f64>>, Vec<Vec<f64>>) = (Vec::new(), vec![vec![0.0; count]; count]);
    for (at, column) in columns.iter().enumerate() {
        let mut rest = column.clone();
        // Twice, against what rounding leaves of the others.
        for _ in 0..2 {
            for (earlier, basis) in bases.iter().enumerate() {
                let share = dot(basis, &rest);
                upper[earlier][at] += share;
                take(&mut rest, share, basis);
            }
        }
        let length = dot(&rest, &rest).sqrt();
        if length <= DEPENDENT * dot(column, column).sqrt() {
            return None;
        }
        upper[at][at] = length;
        bases.push(rest.into_iter().map(|x| x / length).collect());
    }
    let (mut left, mut shares) = (wanted.to_vec(), Vec::with_capacity(count));
    for basis in &bases {
        let share = dot(basis, &left);
        take(&mut left, share, basis);
        shares.push(share);
    }
    let mut found = vec![0.0; count];
    for at in (0..count).rev() {
        let behind: f64 = (at + 1..count).map(|other| upper[at][other] * found[other]).sum();
        found[at] = (shares[at] - behind) / upper[at][at];
    }
    Some((found, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(flops: Option<f64>) -> Rates {
        Rates { operation_ns: 500.0, bandwidth: 1e10, flops, least_flops: 1e11 }
    }

    fn rows(of: impl Fn(f64, u64) -> f64) -> Vec<(f64, u64, usize, f64)> {
        let sizes = (8..22).step_by(2).flat_map(|power| [1_u64 << power, 3 << power]);
        sizes
            .enumerate()
            .map(|(at, bytes)| ((at % 5) as f64 * 1e5, bytes, 3, of((at % 5) as f64 * 1e5, bytes)))
            .collect()
    }

    #[test]
    fn coefficients_that_made_rows_are_found_again() {
        let beyond = |bytes: u64| bytes.saturating_sub(1 << 18) as f64;
        let fit = Fit::of(rows(|f, b| 700.0 + 0.01 * f + 0.02 * b as f64 + 0.05 * beyond(b)), rates(None));
        let found = [fit.start_ns, fit.flop_ps, fit.byte_ps, fit.uncached_byte_ps, fit.tensor_ps];
        assert_eq!((found, fit.cached_bytes), ([700.0, 10.0, 20.0, 50.0, 0.0], 1 << 18));
        assert!(fit.error < 1e-9, "{fit:?}");
    }

    #[test]
    fn rows_of_one_size_tend_to_the_rates() {
        let fit = Fit::of(vec![(0.0, 1 << 20, 2, 110_000.0)], rates(Some(1e11)));
        let none = Amounts { flops: 0.0, bytes: 0, tensors: 2 };
        let many = Amounts { flops: 0.0, bytes: 1 << 26, tensors: 2 };
        assert!((fit.picos(none) / 1e3 - 500.0).abs() < 50.0, "{fit:?}");
        assert!((fit.picos(many) / 1e3 / (64.0 * 109_500.0 + 500.0) - 1.0).abs() < 0.05, "{fit:?}");
    }

    #[test]
    fn calls_that_take_nothing_leave_no_coefficients() {
        let rows = vec![(0.0, 64, 2, 0.0)];
        assert_eq!(Fit::of(rows.clone(), rates(None)), Fit { measured: rows, ..Fit::default() });
    }
}
