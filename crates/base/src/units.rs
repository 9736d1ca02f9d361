//! Units as types, so that a time is never added to a size.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Sub},
};

use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$meta:meta])* $name:ident, $repr:ty) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $repr);

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }
        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }
        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self::default(), Add::add)
            }
        }
    };
}

unit!(
    /// A size in bytes.
    Bytes,
    u64
);
unit!(
    /// A time or a duration in nanoseconds.
    Nanos,
    i64
);
unit!(
    /// A number of floating-point operations (a multiply-add counts two).
    Flops,
    u64
);

/// Writes `value` with three significant digits and the largest fitting step of `steps`.
fn scaled(f: &mut fmt::Formatter<'_>, value: f64, steps: &[(f64, &str)]) -> fmt::Result {
    let (scale, suffix) =
        steps.iter().rev().find(|(scale, _)| value.abs() >= *scale).copied().unwrap_or(steps[0]);
    let scaled = value / scale;
    let digits = match scaled.abs() {
        x if x >= 100.0 || scaled.fract() == 0.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    };
    f.pad(&format!("{scaled:.digits$} {suffix}"))
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const K: f64 = 1024.0;
        let steps = [(1.0, "B"), (K, "KiB"), (K * K, "MiB"), (K * K * K, "GiB"), (K * K * K * K, "TiB")];
        scaled(f, self.0 as f64, &steps)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        scaled(f, self.0 as f64, &[(1.0, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")])
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = [(1.0, "FLOP"), (1e3, "kFLOP"), (1e6, "MFLOP"), (1e9, "GFLOP"), (1e12, "TFLOP")];
        scaled(f, self.0 as f64, &steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_print_with_three_digits_and_a_fitting_step() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(1536).to_string(), "1.50 KiB");
        assert_eq!(Bytes(15 << 30).to_string(), "15 GiB");
        assert_eq!(Nanos(-1_234_567).to_string(), "-1.23 ms");
        assert_eq!(Flops(123_456).to_string(), "123 kFLOP");
    }
}
