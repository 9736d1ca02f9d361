//! The generator against its published vectors, and what is drawn against its distribution.

use std::cell::Cell;

use unisono_random::{Distribution, GROUP, Out, Stream, fill, philox};

/// Counter, key and result, from `kat_vectors` of Random123.
#[test]
fn blocks_are_the_published_ones() {
    let all = u32::MAX;
    assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    assert_eq!(philox([all; 4], [all; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let (counter, key) = ([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]);
    assert_eq!(philox(counter, key), [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]);
}

const STREAM: Stream = Stream { seed: 7, step: 3, operation: 2 };

fn drawn(stream: Stream, distribution: Distribution, start: u64, count: usize) -> Vec<f32> {
    let cells = vec![Cell::new(f32::NAN); count];
    fill(stream, distribution, start, Out::F32(&cells));
    cells.into_iter().map(Cell::into_inner).collect()
}

const ALL: [Distribution; 7] = [
    Distribution::Bernoulli { p: 0.3 },
    Distribution::Uniform { low: -1.0, high: 2.0, digits: 24 },
    Distribution::Normal { mean: 1.0, std: 2.0 },
    Distribution::Exponential { rate: 2.0 },
    Distribution::Cauchy { median: 0.5, sigma: 2.0 },
    Distribution::Geometric { p: 0.4 },
    Distribution::Integers { low: -3, high: 9 },
];

#[test]
fn a_position_has_its_number_wherever_a_draw_begins_and_ends() {
    for distribution in ALL {
        let whole = drawn(STREAM, distribution, 0, 5 * GROUP);
        for (start, count) in [(0, 1), (1, 2), (3, GROUP), (GROUP, GROUP), (70, 130), (200, 0), (319, 1)] {
            assert_eq!(drawn(STREAM, distribution, start as u64, count), whole[start..start + count]);
        }
    }
}

#[test]
fn positions_beyond_a_word_differ_from_those_before() {
    let distribution = Distribution::Uniform { low: 0.0, high: 1.0, digits: 24 };
    assert_ne!(drawn(STREAM, distribution, 0, 100), drawn(STREAM, distribution, 1 << 38, 100));
}

/// Mean, variance, or none where there is none.
const MOMENTS: [Option<(f64, f64)>; 7] = [
    Some((0.3, 0.21)),
    Some((0.5, 0.75)),
    Some((1.0, 4.0)),
    Some((0.5, 0.25)),
    None,
    Some((2.5, 3.75)),
    Some((2.5, 143.0 / 12.0)),
];

#[test]
fn moments_are_those_of_the_distribution() {
    const COUNT: usize = 1 << 18;
    for (distribution, moments) in ALL.into_iter().zip(MOMENTS) {
        let Some((mean, variance)) = moments else { continue };
        let numbers = drawn(STREAM, distribution, 0, COUNT);
        let found = numbers.iter().map(|n| f64::from(*n)).sum::<f64>() / COUNT as f64;
        let squares = numbers.iter().map(|n| (f64::from(*n) - found).powi(2)).sum::<f64>() / COUNT as f64;
        // Six standard errors of a mean.
        let error = 6.0 * (variance / COUNT as f64).sqrt();
        assert!((found - mean).abs() < error, "{distribution:?} has mean {found}");
        assert!((squares / variance - 1.0).abs() < 0.03, "{distribution:?} has variance {squares}");
    }
}

#[test]
fn half_of_a_cauchy_distribution_lies_within_its_scale_of_its_median() {
    let numbers = drawn(STREAM, ALL[4], 0, 1 << 18);
    let within = numbers.iter().filter(|n| (**n - 0.5).abs() < 2.0).count();
    assert!((within as f64 / f64::from(1 << 18) - 0.5).abs() < 0.006);
}

/// The correlation of two draws.
fn correlation(a: &[f32], b: &[f32]) -> f64 {
    let product: f64 = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    product / a.len() as f64
}

#[test]
fn operations_steps_seeds_and_neighbours_are_independent() {
    const COUNT: usize = 1 << 18;
    let distribution = Distribution::Normal { mean: 0.0, std: 1.0 };
    let one = drawn(STREAM, distribution, 0, COUNT + GROUP);
    let others = [
        Stream { operation: 3, ..STREAM },
        Stream { step: 4, ..STREAM },
        Stream { seed: 8, ..STREAM },
        Stream { seed: 7 << 32, ..STREAM },
        Stream { step: 2, operation: 3, ..STREAM },
    ];
    let bound = 6.0 / (COUNT as f64).sqrt();
    for other in others {
        assert!(correlation(&one[..COUNT], &drawn(other, distribution, 0, COUNT)).abs() < bound, "{other:?}");
    }
    for apart in [1, 2, 16, 32, GROUP] {
        assert!(correlation(&one[..COUNT], &one[apart..COUNT + apart]).abs() < bound, "{apart} apart");
    }
}

#[test]
fn probabilities_of_0_and_1_are_never_and_always() {
    assert!(drawn(STREAM, Distribution::Bernoulli { p: 0.0 }, 0, 1000).iter().all(|n| n.to_bits() == 0));
    assert!(
        drawn(STREAM, Distribution::Bernoulli { p: 1.0 }, 0, 1000)
            .iter()
            .all(|n| (*n - 1.0).abs() < f32::EPSILON)
    );
}

#[test]
fn numbers_of_fewer_bits_stay_below_what_they_are_to_be_below() {
    let cells = vec![Cell::new(0_u16); 1 << 16];
    fill(STREAM, Distribution::Uniform { low: 0.0, high: 1.0, digits: 8 }, 0, Out::Bf16(&cells));
    let one = 0x3f80;
    assert!(cells.iter().all(|cell| cell.get() < one));
}
