//! Pipeline stages: parts of the program on different ranks.
//!
//! [`staged`] says of each operation of a step in which chunk of it it is, from where the forward part is cut; each chunk is on a stage, which
//! may have several. Every change of a graph keeps what it says, so that [`stage_graphs`] takes the program of a rank apart behind the partition along all other axes and the micro-batches:
//! each stage gets its operations, in the order of a [`schedule::Schedule`], and a transfer exactly where a value is used on another stage than the one
//! that makes it, be it a skip, a tied weight, a gradient or the norm of all of them.

mod assign;
mod cells;
mod cut;
mod messages;
mod needs;
mod order;
mod transfer;

pub use assign::{Staged, forward_end, staged};
pub use cut::stage_graphs;

/// Some of the stages, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StageSet(u128);

impl StageSet {
    /// A set has a bit for each.
    pub const MOST: u32 = 128;

    /// All of so many.
    pub const fn all(stages: u32) -> Self {
        Self(if stages >= Self::MOST { u128::MAX } else { (1 << stages) - 1 })
    }

    /// One alone.
    pub const fn one(stage: u32) -> Self {
        Self(1 << stage)
    }

    /// Whether a stage is among them.
    pub const fn has(self, stage: u32) -> bool {
        self.0 >> stage & 1 == 1
    }

    /// Whether it is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that `other` has not.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The stages in their order.
    pub fn stages(self) -> impl Iterator<Item = u32> {
        (0..Self::MOST - self.0.leading_zeros()).filter(move |stage| self.has(*stage))
    }

    /// The first stage.
    pub fn first(self) -> Option<u32> {
        self.stages().next()
    }
}

impl FromIterator<u32> for StageSet {
    fn from_iter<T: IntoIterator<Item = u32>>(stages: T) -> Self {
        stages.into_iter().fold(Self::default(), |set, stage| set.with(Self::one(stage)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_each_of_the_most_stages() {
        let all = StageSet::all(StageSet::MOST);
        assert!(all.stages().eq(0..StageSet::MOST));
        let last = StageSet::one(StageSet::MOST - 1);
        assert_eq!(all.without(last), StageSet::all(StageSet::MOST - 1));
        assert_eq!((last.first(), StageSet::default().first()), (Some(StageSet::MOST - 1), None));
    }

    #[test]
    fn stages_of_a_set_are_in_their_order() {
        let some: StageSet = [104, 3, 64].into_iter().collect();
        assert!(some.stages().eq([3, 64, 104]));
        assert!(some.has(64) && !some.has(65));
    }
}
