//! Random numbers by the longest vectors that the processor has.

use random::{Distribution, Out, Stream};

use crate::Tier;

/// Fills `out` with what is drawn at the positions from `start` on. All tiers give the same bits.
pub fn draw(tier: Tier, stream: Stream, drawn: Distribution, start: u64, out: Out<'_>) {
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 if crate::tier::has_avx512() => {
            // SAFETY: the processor has these instructions, as was just asked.
            unsafe { by_avx512(stream, drawn, start, out) }
        }
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 if crate::tier::has_avx2() => {
            // SAFETY: the processor has these instructions, as was just asked.
            unsafe { by_avx2(stream, drawn, start, out) }
        }
        _ => random::fill(stream, drawn, start, out),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn by_avx2(stream: Stream, drawn: Distribution, start: u64, out: Out<'_>) {
    random::fill(stream, drawn, start, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn by_avx512(stream: Stream, drawn: Distribution, start: u64, out: Out<'_>) {
    random::fill(stream, drawn, start, out);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn all_tiers_give_the_same_bits() {
        let stream = Stream { seed: 1, step: 2, operation: 3 };
        for drawn in [
            Distribution::Bernoulli { p: 0.1 },
            Distribution::Uniform { low: -1.0, high: 3.0, digits: 24 },
            Distribution::Normal { mean: 0.5, std: 2.0 },
            Distribution::Exponential { rate: 0.7 },
            Distribution::Cauchy { median: 0.0, sigma: 1.0 },
            Distribution::Geometric { p: 0.2 },
            Distribution::Integers { low: -5, high: 1000 },
        ] {
            let by = |tier| {
                let cells = vec![Cell::new(0.0_f32); 1000];
                draw(tier, stream, drawn, 17, Out::F32(&cells));
                cells.into_iter().map(|cell| cell.into_inner().to_bits()).collect::<Vec<_>>()
            };
            let expected = by(Tier::Interpreter);
            assert!(Tier::all().into_iter().all(|tier| by(tier) == expected), "{drawn:?}");
        }
    }
}
