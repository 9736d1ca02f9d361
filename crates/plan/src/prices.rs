//! What communication counts for beside computation in the search's tables.
//!
//! The tables add times, while a step hides some of its communication and the passes join many collectives into one; the search
//! therefore solves under several prices, and what each solution really takes is simulated. A collective that has a window counts for
//! less the more of it is hidden; one on the way from an operation to the next counts for more the more latencies it would bring.

use serde::{Deserialize, Serialize};
use solve::ClassId;

/// Percentages that times of collectives are multiplied by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Prices {
    /// Of gathers of stored state and reductions of gradients: they start early or are waited for late.
    pub windowed: u16,
    /// Of those that the next operation needs at once.
    pub awaited: u16,
}

impl Prices {
    /// The times as they are.
    pub const PLAIN: Self = Self { windowed: 100, awaited: 100 };

    /// Those under which plans are best most often.
    pub const HALF: Self = Self { windowed: 50, awaited: 100 };

    /// The prices that are tried, the plain ones first.
    pub const TRIED: [Self; 7] = [
        Self::PLAIN,
        Self::HALF,
        Self { windowed: 10, awaited: 100 },
        Self { windowed: 75, awaited: 200 },
        Self { windowed: 100, awaited: 400 },
        Self { windowed: 300, awaited: 300 },
        Self { windowed: 10, awaited: 10 },
    ];

    /// The prices that few layers are decided under, those under which plans are best most often first.
    pub const OF_FEW: [Self; 3] = [Self::HALF, Self::PLAIN, Self { windowed: 10, awaited: 100 }];

    /// Those where each of so many micro-batches gathers stored state again and reduces its own gradients, half of which is hidden: held from one
    /// to the next they may take too much memory.
    pub fn of_each(micro_batches: u32) -> Self {
        let windowed = u16::try_from(micro_batches.saturating_mul(u32::from(Self::HALF.windowed)));
        Self { windowed: windowed.unwrap_or(u16::MAX), ..Self::HALF }
    }

    /// What the tables of a class count for.
    pub fn percent(self, class: ClassId) -> u32 {
        u32::from(match class {
            WINDOWED => self.windowed,
            AWAITED => self.awaited,
            _ => 100,
        })
    }
}

/// The class of tables with times of collectives that have operations to hide behind.
pub const WINDOWED: ClassId = ClassId(1);
/// The class of those that the next operation needs at once.
pub const AWAITED: ClassId = ClassId(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_each_micro_batch_gathers_counts_as_often() {
        let counts = |micro_batches| Prices::of_each(micro_batches).percent(WINDOWED);
        assert_eq!([1, 2, 16, 4_000].map(counts), [50, 100, 800, u32::from(u16::MAX)]);
        assert_eq!(Prices::of_each(16).percent(AWAITED), Prices::PLAIN.percent(AWAITED));
    }
}
