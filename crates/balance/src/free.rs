//! Which of many samples are left: a bit for each.

/// Samples by number, all left at first.
#[derive(Clone, Debug)]
pub struct Free {
    words: Vec<u64>,
}

impl Free {
    /// All of `count` samples.
    pub fn new(count: usize) -> Self {
        let mut words = vec![u64::MAX; count / 64 + 1];
        words[count / 64] = (1 << (count % 64)) - 1;
        Self { words }
    }

    /// The first from `sample` on.
    pub fn next(&self, sample: u32) -> Option<u32> {
        let mut word = sample as usize / 64;
        let mut bits = self.words.get(word)? & (u64::MAX << (sample % 64));
        while bits == 0 {
            word += 1;
            bits = *self.words.get(word)?;
        }
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    /// Takes one away.
    pub fn take(&mut self, sample: u32) {
        self.words[sample as usize / 64] &= !(1 << (sample % 64));
    }

    /// All, rising.
    pub fn rest(&self) -> Vec<u32> {
        std::iter::successors(self.next(0), |sample| self.next(sample + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_passed_over() {
        for count in [0, 1, 63, 64, 65, 200_u32] {
            let mut free = Free::new(count as usize);
            (0..count).filter(|sample| sample % 3 > 0 || *sample > 130).for_each(|sample| free.take(sample));
            let left: Vec<u32> = (0..count.min(131)).filter(|sample| sample % 3 == 0).collect();
            assert_eq!(free.rest(), left);
            assert_eq!(free.next(count), None);
            assert_eq!(free.next(1), left.get(1).copied());
        }
    }
}
