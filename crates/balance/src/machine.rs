//! Ranks, the group sizes that they may form, and how long each sample takes on each size.

use base::{Code, Diagnostic, Result};

use crate::{bound::Limit, cost::COST_LIMIT};

/// Groups of ranks that work on one sample together.
#[derive(Clone, PartialEq, Debug)]
pub struct SequenceParallel {
    /// Allowed group sizes, rising.
    pub degrees: Vec<usize>,
    /// Bytes that the all-to-all exchanges move per token (all passes).
    pub bytes_per_token: f64,
    /// (largest group size, bytes per second) with rising sizes.
    pub bandwidth: Vec<(usize, f64)>,
    /// Ranks that share a node; a group lies within one node or takes whole ones.
    pub ranks_per_node: usize,
    /// Operations per second of one rank.
    pub rate: f64,
    /// Passes over a sample: 1 for a forward pass, 3 with its backward pass, 4 with recomputation.
    pub passes: f64,
}

impl SequenceParallel {
    /// Seconds of a sample of `length` tokens and `operations` per pass on `degree` ranks:
    /// `passes·operations/(degree·rate) + [degree > 1]·bytes·(length/degree)·(degree - 1)/degree / bandwidth(degree)`.
    pub fn seconds(&self, length: u64, operations: f64, degree: usize) -> f64 {
        let ranks = degree as f64;
        let compute = self.passes * operations / (ranks * self.rate);
        if degree == 1 {
            return compute;
        }
        let bytes = self.bytes_per_token * (length as f64 / ranks) * (ranks - 1.0) / ranks;
        compute + bytes / self.bandwidth_of(degree)
    }

    fn bandwidth_of(&self, degree: usize) -> f64 {
        let row = self.bandwidth.iter().find(|row| degree <= row.0).or(self.bandwidth.last());
        row.map_or(f64::INFINITY, |row| row.1)
    }
}

/// A problem reduced to integers: durations of samples on groups of each allowed size.
#[derive(Clone, Debug)]
pub struct Machine {
    /// How many ranks there are.
    pub ranks: usize,
    /// Ranks that share a node.
    pub ranks_per_node: usize,
    /// Allowed group sizes, rising.
    pub degrees: Vec<usize>,
    /// By degree, then sample: in units.
    pub times: Vec<Vec<u64>>,
    /// By sample.
    pub tokens: Vec<u64>,
    /// Tokens that one rank can hold in one micro-batch.
    pub cap: u64,
    /// By sample: the index of the smallest degree whose ranks can hold it.
    pub smallest: Vec<usize>,
}

/// One group: its first rank, and the index of its degree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The group takes this rank and the ones after it.
    pub first_rank: usize,
    /// Index into [`Machine::degrees`].
    pub degree: usize,
}

impl Machine {
    /// Ranks on their own: no groups, `costs` as times.
    pub fn flat(ranks: usize, costs: Vec<u64>, tokens: Vec<u64>, cap: Option<u64>) -> Result<Self> {
        Self::new((ranks, ranks), vec![1], vec![costs], tokens, cap)
    }

    /// Groups of ranks; also returns the seconds that one unit of time is: a power of two, the smallest for which no sum
    /// overflows.
    pub fn grouped(
        ranks: usize,
        parallel: &SequenceParallel,
        samples: &[(u64, f64)],
        cap: Option<u64>,
    ) -> Result<(Self, f64)> {
        let degrees: Vec<usize> =
            parallel.degrees.iter().copied().filter(|degree| *degree <= ranks).collect();
        if degrees.is_empty() {
            let what = format!("no sequence-parallel degree is at most the number of ranks, {ranks}");
            return Err(Diagnostic::new(Code::BAD_PROBLEM, what));
        }
        let work = |sample: &(u64, f64)| {
            let on = |degree: &usize| *degree as f64 * parallel.seconds(sample.0, sample.1, *degree);
            degrees.iter().map(on).fold(0.0, f64::max)
        };
        let total: f64 = samples.iter().map(work).sum();
        if !total.is_finite() || total <= 0.0 {
            let what = format!("the predicted times add up to {total} seconds");
            return Err(
                Diagnostic::new(Code::COST_OVERFLOW, what).hint("check `cost`, `rate` and `bandwidth`")
            );
        }
        let mut unit = 1.0_f64;
        while total / unit > (COST_LIMIT / 8) as f64 {
            unit *= 2.0;
        }
        while total / unit < (COST_LIMIT / 16) as f64 {
            unit /= 2.0;
        }
        let time = |degree: usize, sample: &(u64, f64)| {
            ((parallel.seconds(sample.0, sample.1, degree) / unit).round() as u64).max(1)
        };
        let times = degrees.iter().map(|degree| samples.iter().map(|sample| time(*degree, sample)).collect());
        let times = times.collect();
        let tokens = samples.iter().map(|sample| sample.0).collect();
        let machine = Self::new((ranks, parallel.ranks_per_node), degrees, times, tokens, cap)?;
        Ok((machine, unit))
    }

    fn new(
        (ranks, ranks_per_node): (usize, usize),
        degrees: Vec<usize>,
        times: Vec<Vec<u64>>,
        tokens: Vec<u64>,
        cap: Option<u64>,
    ) -> Result<Self> {
        let cap = cap.unwrap_or(u64::MAX);
        let room = |degree: usize| cap.saturating_mul(degree as u64);
        let fits = |(index, length): (usize, &u64)| {
            let smallest = degrees.iter().position(|degree| *length <= room(*degree));
            smallest.ok_or_else(|| giant(index, *length, cap, degrees[degrees.len() - 1]))
        };
        let smallest = tokens.iter().enumerate().map(fits).collect::<Result<_>>()?;
        Ok(Self { ranks, ranks_per_node, degrees, times, tokens, cap, smallest })
    }

    /// Tokens that a group can hold in one micro-batch.
    pub fn room(&self, degree: usize) -> u64 {
        self.cap.saturating_mul(self.degrees[degree] as u64)
    }

    /// The least rank-time that a sample takes on any group that can hold it.
    pub fn least_work(&self, sample: usize) -> u64 {
        self.allowed(sample)
            .map(|degree| self.work(degree, sample))
            .min()
            .expect("every sample fits a degree")
    }

    /// The time of a sample on a group, times the group's ranks.
    pub fn work(&self, degree: usize, sample: usize) -> u64 {
        self.times[degree][sample] * self.degrees[degree] as u64
    }

    fn allowed(&self, sample: usize) -> std::ops::Range<usize> {
        self.smallest[sample]..self.degrees.len()
    }

    /// Of the degrees that finish a sample within `limit`, the one with the least rank-time; the fastest if none does.
    pub fn best_degree(&self, sample: usize, limit: u64) -> usize {
        let quick = self.allowed(sample).filter(|degree| self.times[*degree][sample] <= limit);
        let best = quick.min_by_key(|degree| (self.work(*degree, sample), *degree));
        best.unwrap_or_else(|| self.fastest(sample))
    }

    /// The degree on which a sample ends first.
    pub fn fastest(&self, sample: usize) -> usize {
        let fastest = self.allowed(sample).min_by_key(|degree| (self.times[*degree][sample], *degree));
        fastest.expect("every sample fits a degree")
    }

    /// What no plan can beat. Within a makespan `T`, of one step or of several, a sample can only use degrees that finish it
    /// within `T`: the smallest `T` that is not exceeded by the least rank-time under that condition, spread over all ranks.
    pub fn timed_bound(&self) -> (u64, Limit) {
        let (bound, limit) = self.bound();
        let work = |most: u64| self.work_within(most);
        let (mut low, mut high) = (bound, work(bound).max(bound));
        while high - low > bound / 4096 {
            let middle = low + (high - low) / 2;
            if work(middle) <= middle { high = middle } else { low = middle + 1 }
        }
        (low, if low > bound { Limit::LargeGroups } else { limit })
    }

    /// The mean over all ranks of the least rank-time on degrees that finish a sample within `most`.
    pub fn work_within(&self, most: u64) -> u64 {
        let least = |sample: usize| self.work(self.best_degree(sample, most), sample);
        let total: u64 = (0..self.tokens.len()).map(least).sum();
        total.div_ceil(self.ranks as u64)
    }

    /// The simpler bound: all ranks busy with the least rank-time of every sample, or the slowest sample where it is
    /// fastest.
    fn bound(&self) -> (u64, Limit) {
        let (mean, giant) = (self.mean(), self.giant());
        if giant > mean { (giant, Limit::Giant) } else { (mean, Limit::Mean) }
    }

    /// The least rank-time of all samples, spread over all ranks.
    pub fn mean(&self) -> u64 {
        let total: u64 = (0..self.tokens.len()).map(|sample| self.least_work(sample)).sum();
        total.div_ceil(self.ranks as u64)
    }

    /// The slowest sample where it is fastest.
    pub fn giant(&self) -> u64 {
        (0..self.tokens.len()).map(|sample| self.times[self.fastest(sample)][sample]).max().unwrap_or(0)
    }

    /// Samples from the longest to the shortest, ties by time, then id.
    pub fn falling(&self) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..self.tokens.len() as u32).collect();
        let key = |id: &u32| (self.tokens[*id as usize], self.times[0][*id as usize]);
        ids.sort_by(|a, b| key(b).cmp(&key(a)).then(a.cmp(b)));
        ids
    }
}

/// A sample that fits nowhere.
pub fn giant(index: usize, length: u64, cap: u64, degree: usize) -> Box<Diagnostic> {
    let holders = if degree == 1 { "one rank holds".to_owned() } else { format!("{degree} ranks hold") };
    let what = format!("sample {index} of length {length} fits no rank: the cap is {cap} tokens");
    let what = if degree == 1 { what } else { what.replace("no rank", "no group of ranks") };
    Diagnostic::new(Code::GIANT_SAMPLE, what)
        .because(format!("{holders} at most {} tokens in one micro-batch", cap.saturating_mul(degree as u64)))
        .hint("raise `tokens_per_rank`, allow a larger sequence-parallel degree, or leave the sample out")
}

/// Hands out aligned groups of ranks; nothing is given back.
pub struct Allocator<'a> {
    machine: &'a Machine,
    taken: Vec<bool>,
    cursors: Vec<usize>,
    /// Ranks that no group has.
    pub left: usize,
}

impl<'a> Allocator<'a> {
    /// All ranks free.
    pub fn new(machine: &'a Machine) -> Self {
        let cursors = vec![0; machine.degrees.len()];
        Self { machine, taken: vec![false; machine.ranks], cursors, left: machine.ranks }
    }

    /// The next free group of a degree: within one node, or of whole nodes.
    pub fn take(&mut self, degree: usize) -> Option<Place> {
        let size = self.machine.degrees[degree];
        let node = self.machine.ranks_per_node;
        while self.cursors[degree] + size <= self.machine.ranks {
            let first = self.cursors[degree];
            let after_node = (first / node + 1) * node;
            self.cursors[degree] = match size <= node {
                true if first + size > after_node => {
                    self.cursors[degree] = after_node;
                    continue;
                }
                true => first + size,
                false => after_node,
            };
            if !self.taken[first..first + size].contains(&true) {
                self.taken[first..first + size].fill(true);
                self.left -= size;
                return Some(Place { first_rank: first, degree });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parallel(degrees: &[usize]) -> SequenceParallel {
        SequenceParallel {
            degrees: degrees.to_vec(),
            bytes_per_token: 4_915_200.0,
            bandwidth: vec![(8, 300e9), (64, 40e9)],
            ranks_per_node: 8,
            rate: 4e14,
            passes: 4.0,
        }
    }

    #[test]
    fn time_follows_the_formula() {
        let operations = 24.33e9 * 1000.0 + 819_200.0 * 1e6;
        let sp = parallel(&[1, 4]);
        assert!((sp.seconds(1000, operations, 1) - 4.0 * operations / 4e14).abs() < 1e-12);
        let exchange = 4_915_200.0 * 250.0 * 0.75 / 300e9;
        assert!((sp.seconds(1000, operations, 4) - operations / 4e14 - exchange).abs() < 1e-12);
    }

    #[test]
    fn groups_never_straddle_a_node_in_part() {
        let (machine, _) = Machine::grouped(20, &parallel(&[1, 4, 8, 16]), &[(10, 1e12)], None).unwrap();
        let mut allocator = Allocator::new(&machine);
        let firsts: Vec<_> =
            [2, 1, 1, 1, 0].map(|degree| allocator.take(degree).map(|p| p.first_rank)).to_vec();
        assert_eq!(firsts, [Some(0), Some(8), Some(12), Some(16), None]);
        assert_eq!(Allocator::new(&machine).take(3).map(|place| place.first_rank), Some(0));
    }

    #[test]
    fn a_giant_sample_is_named_with_its_length_and_the_cap() {
        let error = Machine::flat(4, vec![1, 1], vec![10, 999], Some(100)).unwrap_err();
        assert!(error.message.contains("sample 1 of length 999") && error.message.contains("100"), "{error}");
    }
}
