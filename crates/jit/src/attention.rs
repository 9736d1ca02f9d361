//! Attention of short sequences by the longest vectors that the processor has.

use loops::attention::{self, Attention, Backward, Given, Heads, Made};

use crate::Tier;

/// Computes attention ([`attention::forward`]). All tiers give the same bits.
pub fn attention(tier: Tier, what: &Attention, given: &Given<'_>, made: &Made<'_>) {
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 if crate::tier::has_avx512() => {
            // SAFETY: the processor has these instructions, as was just asked.
            unsafe { by_avx512(what, given, made) }
        }
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 if crate::tier::has_avx2() => {
            // SAFETY: the processor has these instructions, as was just asked.
            unsafe { by_avx2(what, given, made) }
        }
        _ => attention::forward(what, given, made),
    }
}

/// Computes the gradients of queries, keys and values ([`attention::backward`]). All tiers give the same bits.
pub fn attention_backward(tier: Tier, what: &Attention, of: &Backward<'_>, gradients: [Heads<'_>; 3]) {
    match tier {
        #[cfg(target_arch = "x86_64")]
        Tier::Avx512 if crate::tier::has_avx512() => {
            // SAFETY: the processor has these instructions, as was just asked.
            unsafe { backward_by_avx512(what, of, gradients) }
        }
        #[cfg(target_arch = "x86_64")]
        Tier::Avx2 if crate::tier::has_avx2() => {
            // SAFETY: the processor has these instructions, as was just asked.
            unsafe { backward_by_avx2(what, of, gradients) }
        }
        _ => attention::backward(what, of, gradients),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn by_avx2(what: &Attention, given: &Given<'_>, made: &Made<'_>) {
    attention::forward(what, given, made);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn by_avx512(what: &Attention, given: &Given<'_>, made: &Made<'_>) {
    attention::forward(what, given, made);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn backward_by_avx2(what: &Attention, of: &Backward<'_>, gradients: [Heads<'_>; 3]) {
    attention::backward(what, of, gradients);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn backward_by_avx512(what: &Attention, of: &Backward<'_>, gradients: [Heads<'_>; 3]) {
    attention::backward(what, of, gradients);
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const WHAT: Attention =
        Attention { batch: 2, heads: 3, queries: 21, keys: 19, features: 24, causal: true, scale: 0.4 };

    fn numbers(count: usize, seed: usize) -> Vec<Cell<f32>> {
        (0..count).map(|at| Cell::new(((at * 37 + seed * 11) % 29) as f32 / 7.0 - 2.0)).collect()
    }

    /// A tensor of so many rows and columns a head, one behind the other.
    const fn tensor(cells: &[Cell<f32>], rows: usize, columns: usize) -> Heads<'_> {
        Heads { cells, strides: [WHAT.heads * rows * columns, rows * columns, columns, 1] }
    }

    /// The bits of all that is computed.
    fn computed(tier: Tier, what: &Attention) -> Vec<u32> {
        let Attention { batch, heads, queries, keys, features, .. } = *what;
        let heads = batch * heads;
        let sizes = [heads * queries * features, heads * keys * features, heads * keys * features];
        let inputs: Vec<_> = sizes.iter().enumerate().map(|(seed, size)| numbers(*size, seed)).collect();
        let (mask, slope) = (numbers(queries * keys, 5), numbers(sizes[0], 6));
        let outputs: Vec<_> =
            [sizes[0], heads * queries, sizes[0], sizes[1], sizes[2]].map(|size| numbers(size, 9)).into();
        let given = Given {
            queries: tensor(&inputs[0], queries, features),
            keys: tensor(&inputs[1], keys, features),
            values: tensor(&inputs[2], keys, features),
            mask: Some(Heads { cells: &mask, strides: [0, 0, keys, 1] }),
        };
        let made =
            Made { result: tensor(&outputs[0], queries, features), logs: tensor(&outputs[1], queries, 1) };
        attention(tier, what, &given, &made);
        let of = Backward { given, logs: made.logs, gradient: tensor(&slope, queries, features) };
        let gradients = [
            tensor(&outputs[2], queries, features),
            tensor(&outputs[3], keys, features),
            tensor(&outputs[4], keys, features),
        ];
        attention_backward(tier, what, &of, gradients);
        outputs.iter().flatten().map(|cell| cell.get().to_bits()).collect()
    }

    #[test]
    fn all_tiers_give_the_same_bits() {
        for causal in [false, true] {
            let what = Attention { causal, ..WHAT };
            let expected = computed(Tier::Interpreter, &what);
            assert!(Tier::all().into_iter().all(|tier| computed(tier, &what) == expected));
        }
    }
}
