//! Properties, tried on cases that are the same in every run.

use arbtest::{arbitrary, arbtest};

/// The fewest and the most bytes that a case is drawn from.
const BYTES: (u32, u32) = (32, 1 << 14);

/// Tries a property on so many cases, drawn from ever more bytes.
pub fn cases(count: u32, property: impl FnMut(&mut arbitrary::Unstructured<'_>) -> arbitrary::Result<()>) {
    cases_from(BYTES.0, count, property);
}

/// The same with cases drawn from at least so many bytes.
pub fn cases_from(
    fewest: u32,
    count: u32,
    mut property: impl FnMut(&mut arbitrary::Unstructured<'_>) -> arbitrary::Result<()>,
) {
    let doublings = (BYTES.1 / fewest).ilog2();
    for case in 0..count {
        let bytes = fewest << (u64::from(case) * u64::from(doublings + 1) / u64::from(count));
        // The random number of a case, and how many bytes are drawn by it: what `arbtest` takes for a seed.
        let seed = u64::from(case.wrapping_add(1).wrapping_mul(0x9E37_79B9)) << 32 | u64::from(bytes);
        arbtest(&mut property).seed(seed).run();
    }
}
