//! Philox4x32-10, and how positions become counters.

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;
const WORD: u64 = 0xFFFF_FFFF;

/// Blocks that are computed side by side.
const LANES: usize = 16;

/// Positions that are drawn together: word `w` of block `l` of a group is at position `LANES * w + l` in it, so that vectors of blocks are
/// stored as they are.
pub const GROUP: usize = 4 * LANES;

/// The words of a group, by their position.
pub(crate) type Words = [u32; GROUP];

/// One block of Philox4x32-10.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    block(counter.map(u64::from), key).map(|word| word as u32)
}

/// The same on words in 64 bits, the upper half zeros: that is how vector units multiply them.
#[inline(always)]
fn block(counter: [u64; 4], mut key: [u32; 2]) -> [u64; 4] {
    let [mut a, mut b, mut c, mut d] = counter;
    for _ in 0..ROUNDS {
        let (first, second) = (a * MULTIPLIERS[0], c * MULTIPLIERS[1]);
        (a, c) = ((second >> 32) ^ b ^ u64::from(key[0]), (first >> 32) ^ d ^ u64::from(key[1]));
        (b, d) = (second & WORD, first & WORD);
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    [a, b, c, d]
}

/// The words of one operation in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// The seed of the run: Philox's key.
    pub seed: u64,
    /// The number of the step; numbers repeat after 2^32.
    pub step: u32,
    /// The number of the operation.
    pub operation: u32,
}

impl Stream {
    /// The words of a group. A counter is, from its first word on: the number of the block, in two words, the operation, the step.
    #[inline(always)]
    pub(crate) fn group(&self, number: u64) -> Words {
        let first = number.wrapping_mul(LANES as u64);
        let key = [self.seed as u32, (self.seed >> 32) as u32];
        let mut words = [0; GROUP];
        for lane in 0..LANES {
            // A group never crosses a multiple of 2^32.
            let low = (first & WORD) + lane as u64;
            let made = block([low, first >> 32, self.operation.into(), self.step.into()], key);
            for (word, made) in made.into_iter().enumerate() {
                words[word * LANES + lane] = made as u32;
            }
        }
        words
    }
}
