//! Groups that stay as they are for a step.

use crate::machine::Place;

/// Groups for a whole step, each with its samples.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// Who works together.
    pub places: Vec<Place>,
    /// Sample ids by group.
    pub samples: Vec<Vec<u32>>,
    /// Sums of times by group.
    pub loads: Vec<u64>,
}

impl Fixed {
    /// The slowest group.
    pub fn makespan(&self) -> u64 {
        self.loads.iter().copied().max().unwrap_or(0)
    }
}
