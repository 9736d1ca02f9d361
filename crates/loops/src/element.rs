//! Conversions between `f32` and the other element types.

use crate::math::{Scalar, round_bf16, round_f16};

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

/// The `f32` of an `f16`.
#[inline(always)]
pub fn f32_of_half(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff);
    let number = match magnitude {
        0..0x0400 => magnitude as f32 / 16_777_216.0,
        0x0400..0x7c00 => f32::from_bits((magnitude << 13) + (112 << 23)),
        _ => f32::from_bits((magnitude << 13) + (224 << 23)),
    };
    f32::from_bits(number.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// The `f16` next to a number, ties to even; every NaN becomes the same one.
#[inline(always)]
pub fn half_of(number: f32) -> u16 {
    let word = round_f16(&mut Scalar, number).to_bits();
    let (sign, magnitude) = ((word >> 16 & 0x8000) as u16, word & 0x7fff_ffff);
    sign | match magnitude {
        0..0x3880_0000 => (f32::from_bits(magnitude) * 16_777_216.0) as u16,
        0x3880_0000..0x7f80_0000 => ((magnitude - (112 << 23)) >> 13) as u16,
        _ => ((magnitude - (224 << 23)) >> 13) as u16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_comes_back_from_f32_and_what_lies_between_two_goes_to_the_nearest() {
        for bits in 0..0x7c00_u16 {
            let (number, next) = (f32_of_half(bits), f32_of_half(bits + 1));
            assert_eq!((half_of(number), half_of(-number)), (bits, bits | 0x8000));
            let middle = if bits == 0x7bff { 65_520.0 } else { f32::midpoint(number, next) };
            assert_eq!(half_of(middle), bits + (bits & 1), "{number}");
            assert_eq!(half_of(f32::from_bits(middle.to_bits() + 1)), bits + 1, "{number}");
        }
        assert_eq!([f32::INFINITY, 1e20, -1e20, f32::NAN].map(half_of), [0x7c00, 0x7c00, 0xfc00, 0x7e00]);
        assert_eq!(
            (f32_of_half(0x3c00), f32_of_half(0xfc00), f32_of_half(1)),
            (1.0, f32::NEG_INFINITY, 5.960_464_5e-8)
        );
        assert!(f32_of_half(0x7e00).is_nan());
    }

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
