//! Entries of accounts with more rounds of micro-batches.

use super::{
    collectives::{CauseTime, CollectiveTime},
    modules::ModuleTime,
};
use crate::beyond::{Beyond, bytes_beyond};

/// An entry of a list that says by itself what it is of.
pub trait Entry: Beyond {
    /// Whether both are of the same.
    fn is_of_same(&self, other: &Self) -> bool;
}

/// A list with so many more rounds. What the shorter program has nothing of stays as it is.
pub fn all_beyond<T: Entry>(longer: Vec<T>, shorter: &[T], rounds: i64) -> Vec<T> {
    let grown = longer.into_iter().map(|one| match shorter.iter().find(|other| one.is_of_same(other)) {
        Some(other) => one.beyond(other, rounds),
        None => one,
    });
    grown.collect()
}

/// A time with so many more rounds.
pub fn millis_beyond(longer: f64, shorter: f64, rounds: i64) -> f64 {
    (longer + (longer - shorter) * rounds as f64).max(0.0)
}

fn count_beyond(longer: u32, shorter: u32, rounds: i64) -> u32 {
    u32::try_from(bytes_beyond(longer.into(), shorter.into(), rounds)).unwrap_or(u32::MAX)
}

impl Entry for ModuleTime {
    fn is_of_same(&self, other: &Self) -> bool {
        (&self.module, self.part) == (&other.module, other.part)
    }
}

impl Beyond for ModuleTime {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        Self { ms: millis_beyond(self.ms, shorter.ms, rounds), ..self }
    }
}

impl Entry for CollectiveTime {
    fn is_of_same(&self, other: &Self) -> bool {
        (&self.kind, self.direct, &self.axis, self.of) == (&other.kind, other.direct, &other.axis, other.of)
    }
}

impl Beyond for CollectiveTime {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        Self {
            count: count_beyond(self.count, shorter.count, rounds),
            bytes: bytes_beyond(self.bytes, shorter.bytes, rounds),
            ms: millis_beyond(self.ms, shorter.ms, rounds),
            exposed_ms: millis_beyond(self.exposed_ms, shorter.exposed_ms, rounds),
            causes: all_beyond(self.causes, &shorter.causes, rounds),
            ..self
        }
    }
}

impl Entry for CauseTime {
    fn is_of_same(&self, other: &Self) -> bool {
        self.changes == other.changes
    }
}

impl Beyond for CauseTime {
    fn beyond(self, shorter: &Self, rounds: i64) -> Self {
        Self {
            count: count_beyond(self.count, shorter.count, rounds),
            bytes: bytes_beyond(self.bytes, shorter.bytes, rounds),
            ms: millis_beyond(self.ms, shorter.ms, rounds),
            exposed_ms: millis_beyond(self.exposed_ms, shorter.exposed_ms, rounds),
            ..self
        }
    }
}
