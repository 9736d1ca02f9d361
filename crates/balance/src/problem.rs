//! A balancing problem.

use base::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};

use crate::{
    cost::Cost,
    loads::MOST_PHASES,
    machine::{SequenceParallel, giant},
    partition::Tier,
};

/// What is minimised: how ranks wait for each other follows from how the model is sharded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// Ranks meet at the end of the step only (replicated parameters): the slowest rank's sum.
    #[default]
    Free,
    /// Parameters are gathered across all ranks in every micro-step: the sum over micro-steps of the slowest rank.
    Lockstep,
    /// Parameters are gathered inside shard groups: lock-step within a group, free across groups.
    Grouped,
    /// Each rank is a pipeline: its sum plus (stages - 1) times its largest micro-batch.
    Pipeline,
}

impl Objective {
    /// All objectives by name.
    pub const ALL: [(Self, &'static str); 4] = [
        (Self::Free, "free"),
        (Self::Lockstep, "lockstep"),
        (Self::Grouped, "grouped"),
        (Self::Pipeline, "pipeline"),
    ];

    /// The name in a problem file.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|row| row.0 == self).map_or("free", |row| row.1)
    }
}

/// Samples, ranks, and what is asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Problem {
    /// Lengths in tokens: by phase, then sample. One phase in most problems.
    pub lengths: Vec<Vec<u64>>,
    /// Cost as a function of length, by phase.
    pub costs: Vec<Cost>,
    /// How many ranks.
    pub ranks: usize,
    /// Tokens that a rank can hold in one micro-batch; in every phase.
    pub tokens_per_rank: Option<u64>,
    /// What is minimised.
    pub objective: Objective,
    /// Whether every rank takes the same number of samples.
    pub equal_count: bool,
    /// Whether every rank gets the same number of micro-batches, empty ones included where samples run out. Lock-step
    /// objectives imply it.
    pub equal_micro_batches: bool,
    /// Ranks in a shard group, for [`Objective::Grouped`].
    pub shard_group: Option<usize>,
    /// Pipeline stages, for [`Objective::Pipeline`].
    pub stages: Option<u64>,
    /// Groups of ranks that work on one sample together.
    pub sequence_parallel: Option<SequenceParallel>,
    /// Which partition algorithm.
    pub tier: Tier,
    /// Cost of moving one token of a sample to another rank between phases; re-dispatch is considered only if given.
    pub moving: Option<u64>,
}

impl Problem {
    /// How many samples there are.
    pub fn samples(&self) -> usize {
        self.lengths.first().map_or(0, Vec::len)
    }

    /// Refuses what makes no sense, with the number at fault.
    pub fn check(&self) -> Result<()> {
        self.check_settings()?;
        let refuse = |what: String| Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        if self.samples() == 0 {
            return refuse("`lengths` is empty: there is nothing to balance".to_owned());
        }
        if self.costs.len() != self.lengths.len() {
            let (costs, phases) = (self.costs.len(), self.lengths.len());
            return refuse(format!("`cost` has {costs} entries for {phases} phases of `lengths`"));
        }
        for sample in 0..self.samples() {
            if self.lengths.iter().all(|phase| phase[sample] == 0) {
                return refuse(format!("`lengths[{sample}]` is 0: a length is a positive number of tokens"));
            }
        }
        Ok(())
    }

    /// Refuses settings that make no sense whatever the samples are.
    pub fn check_settings(&self) -> Result<()> {
        let refuse = |what: String| Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        if self.ranks == 0 {
            return refuse("`ranks` is 0: there must be at least one".to_owned());
        }
        if self.ranks > MOST_RANKS {
            return refuse(format!("`ranks` is {}: at most {MOST_RANKS} are supported", self.ranks));
        }
        if self.costs.len() > MOST_PHASES {
            return refuse(format!("`cost` has {} phases: at most {MOST_PHASES}", self.costs.len()));
        }
        if self.tokens_per_rank == Some(0) {
            return refuse("`tokens_per_rank` is 0: no sample fits".to_owned());
        }
        self.check_objective()?;
        self.check_combination()
    }

    /// Refuses a sample that fits nowhere.
    pub fn check_room(&self, lengths: &[Vec<u64>]) -> Result<()> {
        let Some(cap) = self.tokens_per_rank else { return Ok(()) };
        let allowed = self.sequence_parallel.iter().flat_map(|parallel| &parallel.degrees);
        let degree = allowed.copied().filter(|degree| *degree <= self.ranks).max().unwrap_or(1);
        let room = cap.saturating_mul(degree as u64);
        for phase in lengths {
            if let Some(index) = phase.iter().position(|length| *length > room) {
                return Err(giant(index, phase[index], cap, degree));
            }
        }
        Ok(())
    }

    fn check_objective(&self) -> Result<()> {
        let refuse = |what: String, hint: &str| Err(Diagnostic::new(Code::BAD_PROBLEM, what).hint(hint));
        match (self.objective, self.shard_group, self.stages) {
            (Objective::Grouped, None, _) => refuse(
                "the objective `grouped` needs `shard_group`".to_owned(),
                "give the ranks of a shard group",
            ),
            (Objective::Grouped, Some(group), _) if group == 0 || !self.ranks.is_multiple_of(group) => {
                refuse(
                    format!("`shard_group` {group} does not divide the {} ranks", self.ranks),
                    "shard groups have equal sizes",
                )
            }
            (Objective::Pipeline, _, None) => refuse(
                "the objective `pipeline` needs `stages`".to_owned(),
                "give the number of pipeline stages",
            ),
            (Objective::Pipeline, _, Some(0)) => {
                refuse("`stages` is 0: a pipeline has at least one".to_owned(), "one stage is no pipeline")
            }
            _ => Ok(()),
        }
    }

    fn check_combination(&self) -> Result<()> {
        let refuse = |what: &str| Err(Diagnostic::new(Code::UNSUPPORTED_PROBLEM, what));
        let Some(parallel) = &self.sequence_parallel else {
            let phased = self.costs.len() > 1;
            if phased && (self.objective != Objective::Free || self.equal_count) {
                return refuse(
                    "several phases are balanced for the objective `free` only, without `equal_count`",
                );
            }
            return Ok(());
        };
        if self.costs.len() > 1 {
            return refuse("`sequence_parallel` takes one length per sample, not several phases");
        }
        if self.equal_count {
            return refuse("`equal_count` does not combine with `sequence_parallel`: groups differ in size");
        }
        parallel.check()
    }
}

/// More ranks than any job has; keeps a mistyped number from taking all memory.
pub const MOST_RANKS: usize = 1 << 24;

impl SequenceParallel {
    fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        let positive = [("rate", self.rate), ("passes", self.passes)];
        if let Some((name, value)) = positive.into_iter().find(|row| !(row.1 > 0.0 && row.1.is_finite())) {
            return refuse(format!("`{name}` is {value}: it must be positive"));
        }
        if !(self.bytes_per_token >= 0.0 && self.bytes_per_token.is_finite()) {
            return refuse(format!("`bytes_per_token` is {}: it must not be negative", self.bytes_per_token));
        }
        if self.ranks_per_node == 0 {
            return refuse("`ranks_per_node` is 0: there must be at least one".to_owned());
        }
        if let Some(row) = self.bandwidth.iter().find(|row| !(row.1 > 0.0 && row.1.is_finite())) {
            return refuse(format!("`bandwidth` up to degree {} is {}: it must be positive", row.0, row.1));
        }
        if self.bandwidth.windows(2).any(|rows| rows[0].0 >= rows[1].0) {
            return refuse("`bandwidth` must list rising largest degrees".to_owned());
        }
        self.check_degrees()
    }

    fn check_degrees(&self) -> Result<()> {
        let refuse = |what: String| Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        if self.degrees.is_empty() || self.degrees[0] == 0 {
            return refuse("`degrees` must list at least one degree, all positive".to_owned());
        }
        if let Some(at) = self.degrees.windows(2).position(|pair| pair[0] >= pair[1]) {
            return refuse(format!("`degrees` lists {} twice", self.degrees[at]));
        }
        let node = self.ranks_per_node;
        let straddles = |degree: &&usize| !node.is_multiple_of(**degree) && !degree.is_multiple_of(node);
        if let Some(degree) = self.degrees.iter().find(straddles) {
            let what = format!("degree {degree} is not aligned to nodes of {node} ranks");
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what)
                .hint("a degree divides `ranks_per_node` or is a multiple of it"));
        }
        let largest = self.degrees.iter().copied().max().unwrap_or(1);
        let covered = self.bandwidth.last().map_or(0, |row| row.0);
        if largest > 1 && covered == 0 {
            return refuse(format!("`bandwidth` is missing for degree {largest}"));
        }
        Ok(())
    }
}
