//! Conversions between `f32` and the other element types.

use crate::math::{Scalar, round_bf16};

/// The `f32` of a `bf16`.
#[inline(always)]
pub fn f32_of(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The `bf16` next to a number, ties to even; every NaN becomes the same one.
#[inline(always)]
pub fn bf16_of(number: f32) -> u16 {
    (round_bf16(&mut Scalar, number).to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_to_the_nearest_bf16_and_ties_to_even() {
        for (number, bits) in [(1.0, 0x3f80), (1.003_906_3, 0x3f80), (1.011_718_8, 0x3f82), (-0.0, 0x8000)] {
            assert_eq!(bf16_of(number), bits, "{number}");
        }
        assert_eq!(bf16_of(f32::MAX), 0x7f80);
        assert_eq!(bf16_of(f32::NAN), 0x7fc0);
        assert_eq!(bf16_of(-f32::from_bits(0x7f80_0001)), 0x7fc0);
    }

    #[test]
    fn every_bf16_comes_back_from_f32() {
        for bits in 0..=u16::MAX {
            let number = f32_of(bits);
            assert!(number.is_nan() || bf16_of(number) == bits);
        }
    }
}
