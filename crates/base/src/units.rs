//! Units as types, so that a time is never added to a size.

use std::{
    fmt,
    iter::Sum,
    ops::{Add, AddAssign, Sub},
};

use serde::{Deserialize, Serialize};

use crate::{Code, Diagnostic, Result};

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

impl Bytes {
    /// An amount as people write it: `4GiB`, `500 MB`, `1e9`. Units of 1000 and, with an `i`, of 1024; upper or lower case.
    pub fn parse(text: &str) -> Result<Self> {
        let trimmed = text.trim();
        let digits = |at: char| at.is_ascii_digit() || at == '.' || at == '_';
        // An `e` is an exponent where a digit follows it.
        let end = |from: usize| trimmed[from..].find(|at| !digits(at)).map_or(trimmed.len(), |at| from + at);
        let mantissa = end(0);
        let exponent =
            trimmed[mantissa..].strip_prefix(['e', 'E']).is_some_and(|rest| rest.starts_with(digits));
        let (number, unit) = trimmed.split_at(if exponent { end(mantissa + 1) } else { mantissa });
        let scale = scale_of(unit.trim());
        let number = number.replace('_', "").parse::<f64>().ok().filter(|number| *number > 0.0);
        let bytes = number.zip(scale).map(|(number, scale)| (number * scale).round());
        bytes.filter(|bytes| *bytes < u64::MAX as f64).map(|bytes| Self(bytes as u64)).ok_or_else(|| {
            Diagnostic::new(Code::UNKNOWN_KEY, format!("`{text}` is no amount of memory"))
                .hint("a number of bytes above 0, or a text such as `4GiB` or `500MB`")
        })
    }
}

/// How many bytes a unit has.
fn scale_of(unit: &str) -> Option<f64> {
    let unit = unit.to_ascii_uppercase();
    let Some(prefix) = unit.strip_suffix('B') else { return unit.is_empty().then_some(1.0) };
    let (prefix, step) = prefix.strip_suffix('I').map_or((prefix, 1000_u32), |prefix| (prefix, 1024));
    let power = ["", "K", "M", "G", "T"].iter().position(|known| *known == prefix)?;
    (power > 0 || step == 1000).then(|| f64::from(step).powi(power as i32))
}

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

    #[test]
    fn amounts_of_memory_are_read_as_people_write_them() {
        let amounts = [
            ("1000", 1000),
            ("1e9", 1_000_000_000),
            ("4GiB", 4 << 30),
            ("4 gib", 4 << 30),
            (" 1.5MiB ", 3 << 19),
            ("500MB", 500_000_000),
            ("1e3 kB", 1_000_000),
            ("1_000 B", 1000),
            ("1TiB", 1 << 40),
        ];
        for (text, bytes) in amounts {
            assert_eq!(Bytes::parse(text).ok(), Some(Bytes(bytes)), "{text}");
        }
        for text in [
            "", "0", "-1", "GiB", "-4GiB", "4 4", "4 GiBi", "80%", "1e", "1E+3", "e9", "1..2", "iB", "4iB",
            "1e99", "²",
        ] {
            let error = Bytes::parse(text).expect_err(text);
            assert_eq!(error.code, Code::UNKNOWN_KEY, "{text}");
        }
    }
}
