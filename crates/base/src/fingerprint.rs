//! Content fingerprints: the same input gives the same 128 bits on every machine and in every version.

use std::{fmt, str::FromStr};

use xxhash_rust::xxh3::Xxh3;

/// 128 bits that identify a content (a graph, a plan, a cluster description). Not a security measure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(pub u128);

impl Fingerprint {
    /// The fingerprint of a string of bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// The lower 64 bits, for a hash that is sent along with other numbers.
    pub const fn low64(self) -> u64 {
        self.0 as u64
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Fingerprint {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

crate::serialized_as_text!(Fingerprint);

/// Fingerprints content that comes in parts. Every part is length-prefixed, so that `ab, c` differs from `a, bc`.
#[derive(Default)]
pub struct Fingerprinter(Xxh3);

impl Fingerprinter {
    /// Starts with nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one part.
    pub fn part(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
        self
    }

    /// Adds one number.
    pub fn number(&mut self, number: u64) -> &mut Self {
        self.part(&number.to_le_bytes())
    }

    /// The fingerprint of all parts so far.
    pub fn finish(&self) -> Fingerprint {
        Fingerprint(self.0.digest128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_round_trip_and_tell_parts_apart() {
        let a = Fingerprinter::new().part(b"ab").part(b"c").finish();
        let b = Fingerprinter::new().part(b"a").part(b"bc").finish();
        assert_ne!(a, b);
        assert_eq!(a.to_string().parse::<Fingerprint>().unwrap(), a);
    }

    #[test]
    fn the_fingerprint_of_a_known_content_never_changes() {
        assert_eq!(Fingerprint::of(b"unisono").to_string(), "d3d84b12d90a590aa13098ab94976dfb");
    }
}
