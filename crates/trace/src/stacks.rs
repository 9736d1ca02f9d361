//! Who encloses whom.

use std::collections::BTreeMap;

use timeline::TrackId;

/// No enclosing event, or no event at all.
pub const NOTHING: u32 = u32::MAX;

/// The enclosing event of every event on a processor.
#[derive(Clone, Debug)]
pub struct Stacks {
    /// Row of the innermost enclosing event of each row, or [`NOTHING`].
    pub parent: Vec<u32>,
    /// How many events enclose each row.
    pub depth: Vec<u16>,
    /// Rows of each thread in the order in which they begin, outer first.
    pub threads: BTreeMap<TrackId, Vec<u32>>,
    /// Rows that begin inside an event of their thread and end behind it.
    pub overlapping: Vec<u32>,
}

impl Stacks {
    /// The enclosing event of `row`.
    pub fn parent(&self, row: usize) -> Option<usize> {
        Some(self.parent[row]).filter(|&parent| parent != NOTHING).map(|parent| parent as usize)
    }

    /// `row` and all that enclose it, innermost first.
    pub fn path(&self, row: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(row), |&row| self.parent(row))
    }
}
