//! How a kernel runs.

/// How a kernel runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Tier {
    /// By the interpreter.
    Interpreter,
    /// By machine code over vectors of eight numbers.
    Avx2,
    /// By machine code over vectors of sixteen numbers.
    Avx512,
}

impl Tier {
    /// The one with the longest vectors that this processor has.
    pub fn best() -> Self {
        Self::all().pop().unwrap_or(Self::Interpreter)
    }

    /// All that this processor has, the fastest last.
    pub fn all() -> Vec<Self> {
        let mut tiers = vec![Self::Interpreter];
        if has_avx2() {
            tiers.push(Self::Avx2);
            if has_avx512() {
                tiers.push(Self::Avx512);
            }
        }
        tiers
    }
}

/// Whether this processor has AVX2 and fused multiplication and addition.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

#[cfg(target_arch = "x86_64")]
pub(crate) fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx2() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_avx512() -> bool {
    false
}
