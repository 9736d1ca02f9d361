//! What is chosen of each operation of forward.

use fixedbitset::FixedBitSet;

/// Which choices are weighed in tables.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Weighed {
    /// With how many segments.
    pub segments: usize,
    /// At which moments of these.
    pub moments: Vec<usize>,
    /// How what is on the host counts.
    pub on_host: (State, i64),
}

/// What an operation's results are to backward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// Held until their last reader.
    Kept,
    /// Made again.
    Again,
    /// On the host, without that anything waits for copies if that can be.
    OnHost,
    /// On the host, and held no longer than they are read: copies are waited for at once.
    Awaited,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Kept, Self::Again, Self::OnHost, Self::Awaited];
}

/// Operations that are not merely kept, by number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Those that run again.
    pub again: FixedBitSet,
    /// Those whose results are on the host.
    pub host: FixedBitSet,
    /// Those of them whose copies are waited for at once.
    pub awaited: FixedBitSet,
}

impl Chosen {
    /// None of so many operations.
    pub fn of(count: usize) -> Self {
        let none = FixedBitSet::with_capacity(count);
        Self { again: none.clone(), host: none.clone(), awaited: none }
    }

    /// What is chosen of an operation.
    pub fn state(&self, number: usize) -> State {
        match (self.again.contains(number), self.host.contains(number), self.awaited.contains(number)) {
            (true, ..) => State::Again,
            (_, true, false) => State::OnHost,
            (_, true, true) => State::Awaited,
            _ => State::Kept,
        }
    }

    /// Sets what is chosen of an operation.
    pub fn set(&mut self, number: usize, state: State) {
        self.again.set(number, state == State::Again);
        self.host.set(number, matches!(state, State::OnHost | State::Awaited));
        self.awaited.set(number, state == State::Awaited);
    }
}
