//! What many rounds of micro-batches, or many layers, take and hold, by what few do, and one more.

use base::Result;

/// What is known of all micro-batches, or of few of them and of a round more.
#[derive(Clone)]
pub struct Known<T> {
    /// Of all, or of a round more than the few.
    pub longer: T,
    /// Of the few, and how many rounds are left out.
    pub shorter: Option<(T, i64)>,
}

impl<T> Known<T> {
    /// What is known of all.
    pub const fn of_all(longer: T) -> Self {
        Self { longer, shorter: None }
    }

    /// What comes of both alike.
    pub fn map<U>(&self, of: impl Fn(&T) -> Result<U>) -> Result<Known<U>> {
        let shorter = match &self.shorter {
            Some((shorter, left_out)) => Some((of(shorter)?, *left_out)),
            None => None,
        };
        Ok(Known { longer: of(&self.longer)?, shorter })
    }

    /// What comes of this and of what else is known of the same.
    pub fn with<U, V>(&self, other: &Known<U>, of: impl Fn(&T, &U) -> V) -> Known<V> {
        let both = self.shorter.as_ref().zip(other.shorter.as_ref());
        let shorter = both.map(|((own, left_out), (other, _))| (of(own, other), *left_out));
        Known { longer: of(&self.longer, &other.longer), shorter }
    }
}

impl<T: Beyond> Known<T> {
    /// What that says of all micro-batches.
    pub fn whole(self) -> T {
        match self.shorter {
            Some((shorter, left_out)) => self.longer.beyond(&shorter, left_out),
            None => self.longer,
        }
    }
}

/// What takes as much longer with each round as with the last one, and holds no more.
pub trait Beyond {
    /// The same with so many more rounds, where `shorter` has one less.
    #[must_use]
    fn beyond(self, shorter: &Self, rounds: i64) -> Self;
}

impl<A: Beyond, B: Beyond> Beyond for (A, B) {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        (self.0.beyond(&shorter.0, rounds), self.1.beyond(&shorter.1, rounds))
    }
}

impl<T: Beyond> Beyond for Vec<T> {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        self.into_iter().zip(shorter).map(|(one, shorter)| one.beyond(shorter, rounds)).collect()
    }
}

/// A time with so many more rounds, or layers.
pub fn time_beyond(longer: i64, shorter: i64, rounds: i64) -> i64 {
    (longer + (longer - shorter) * rounds).max(0)
}

/// A size, or a number, with so many more rounds, or layers.
pub fn bytes_beyond(longer: u64, shorter: u64, rounds: i64) -> u64 {
    let grown = (i128::from(longer) - i128::from(shorter)) * i128::from(rounds);
    u64::try_from(i128::from(longer) + grown).unwrap_or(0)
}
