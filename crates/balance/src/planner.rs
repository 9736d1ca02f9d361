//! From the samples of a step to what one rank does in it.

use base::{Code, Diagnostic, Fingerprinter, Result};
use serde::{Deserialize, Serialize};

use crate::{
    cost::phase_unit,
    data::Data,
    plan::{Layout, Plan},
    problem::Problem,
    solve::solve,
    stream::Sample,
};

/// What one rank does in one micro-batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MicroBatch {
    /// Sample ids.
    pub samples: Vec<u64>,
    /// Sum of their lengths (last phase).
    pub tokens: u64,
    /// Tokens that count in a per-token mean.
    pub loss_tokens: u64,
    /// The ranks that work on it together; empty if one alone.
    pub group: Vec<u32>,
}

/// One planned step, as one rank sees it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepPlan {
    /// From 0 in each epoch.
    pub step: u64,
    /// Sample ids of all ranks, rising: the same on any number of ranks.
    pub samples: Vec<u64>,
    /// Tokens of all ranks that count in a per-token mean.
    pub loss_tokens: u64,
    /// This rank's work.
    pub micro_batches: Vec<MicroBatch>,
    /// Predicted time of every rank, in units of the cost (seconds with sequence parallelism).
    pub loads: Vec<f64>,
    /// Predicted time of the step.
    pub makespan: f64,
    /// What no plan can beat.
    pub lower_bound: f64,
    /// Most tokens of any rank in one micro-batch.
    pub tokens_max: u64,
    /// Most windows that one of the samples waited.
    pub delay: u32,
    /// Identifies the plan of all ranks.
    pub hash: u64,
    /// What found it.
    pub algorithm: String,
}

/// Turns samples into planned steps; knows the settings, not the data.
#[derive(Clone, Debug)]
pub struct Planner {
    /// Settings without lengths.
    pub template: Problem,
    /// Whose micro-batches are given out.
    pub rank: u32,
}

impl Planner {
    /// Checks the settings.
    pub fn new(template: Problem, rank: usize) -> Result<Self> {
        template.check_settings()?;
        if rank >= template.ranks {
            let what = format!("`rank` is {rank}, but there are {} ranks, from 0", template.ranks);
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        }
        Ok(Self { template, rank: rank as u32 })
    }

    /// The samples `from..` of `data` with their costs; ids are positions in `data` plus `first_id`.
    pub(crate) fn samples(
        &self,
        data: &Data,
        ids: impl Iterator<Item = usize>,
        first_id: u64,
    ) -> Result<Vec<Sample>> {
        let unit = phase_unit(&self.template.costs);
        let one = |index: usize| {
            let phases = self.template.costs.iter().zip(&data.lengths);
            let cost = phases.map(|(cost, lengths)| cost.at(lengths[index])).sum::<Option<u128>>();
            let cost = cost.and_then(|cost| u64::try_from(cost / u128::from(unit)).ok());
            let cost = cost.ok_or_else(|| {
                let lengths: Vec<u64> = data.lengths.iter().map(|phase| phase[index]).collect();
                let what = format!("the cost of sample {index} of length {lengths:?} overflows");
                Diagnostic::new(Code::COST_OVERFLOW, what)
            })?;
            let source = data.sources.get(index).copied().unwrap_or(0);
            Ok(Sample { id: first_id + index as u64, cost, source, age: 0 })
        };
        ids.map(one).collect()
    }

    /// Plans one step. `row` finds a sample's position in `data` by its id.
    pub(crate) fn plan(
        &self,
        step: u64,
        samples: &[Sample],
        data: &Data,
        row: impl Fn(u64) -> usize,
    ) -> Result<StepPlan> {
        let mut ids: Vec<u64> = samples.iter().map(|sample| sample.id).collect();
        ids.sort_unstable();
        let rows: Vec<usize> = ids.iter().map(|id| row(*id)).collect();
        let of = |values: &Vec<u64>| rows.iter().map(|row| values[*row]).collect();
        let problem = Problem { lengths: data.lengths.iter().map(of).collect(), ..self.template.clone() };
        let plan = solve(&problem).map_err(|diagnostic| rename(diagnostic, &ids))?;
        let loss = |local: &u32| data.loss_tokens(rows[*local as usize]);
        let micro = |batch: &Vec<u32>, group: Vec<u32>| MicroBatch {
            samples: batch.iter().map(|local| ids[*local as usize]).collect(),
            tokens: batch
                .iter()
                .map(|local| problem.lengths[problem.lengths.len() - 1][*local as usize])
                .sum(),
            loss_tokens: batch.iter().map(loss).sum(),
            group,
        };
        Ok(StepPlan {
            step,
            loss_tokens: (0..ids.len() as u32).map(|local| loss(&local)).sum(),
            micro_batches: self.own(&plan, micro),
            loads: plan.loads.iter().map(|load| plan.unit.scale(*load)).collect(),
            makespan: plan.unit.scale(plan.makespan),
            lower_bound: plan.unit.scale(plan.lower_bound),
            tokens_max: plan.tokens_max,
            delay: samples.iter().map(|sample| sample.age).max().unwrap_or(0),
            hash: plan_hash(&ids, &plan),
            algorithm: plan.algorithm,
            samples: ids,
        })
    }

    /// This rank's micro-batches. With groups: in step order, those of the groups that it belongs to.
    fn own(&self, plan: &Plan, micro: impl Fn(&Vec<u32>, Vec<u32>) -> MicroBatch) -> Vec<MicroBatch> {
        match &plan.layout {
            Layout::Ranks(ranks) => {
                ranks[self.rank as usize].iter().map(|batch| micro(batch, Vec::new())).collect()
            }
            Layout::Groups(groups) => {
                let mine = groups.iter().filter(|group| group.ranks.contains(&self.rank));
                let steps = mine.clone().map(|group| group.micro_batches.len()).max().unwrap_or(0);
                let work = |step: usize| {
                    let active = |group: &&crate::plan::Group| {
                        group.micro_batches.get(step).is_some_and(|batch| !batch.is_empty())
                    };
                    let group = mine.clone().find(active);
                    group.map_or_else(
                        || micro(&Vec::new(), Vec::new()),
                        |group| micro(&group.micro_batches[step], group.ranks.clone()),
                    )
                };
                (0..steps).map(work).collect()
            }
        }
    }
}

/// Puts the data set's number of a sample in place of its number within the step.
fn rename(mut diagnostic: Box<Diagnostic>, ids: &[u64]) -> Box<Diagnostic> {
    let words: Vec<String> = diagnostic.message.split(' ').map(str::to_owned).collect();
    let at = words.iter().position(|word| word == "sample").map(|at| at + 1);
    if let Some((at, local)) = at.and_then(|at| Some((at, words.get(at)?.parse::<usize>().ok()?)))
        && let Some(id) = ids.get(local)
    {
        let mut words = words;
        words[at] = id.to_string();
        diagnostic.message = words.join(" ");
    }
    diagnostic
}

fn plan_hash(ids: &[u64], plan: &Plan) -> u64 {
    let mut hasher = Fingerprinter::new();
    for id in ids {
        hasher.number(*id);
    }
    hasher.number(plan.hash()).finish().low64()
}
