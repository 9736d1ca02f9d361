//! What samplers know of samples.

use base::{Code, Diagnostic, Result};

/// What is known of every sample of a data set or stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Data {
    /// By phase, then sample.
    pub lengths: Vec<Vec<u64>>,
    /// Tokens that count in a per-token mean of the loss; the last phase's lengths if empty.
    pub loss_tokens: Vec<u64>,
    /// Where each sample comes from, from 0; one source if empty.
    pub sources: Vec<u32>,
}

impl Data {
    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.lengths.first().map_or(0, Vec::len)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn loss_tokens(&self, sample: usize) -> u64 {
        let lengths = || self.lengths.last().map_or(0, |lengths| lengths[sample]);
        self.loss_tokens.get(sample).copied().unwrap_or_else(lengths)
    }

    /// Refuses columns of different lengths and samples without tokens.
    pub(crate) fn check(&self) -> Result<()> {
        let count = self.len();
        let optional = [("loss_tokens", self.loss_tokens.len()), ("sources", self.sources.len())];
        let phases = self.lengths.iter().map(|phase| ("lengths", phase.len()));
        for (name, len) in phases.chain(optional.into_iter().filter(|row| row.1 > 0)) {
            if len != count {
                let what = format!("`{name}` has {len} entries for {count} samples");
                return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
            }
        }
        for sample in 0..count {
            if self.lengths.iter().all(|phase| phase[sample] == 0) {
                let what = format!("`lengths[{sample}]` is 0: a length is a positive number of tokens");
                return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
            }
        }
        Ok(())
    }
}
