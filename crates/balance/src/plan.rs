//! The answer: who takes what, what it takes, and how good that is.

use std::ops::Range;

use crate::{
    bound::Limit,
    problem::{Objective, Problem},
    redispatch::Redispatch,
};

/// What one unit of [`Plan::loads`] is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Unit {
    /// So many units of the problem's cost.
    Whole(u64),
    /// So many seconds (a power of two).
    Seconds(f64),
}

impl Unit {
    /// A number of units as a number of the problem's own units.
    pub fn scale(self, units: u64) -> f64 {
        match self {
            Self::Whole(unit) => (u128::from(units) * u128::from(unit)) as f64,
            Self::Seconds(unit) => units as f64 * unit,
        }
    }
}

/// Ranks that work on each sample together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Its ranks, rising and contiguous.
    pub ranks: Vec<u32>,
    /// Index into the allowed degrees.
    pub degree: usize,
    /// By micro-step: sample ids; empty in steps that the group sits out (other groups may then use its ranks).
    pub micro_batches: Vec<Vec<u32>>,
}

/// Who takes what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Layout {
    /// By rank, then micro-batch: sample ids.
    Ranks(Vec<Vec<Vec<u32>>>),
    /// By sequence-parallel group.
    Groups(Vec<Group>),
}

/// An assignment with its certificate.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// Who takes what.
    pub layout: Layout,
    /// What the numbers below count.
    pub unit: Unit,
    /// Busy time by rank.
    pub loads: Vec<u64>,
    /// Busy time by phase, then rank; empty for one phase.
    pub phase_loads: Vec<Vec<u64>>,
    /// By phase, rank and micro-batch, where samples move between phases; empty otherwise. [`Plan::layout`] is then the
    /// last phase's.
    pub phase_batches: Vec<Vec<Vec<Vec<u32>>>>,
    /// What moving between phases costs; part of the makespan.
    pub moving: u64,
    /// The objective's value.
    pub makespan: u64,
    /// No plan is better than this.
    pub lower_bound: u64,
    /// Which argument gives the bound.
    pub limit: Limit,
    /// Most tokens that a rank holds in one micro-batch.
    pub tokens_max: u64,
    /// What found it.
    pub algorithm: String,
}

impl Plan {
    /// Measures a layout. `time` gives a sample's time on a rank or group (by its index).
    pub(crate) fn new(
        problem: &Problem,
        layout: Layout,
        unit: Unit,
        time: impl Fn(usize, u32) -> u64,
        (lower_bound, limit, algorithm): (u64, Limit, String),
    ) -> Self {
        let rows = Rows::new(&layout, time);
        let loads = rows.loads(problem.ranks);
        let makespan = rows.makespan(problem, &loads);
        let tokens_max = tokens_max(problem, &layout);
        Self {
            layout,
            unit,
            loads,
            phase_loads: Vec::new(),
            phase_batches: Vec::new(),
            moving: 0,
            makespan,
            lower_bound,
            limit,
            tokens_max,
            algorithm,
        }
    }

    /// Measures each phase on its own: all ranks meet after it, so the slowest ranks of the phases add up.
    pub(crate) fn set_phases(&mut self, phases: &[Vec<u64>], samples: &[Vec<u32>]) {
        let load = |costs: &[u64], ids: &[u32]| ids.iter().map(|id| costs[*id as usize]).sum::<u64>();
        self.phase_loads =
            phases.iter().map(|costs| samples.iter().map(|ids| load(costs, ids)).collect()).collect();
        let slowest = |loads: &Vec<u64>| loads.iter().copied().max().unwrap_or(0);
        self.makespan = self.phase_loads.iter().map(slowest).sum();
    }

    /// Replaces the one assignment by one for each phase.
    pub(crate) fn redispatch(&mut self, phases: &[Vec<u64>], found: Redispatch) {
        let load = |costs: &[u64], ids: &[u32]| ids.iter().map(|id| costs[*id as usize]).sum::<u64>();
        let loads = |(costs, samples): (&Vec<u64>, &Vec<Vec<u32>>)| {
            samples.iter().map(|ids| load(costs, ids)).collect::<Vec<u64>>()
        };
        self.phase_loads = phases.iter().zip(&found.samples).map(loads).collect();
        self.loads =
            (0..self.loads.len()).map(|r| self.phase_loads.iter().map(|loads| loads[r]).sum()).collect();
        self.layout = Layout::Ranks(found.phases[found.phases.len() - 1].clone());
        (self.phase_batches, self.moving, self.makespan) = (found.phases, found.moving, found.makespan);
        "redispatch".clone_into(&mut self.algorithm);
    }

    /// How far the makespan is above the bound: 0 is optimal.
    pub fn gap(&self) -> f64 {
        if self.lower_bound == 0 { 0.0 } else { self.makespan as f64 / self.lower_bound as f64 - 1.0 }
    }

    /// 64 bits that two ranks compare to know that they computed the same plan.
    pub fn hash(&self) -> u64 {
        let mut hasher = xxhash_rust::xxh3::Xxh3::new();
        let mut add = |number: usize| hasher.update(&(number as u32).to_le_bytes());
        let mut batches = |micro_batches: &[Vec<u32>]| {
            add(micro_batches.len());
            for batch in micro_batches {
                add(batch.len());
                for sample in batch {
                    add(*sample as usize);
                }
            }
        };
        self.phase_batches.iter().flatten().for_each(|rank| batches(rank));
        match &self.layout {
            Layout::Ranks(ranks) => ranks.iter().for_each(|rank| batches(rank)),
            Layout::Groups(groups) => {
                for group in groups {
                    batches(std::slice::from_ref(&group.ranks));
                    batches(&group.micro_batches);
                }
            }
        }
        hasher.digest()
    }
}

/// Ranks or groups with the times of their micro-batches.
struct Rows {
    rows: Vec<Row>,
    times: Vec<u64>,
}

struct Row {
    ranks: Range<u32>,
    /// Where its times stand in [`Rows::times`].
    times: Range<usize>,
}

impl Rows {
    fn new(layout: &Layout, time: impl Fn(usize, u32) -> u64) -> Self {
        let mut rows = Self { rows: Vec::new(), times: Vec::new() };
        match layout {
            Layout::Ranks(ranks) => {
                rows.rows.reserve(ranks.len());
                rows.times.reserve(ranks.len());
                for (rank, batches) in ranks.iter().enumerate() {
                    rows.add(rank as u32..rank as u32 + 1, batches, |sample| time(rank, sample));
                }
            }
            Layout::Groups(groups) => {
                for (index, group) in groups.iter().enumerate() {
                    let ranks = group.ranks[0]..group.ranks[0] + group.ranks.len() as u32;
                    rows.add(ranks, &group.micro_batches, |sample| time(index, sample));
                }
            }
        }
        rows
    }

    fn add(&mut self, ranks: Range<u32>, batches: &[Vec<u32>], time: impl Fn(u32) -> u64) {
        let start = self.times.len();
        self.times.extend(batches.iter().map(|batch| batch.iter().map(|sample| time(*sample)).sum::<u64>()));
        self.rows.push(Row { ranks, times: start..self.times.len() });
    }

    fn times(&self, row: &Row) -> &[u64] {
        &self.times[row.times.clone()]
    }

    fn sum(&self, row: &Row) -> u64 {
        self.times(row).iter().sum()
    }

    fn loads(&self, ranks: usize) -> Vec<u64> {
        let mut loads = vec![0; ranks];
        for row in &self.rows {
            let sum = self.sum(row);
            loads[row.ranks.start as usize..row.ranks.end as usize].iter_mut().for_each(|load| *load += sum);
        }
        loads
    }

    fn makespan(&self, problem: &Problem, loads: &[u64]) -> u64 {
        let largest = |row: &Row| self.times(row).iter().copied().max().unwrap_or(0);
        match problem.objective {
            Objective::Free => loads.iter().copied().max().unwrap_or(0),
            Objective::Pipeline => {
                let bubbles = problem.stages.unwrap_or(1) - 1;
                self.rows.iter().map(|row| self.sum(row) + bubbles * largest(row)).max().unwrap_or(0)
            }
            Objective::Lockstep => self.lockstep(problem.ranks),
            Objective::Grouped => {
                let size = problem.shard_group.unwrap_or(problem.ranks);
                let shard = |rank: u32| rank as usize / size;
                let spans = self.rows.iter().any(|row| shard(row.ranks.start) != shard(row.ranks.end - 1));
                self.lockstep(if spans { problem.ranks } else { size })
            }
        }
    }

    /// The slowest of the shard groups of `size` ranks: its sum over steps of the slowest row.
    fn lockstep(&self, size: usize) -> u64 {
        let mut shards: Vec<Vec<u64>> = Vec::new();
        for row in &self.rows {
            let shard = row.ranks.start as usize / size;
            shards.resize(shards.len().max(shard + 1), Vec::new());
            let (steps, times) = (&mut shards[shard], self.times(row));
            steps.resize(steps.len().max(times.len()), 0);
            steps.iter_mut().zip(times).for_each(|(step, time)| *step = (*step).max(*time));
        }
        shards.iter().map(|steps| steps.iter().sum()).max().unwrap_or(0)
    }
}

/// Over all phases. A group's tokens are spread evenly over its ranks.
fn tokens_max(problem: &Problem, layout: &Layout) -> u64 {
    let tokens =
        |phase: &[u64], batch: &[u32]| batch.iter().map(|sample| phase[*sample as usize]).sum::<u64>();
    let most = |batches: &[Vec<u32>], ranks: u64| {
        let all = problem.lengths.iter().flat_map(|phase| batches.iter().map(|batch| tokens(phase, batch)));
        all.max().unwrap_or(0).div_ceil(ranks)
    };
    match layout {
        Layout::Ranks(ranks) => ranks.iter().map(|rank| most(rank, 1)).max().unwrap_or(0),
        Layout::Groups(groups) => {
            groups.iter().map(|group| most(&group.micro_batches, group.ranks.len() as u64)).max().unwrap_or(0)
        }
    }
}
