//! A counter-free generator whose numbers are the same on every machine.

/// `SplitMix64` (Steele, Lea and Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for each list of keys.
    pub fn new(keys: &[u64]) -> Self {
        let mut random = Self(0);
        for key in keys {
            random.0 = random.next() ^ key;
        }
        random
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit` without bias (Lemire 2019).
    fn below(&mut self, limit: u64) -> u64 {
        loop {
            let product = u128::from(self.next()) * u128::from(limit);
            if product as u64 >= limit.wrapping_neg() % limit {
                return (product >> 64) as u64;
            }
        }
    }

    /// Fisher and Yates' shuffle.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation_and_never_changes() {
        let mut items: Vec<u32> = (0..10).collect();
        Random::new(&[1, 2]).shuffle(&mut items);
        assert_eq!(items, GOLDEN);
        items.sort_unstable();
        assert!(items.into_iter().eq(0..10));
    }

    const GOLDEN: [u32; 10] = [1, 0, 8, 5, 7, 6, 9, 4, 2, 3];
}
