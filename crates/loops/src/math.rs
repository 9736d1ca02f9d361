//! The functions of kernels, each written once over [`Math`]: the interpreter runs them on numbers, a compiler on registers, and both
//! give the same bits. Every step of them is one correctly rounded operation.

/// What functions are made of. A mask is a word of all ones or all zeros; a word is a number's bits.
#[allow(missing_docs, reason = "the names are those of the operations")]
pub trait Math {
    /// A number for each point, or a mask.
    type V: Copy;
    /// A number, by its bits.
    fn bits(&mut self, bits: u32) -> Self::V;
    fn add(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn div(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(&mut self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    fn sqrt(&mut self, a: Self::V) -> Self::V;
    /// `a` where it is larger, else `b`.
    fn max(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `a` where it is smaller, else `b`.
    fn min(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn and(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn or(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn xor(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// The sum of words as integers.
    fn add_words(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// The difference of words as integers.
    fn sub_words(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// A word moved right by some bits, zeros moving in.
    fn shift_right(&mut self, a: Self::V, bits: u8) -> Self::V;
    /// The number that a word is as a signed integer.
    fn number_of_word(&mut self, a: Self::V) -> Self::V;
    /// `a` times two to the power of `n`, which is a whole number from -252 to 252; `a` lies between 0.5 and 2, and `shifted` is `n` added to
    /// [`ROUNDER`].
    fn scale(&mut self, a: Self::V, n: Self::V, shifted: Self::V) -> Self::V;
    fn less(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn less_equal(&mut self, a: Self::V, b: Self::V) -> Self::V;
    fn equal(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// Whether one of both is NaN.
    fn unordered(&mut self, a: Self::V, b: Self::V) -> Self::V;
    /// `yes` where the mask holds, else `no`.
    fn select(&mut self, mask: Self::V, yes: Self::V, no: Self::V) -> Self::V;

    /// A number.
    #[inline(always)]
    fn number(&mut self, number: f32) -> Self::V {
        self.bits(number.to_bits())
    }
}

/// Added to a number below 2^22, leaves the whole number next to it in the lowest bits.
pub const ROUNDER: f32 = 12_582_912.0;

const SIGN: u32 = 0x8000_0000;

/// The negative.
#[inline(always)]
pub fn neg<M: Math>(m: &mut M, x: M::V) -> M::V {
    let sign = m.bits(SIGN);
    m.xor(x, sign)
}

/// The absolute value.
#[inline(always)]
pub fn abs<M: Math>(m: &mut M, x: M::V) -> M::V {
    let rest = m.bits(!SIGN);
    m.and(x, rest)
}

/// `magnitude`, which is not negative, with the sign of `sign`.
#[inline(always)]
fn with_sign<M: Math>(m: &mut M, magnitude: M::V, sign: M::V) -> M::V {
    let bit = m.bits(SIGN);
    let sign = m.and(sign, bit);
    m.or(magnitude, sign)
}

/// The polynomial of `coefficients`, the highest power first.
#[inline(always)]
fn polynomial<M: Math>(m: &mut M, x: M::V, coefficients: &[f32]) -> M::V {
    let mut sum = m.number(coefficients[0]);
    for coefficient in &coefficients[1..] {
        let coefficient = m.number(*coefficient);
        sum = m.fma(sum, x, coefficient);
    }
    sum
}

/// The exponential: `2^n * exp(f)` with `f` between -ln(2)/2 and ln(2)/2. What gives 0 is not computed: masks in softmax make much of it, and some
/// processors take a hundred times as long for a product that is too small.
#[inline(always)]
pub fn exp<M: Math>(m: &mut M, x: M::V) -> M::V {
    let (low, zero) = (m.number(LOWEST_EXPONENT), m.number(0.0));
    let is_zero = m.less(x, low);
    let x = m.select(is_zero, zero, x);
    let power = exp_above(m, x);
    m.select(is_zero, zero, power)
}

/// Below, the exponential is 0.
const LOWEST_EXPONENT: f32 = -104.0;

/// The same where little is so far below 0.
#[inline(always)]
fn exp_within<M: Math>(m: &mut M, x: M::V) -> M::V {
    // A NaN passes, being the second operand.
    let low = m.number(LOWEST_EXPONENT);
    let x = m.max(low, x);
    exp_above(m, x)
}

/// The exponential of a number that is no less than the lowest, or NaN.
#[inline(always)]
fn exp_above<M: Math>(m: &mut M, x: M::V) -> M::V {
    // Beyond, the result is infinite. A NaN passes, being the second operand.
    let high = m.number(89.0);
    let x = m.min(high, x);
    let Power { of_rest, n, shifted } = power(m, x);
    m.scale(of_rest, n, shifted)
}

/// An exponential as `2^n` times that of the rest, which lies between 0.7 and 1.5.
pub struct Power<V> {
    /// The exponential of the rest.
    pub of_rest: V,
    /// The whole number `n`.
    pub n: V,
    /// `n` added to [`ROUNDER`].
    pub shifted: V,
}

/// The exponential of a number between -104 and 89, or NaN, in two factors.
#[inline(always)]
pub fn power<M: Math>(m: &mut M, x: M::V) -> Power<M::V> {
    let (rounder, per_ln2) = (m.number(ROUNDER), m.number(std::f32::consts::LOG2_E));
    let shifted = m.fma(x, per_ln2, rounder);
    let n = m.sub(shifted, rounder);
    let (high, low) = (m.number(-6.931_457_5e-1), m.number(-1.428_606_8e-6));
    let f = m.fma(n, high, x);
    let f = m.fma(n, low, f);
    let coefficients =
        [1.378_059_4e-3, 8.373_124_5e-3, 4.166_953_6e-2, 1.666_647_2e-1, 4.999_998_5e-1, 1.0, 1.0];
    Power { of_rest: polynomial(m, f, &coefficients), n, shifted }
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
pub fn sigmoid<M: Math>(m: &mut M, x: M::V) -> M::V {
    let x = neg(m, x);
    let power = exp_within(m, x);
    let one = m.number(1.0);
    let sum = m.add(one, power);
    m.div(one, sum)
}

/// The hyperbolic tangent: a polynomial near 0, `1 - 2 / (exp(2x) + 1)` elsewhere.
#[inline(always)]
pub fn tanh<M: Math>(m: &mut M, x: M::V) -> M::V {
    let magnitude = abs(m, x);
    let doubled = m.add(magnitude, magnitude);
    let power = exp_within(m, doubled);
    let (one, two) = (m.number(1.0), m.number(2.0));
    let sum = m.add(power, one);
    let quotient = m.div(two, sum);
    let far = m.sub(one, quotient);
    let square = m.mul(magnitude, magnitude);
    let coefficients = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1];
    let inner = polynomial(m, square, &coefficients);
    let cube = m.mul(square, magnitude);
    let near = m.fma(inner, cube, magnitude);
    let border = m.number(0.625);
    let is_near = m.less(magnitude, border);
    let result = m.select(is_near, near, far);
    with_sign(m, result, x)
}

/// The fourth root of `1 - erf(1 + t)` for `t` between -0.08 and 3, such that its fourth power has the least error.
const ERF_ROOT: [f32; 9] = [
    -2.783_377_6e-5,
    4.367_099_2e-5,
    1.262_088_5e-3,
    -5.391_758_4e-3,
    -3.809_946e-3,
    5.084_330_2e-2,
    4.318_431e-3,
    -4.154_852e-1,
    6.297_695e-1,
];

/// The error function: a polynomial near 0, `1 - p(|x|)^4` elsewhere.
#[inline(always)]
pub fn erf<M: Math>(m: &mut M, x: M::V) -> M::V {
    let magnitude = abs(m, x);
    // Beyond, the result is 1. A NaN passes, being the second operand.
    let (high, one) = (m.number(4.0), m.number(1.0));
    let bounded = m.min(high, magnitude);
    let from_one = m.sub(bounded, one);
    let root = polynomial(m, from_one, &ERF_ROOT);
    let square = m.mul(root, root);
    let negative = neg(m, square);
    let far = m.fma(square, negative, one);
    let far = with_sign(m, far, x);
    let square = m.mul(x, x);
    let inner =
        [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_3e-1, -3.761_253_4e-1, 1.283_791_7e-1];
    let sum = polynomial(m, square, &inner);
    let near = m.fma(sum, x, x);
    let border = m.number(0.927_734_4);
    let is_far = m.less(border, magnitude);
    m.select(is_far, far, near)
}

/// The natural logarithm: `n * ln(2) + log1p(f)` with `f` between -1/3 and 1/3.
#[inline(always)]
pub fn log<M: Math>(m: &mut M, x: M::V) -> M::V {
    let smallest = m.number(f32::MIN_POSITIVE);
    let is_small = m.less(x, smallest);
    let (factor, shift, zero) = (m.number(8_388_608.0), m.number(-23.0), m.number(0.0));
    let scaled = m.mul(x, factor);
    let a = m.select(is_small, scaled, x);
    let start = m.select(is_small, shift, zero);
    let (two_thirds, exponent) = (m.number(0.666_666_7), m.bits(0xff80_0000));
    let word = m.sub_words(a, two_thirds);
    let word = m.and(word, exponent);
    let mantissa = m.sub_words(a, word);
    let count = m.number_of_word(word);
    let unit = m.number(1.192_092_9e-7);
    let n = m.fma(count, unit, start);
    let one = m.number(1.0);
    let f = m.sub(mantissa, one);
    let logarithm = log1p_third(m, f);
    let ln2 = m.number(std::f32::consts::LN_2);
    let result = m.fma(n, ln2, logarithm);
    let (infinity, minus_infinity, nan) =
        (m.number(f32::INFINITY), m.number(f32::NEG_INFINITY), m.number(f32::NAN));
    let is_finite = m.less(x, infinity);
    let other = m.add(x, x);
    let result = m.select(is_finite, result, other);
    let is_negative = m.less(x, zero);
    let result = m.select(is_negative, nan, result);
    let is_zero = m.equal(x, zero);
    m.select(is_zero, minus_infinity, result)
}

/// `log(1 + f)` for `f` between -1/3 and 1/3.
#[inline(always)]
fn log1p_third<M: Math>(m: &mut M, f: M::V) -> M::V {
    let square = m.mul(f, f);
    let even = polynomial(m, square, &[-0.130_310_06, -0.121_483_51, -0.166_846_13, -0.249_996_2]);
    let odd = polynomial(m, square, &[0.140_869_14, 0.139_814_85, 0.200_120_35]);
    let sum = m.fma(odd, f, even);
    let (third, half) = (m.number(0.333_331_97), m.number(-0.5));
    let sum = m.fma(sum, f, third);
    let sum = m.fma(sum, f, half);
    m.fma(sum, square, f)
}

/// The nearest number that a `bf16` holds, ties to even; every NaN becomes the same one.
#[inline(always)]
pub fn round_bf16<M: Math>(m: &mut M, x: M::V) -> M::V {
    let last = m.shift_right(x, 16);
    let (one, half, upper) = (m.bits(1), m.bits(0x7fff), m.bits(0xffff_0000));
    let last = m.and(last, one);
    let sum = m.add_words(x, half);
    let sum = m.add_words(sum, last);
    let rounded = m.and(sum, upper);
    let (is_nan, nan) = (m.unordered(x, x), m.bits(0x7fc0_0000));
    m.select(is_nan, nan, rounded)
}

/// The nearest number that an `f16` holds, ties to even; every NaN becomes the same one.
#[inline(always)]
pub fn round_f16<M: Math>(m: &mut M, x: M::V) -> M::V {
    let magnitude = abs(m, x);
    let last = m.shift_right(magnitude, 13);
    let (one, half, upper) = (m.bits(1), m.bits(0x0fff), m.bits(0xffff_e000));
    let last = m.and(last, one);
    let sum = m.add_words(magnitude, half);
    let sum = m.add_words(sum, last);
    let whole = m.and(sum, upper);
    // Below, numbers are as far apart as `f32` from a half to one.
    let (unit, border) = (m.number(0.5), m.number(6.103_515_6e-5));
    let shifted = m.add(magnitude, unit);
    let small = m.sub(shifted, unit);
    let is_small = m.less(magnitude, border);
    let rounded = m.select(is_small, small, whole);
    let (beyond, infinity) = (m.number(65_536.0), m.number(f32::INFINITY));
    let is_beyond = m.less_equal(beyond, rounded);
    let rounded = m.select(is_beyond, infinity, rounded);
    let rounded = with_sign(m, rounded, x);
    let (is_nan, nan) = (m.unordered(x, x), m.bits(0x7fc0_0000));
    m.select(is_nan, nan, rounded)
}

/// The larger one; NaN where one is NaN.
#[inline(always)]
pub fn maximum<M: Math>(m: &mut M, a: M::V, b: M::V) -> M::V {
    let larger = m.max(a, b);
    let is_nan = m.unordered(a, a);
    m.select(is_nan, a, larger)
}

/// The smaller one; NaN where one is NaN.
#[inline(always)]
pub fn minimum<M: Math>(m: &mut M, a: M::V, b: M::V) -> M::V {
    let smaller = m.min(a, b);
    let is_nan = m.unordered(a, a);
    m.select(is_nan, a, smaller)
}

/// The functions on single numbers.
pub struct Scalar;

#[inline(always)]
fn mask(holds: bool) -> f32 {
    f32::from_bits(if holds { u32::MAX } else { 0 })
}

#[inline(always)]
fn words(a: f32, b: f32, function: impl Fn(u32, u32) -> u32) -> f32 {
    f32::from_bits(function(a.to_bits(), b.to_bits()))
}

impl Math for Scalar {
    type V = f32;
    #[inline(always)]
    fn bits(&mut self, bits: u32) -> f32 {
        f32::from_bits(bits)
    }
    #[inline(always)]
    fn add(&mut self, a: f32, b: f32) -> f32 {
        a + b
    }
    #[inline(always)]
    fn sub(&mut self, a: f32, b: f32) -> f32 {
        a - b
    }
    #[inline(always)]
    fn mul(&mut self, a: f32, b: f32) -> f32 {
        a * b
    }
    #[inline(always)]
    fn div(&mut self, a: f32, b: f32) -> f32 {
        a / b
    }
    #[inline(always)]
    fn fma(&mut self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    #[inline(always)]
    fn sqrt(&mut self, a: f32) -> f32 {
        a.sqrt()
    }
    #[inline(always)]
    fn max(&mut self, a: f32, b: f32) -> f32 {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(&mut self, a: f32, b: f32) -> f32 {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn and(&mut self, a: f32, b: f32) -> f32 {
        words(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or(&mut self, a: f32, b: f32) -> f32 {
        words(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn xor(&mut self, a: f32, b: f32) -> f32 {
        words(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    fn add_words(&mut self, a: f32, b: f32) -> f32 {
        words(a, b, u32::wrapping_add)
    }
    #[inline(always)]
    fn sub_words(&mut self, a: f32, b: f32) -> f32 {
        words(a, b, u32::wrapping_sub)
    }
    #[inline(always)]
    fn shift_right(&mut self, a: f32, bits: u8) -> f32 {
        f32::from_bits(a.to_bits() >> bits)
    }
    #[inline(always)]
    fn number_of_word(&mut self, a: f32) -> f32 {
        a.to_bits() as i32 as f32
    }
    #[inline(always)]
    fn scale(&mut self, a: f32, _: f32, shifted: f32) -> f32 {
        let n = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
        let half = n >> 1;
        let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        // The first product is exact, so that the result is rounded once.
        a * power(half) * power(n.wrapping_sub(half))
    }
    #[inline(always)]
    fn less(&mut self, a: f32, b: f32) -> f32 {
        mask(a < b)
    }
    #[inline(always)]
    fn less_equal(&mut self, a: f32, b: f32) -> f32 {
        mask(a <= b)
    }
    #[inline(always)]
    fn equal(&mut self, a: f32, b: f32) -> f32 {
        #[allow(clippy::float_cmp, reason = "it is the comparison")]
        mask(a == b)
    }
    #[inline(always)]
    fn unordered(&mut self, a: f32, b: f32) -> f32 {
        mask(a.is_nan() | b.is_nan())
    }
    #[inline(always)]
    fn select(&mut self, mask: f32, yes: f32, no: f32) -> f32 {
        if mask.to_bits() == 0 { no } else { yes }
    }
}
