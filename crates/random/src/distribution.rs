//! Distributions: what a word becomes.

use crate::philox::{GROUP, Words};

/// What is drawn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Distribution {
    /// 1 with probability `p`, else 0.
    Bernoulli {
        /// The probability.
        p: f64,
    },
    /// From `low` on, below `high`.
    Uniform {
        /// The least number.
        low: f32,
        /// What every number is below.
        high: f32,
        /// How many bits a number between 0 and 1 has.
        digits: u32,
    },
    /// The normal distribution.
    Normal {
        /// The mean.
        mean: f32,
        /// The standard deviation.
        std: f32,
    },
    /// The exponential distribution.
    Exponential {
        /// One over the mean.
        rate: f32,
    },
    /// The Cauchy distribution.
    Cauchy {
        /// The median.
        median: f32,
        /// The scale.
        sigma: f32,
    },
    /// How often is tried until the first success.
    Geometric {
        /// The probability of one.
        p: f64,
    },
    /// Whole numbers from `low` on, below `high`, at most 2^32 of them.
    Integers {
        /// The least number.
        low: i64,
        /// What every number is below.
        high: i64,
    },
}

impl Distribution {
    /// The distribution of a name with its two parameters, as the operation `unisono::random_at` has them.
    pub fn named(name: &str, a: f64, b: f64, digits: u32) -> Option<Self> {
        Some(match name {
            "bernoulli" => Self::Bernoulli { p: a },
            "uniform" => Self::Uniform { low: a as f32, high: b as f32, digits: digits.clamp(1, 24) },
            "normal" => Self::Normal { mean: a as f32, std: b as f32 },
            "exponential" => Self::Exponential { rate: a as f32 },
            "cauchy" => Self::Cauchy { median: a as f32, sigma: b as f32 },
            "geometric" => Self::Geometric { p: a },
            "integers" => Self::Integers { low: a as i64, high: b as i64 },
            _ => return None,
        })
    }
}

/// 1 where a word is below `threshold`, else 0; the threshold is up to 2^32.
#[inline(always)]
pub(crate) fn bernoulli(words: &Words, threshold: u64) -> [f32; GROUP] {
    let (last, never) = (threshold.wrapping_sub(1) as u32, threshold == 0);
    let all = f32::from(u8::from(!never));
    let mut made = [0.0; GROUP];
    for i in 0..GROUP {
        made[i] = if words[i] <= last { all } else { 0.0 };
    }
    made
}

/// The words below which a draw of probability `p` succeeds.
pub fn threshold(p: f64) -> u64 {
    (p.clamp(0.0, 1.0) * 4_294_967_296.0).round() as u64
}

#[inline(always)]
pub(crate) fn uniform(words: &Words, low: f32, high: f32, digits: u32) -> [f32; GROUP] {
    let (unit, width) = (1.0 / (1_u32 << digits) as f32, high - low);
    let mut made = [0.0; GROUP];
    for i in 0..GROUP {
        // Below 2^24, which as a signed word converts in one instruction.
        let number = (words[i] >> (32 - digits)).cast_signed() as f32 * unit * width + low;
        // A sum may round up to what it is to be below.
        made[i] = if number >= high { low } else { number };
    }
    made
}

/// By Box and Muller: the first half of the words are radii, the second half angles.
#[inline(always)]
pub(crate) fn normal(words: &Words, mean: f32, std: f32) -> [f32; GROUP] {
    const HALF: usize = GROUP / 2;
    let mut made = [0.0; GROUP];
    for i in 0..HALF {
        let radius = (-2.0 * log_of_unit(words[i])).sqrt() * std;
        let (sine, cosine) = sine_and_cosine(words[HALF + i]);
        made[i] = radius * cosine + mean;
        made[HALF + i] = radius * sine + mean;
    }
    made
}

#[inline(always)]
pub(crate) fn exponential(words: &Words, rate: f32) -> [f32; GROUP] {
    let mut made = [0.0; GROUP];
    for i in 0..GROUP {
        made[i] = -log_of_unit(words[i]) / rate;
    }
    made
}

/// The tangent of an angle around the circle.
#[inline(always)]
pub(crate) fn cauchy(words: &Words, median: f32, sigma: f32) -> [f32; GROUP] {
    let mut made = [0.0; GROUP];
    for i in 0..GROUP {
        let (sine, cosine) = sine_and_cosine(words[i]);
        let cosine = if cosine == 0.0 { f32::MIN_POSITIVE } else { cosine };
        made[i] = sine / cosine * sigma + median;
    }
    made
}

/// One over the logarithm of the probability of a failure.
pub fn per_log(p: f64) -> f32 {
    (1.0 / (-p).ln_1p()) as f32
}

/// `per_log` is one over the logarithm of the probability of a failure.
#[inline(always)]
pub(crate) fn geometric(words: &Words, per_log: f32) -> [f32; GROUP] {
    let mut made = [0.0; GROUP];
    for i in 0..GROUP {
        made[i] = (log_of_unit(words[i]) * per_log).ceil().max(1.0);
    }
    made
}

/// The natural logarithm of a number above 0, up to 1, of 24 bits of a word. Coefficients: Cephes, `logf`.
#[inline(always)]
fn log_of_unit(word: u32) -> f32 {
    const SQRT_HALF: f32 = std::f32::consts::FRAC_1_SQRT_2;
    let number = ((word >> 8) + 1).cast_signed() as f32 * (1.0 / 16_777_216.0);
    let bits = number.to_bits();
    let mantissa = f32::from_bits((bits & 0x007f_ffff) | 0x3f00_0000);
    let exponent = (bits >> 23).cast_signed() - 126;
    let is_low = mantissa < SQRT_HALF;
    let exponent = (exponent - i32::from(is_low)) as f32;
    let x = (if is_low { mantissa + mantissa } else { mantissa }) - 1.0;
    let square = x * x;
    let mut sum = 7.037_683_6e-2;
    for coefficient in [
        -1.151_461e-1_f32,
        1.167_699_87e-1,
        -1.242_014_1e-1,
        1.424_932_3e-1,
        -1.666_805_7e-1,
        2.000_071_4e-1,
        -2.499_999_4e-1,
        3.333_333e-1,
    ] {
        sum = sum * x + coefficient;
    }
    let rest = sum * x * square + exponent * -2.121_944_4e-4 - 0.5 * square;
    x + rest + exponent * 0.693_359_4
}

/// Sine and cosine of an angle around the circle. Two bits of the word are the quarter, the others an angle of up to an eighth of the circle
/// to either side of its start. Coefficients: Cephes, `sinf` and `cosf`.
#[inline(always)]
fn sine_and_cosine(word: u32) -> (f32, f32) {
    const EIGHTH: f32 = std::f32::consts::FRAC_PI_4 / 2_147_483_648.0;
    let angle = (word << 2).cast_signed() as f32 * EIGHTH;
    let square = angle * angle;
    let sine = ((-1.951_529_6e-4 * square + 8.332_161e-3) * square - 1.666_665_5e-1) * square * angle + angle;
    let cosine = ((2.443_315_7e-5 * square - 1.388_731_6e-3) * square + 4.166_664_6e-2) * square * square
        - 0.5 * square
        + 1.0;
    let quarter = word >> 30;
    let (sine, cosine) = if quarter & 1 == 1 { (cosine, -sine) } else { (sine, cosine) };
    if quarter & 2 == 2 { (-sine, -cosine) } else { (sine, cosine) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words() -> impl Iterator<Item = u32> {
        (0..100_000_u32).map(|i| i.wrapping_mul(2_654_435_769)).chain([0, u32::MAX, 1 << 31, (1 << 30) - 1])
    }

    #[test]
    fn logarithms_are_those_of_the_standard_library() {
        for word in words() {
            let exact = ((f64::from(word >> 8) + 1.0) / 16_777_216.0).ln();
            assert!((f64::from(log_of_unit(word)) - exact).abs() <= 2e-7 * exact.abs().max(1e-7), "{word}");
        }
    }

    #[test]
    fn angles_go_around_the_circle() {
        for word in words() {
            let side = f64::from((word << 2).cast_signed()) / 4_294_967_296.0;
            let angle = (f64::from(word >> 30) + side) * std::f64::consts::FRAC_PI_2;
            let (sine, cosine) = sine_and_cosine(word);
            assert!((f64::from(sine) - angle.sin()).abs() < 2e-7, "{word}");
            assert!((f64::from(cosine) - angle.cos()).abs() < 2e-7, "{word}");
        }
    }
}
