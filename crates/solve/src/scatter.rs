//! Numbers that look random.

/// A number that looks random and depends on nothing else.
pub(crate) fn scatter(seed: u64, variable: u32) -> u64 {
    let mixed = (seed << 32 | u64::from(variable)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ mixed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed ^ mixed >> 29
}
