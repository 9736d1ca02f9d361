//! One thing that a stage does.

use std::{fmt, str::FromStr};

/// What an action computes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Pass {
    /// Forward.
    Forward,
    /// Backward.
    Backward,
    /// What of backward other chunks need.
    Inputs,
    /// The rest of backward: gradients of weights.
    Weights,
}

impl Pass {
    const LETTERS: [(Self, char); 4] =
        [(Self::Forward, 'F'), (Self::Backward, 'B'), (Self::Inputs, 'I'), (Self::Weights, 'W')];
}

/// Forward or backward of a micro-batch in a chunk of the program, or a half of backward.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Action {
    /// The chunk, in the order of forward over all stages.
    pub chunk: u32,
    /// What is computed.
    pub work: Pass,
    /// The number of the micro-batch.
    pub micro_batch: u32,
}

impl Action {
    /// One action.
    pub const fn new(chunk: u32, work: Pass, micro_batch: u32) -> Self {
        Self { chunk, work, micro_batch }
    }

    /// Whether it is backward, or the half of it that other chunks need.
    pub const fn makes_inputs(self) -> bool {
        matches!(self.work, Pass::Backward | Pass::Inputs)
    }
}

impl fmt::Display for Action {
    /// As torch's schedules write it: `0F0`, `3B0`, `3I0`, `3W0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = Pass::LETTERS.iter().find(|(work, _)| *work == self.work).map_or('?', |(_, one)| *one);
        write!(f, "{}{letter}{}", self.chunk, self.micro_batch)
    }
}

impl FromStr for Action {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let at = text.find(|one: char| !one.is_ascii_digit()).ok_or(())?;
        let letter = text[at..].chars().next().ok_or(())?;
        let (work, _) = Pass::LETTERS.iter().find(|(_, one)| *one == letter).ok_or(())?;
        let number = |text: &str| {
            let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| is_number).ok_or(())
        };
        Ok(Self { chunk: number(&text[..at])?, work: *work, micro_batch: number(&text[at + 1..])? })
    }
}
