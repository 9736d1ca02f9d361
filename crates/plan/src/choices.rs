//! Which operations of forward run again under a limit on what is held.
//!
//! Each operation of forward is gone after its last reader in forward, kept for backward, or made again there, from operands that are kept or
//! made again themselves. Forward is cut into segments: what crosses between two is kept, so that backward makes one segment at a time again. What is
//! kept, and what the segment of the worst moment makes again, weighs its bytes; within a budget of them the solver finds the choices that take
//! least time. Several numbers of segments are tried, what each choice really holds is [counted](Forward::counted), and single operations
//! of the best are changed while that makes it better.

use fixedbitset::FixedBitSet;
use passes::Positions;
use solve::{Options, Solver};

use crate::{
    choice_tables::ChoiceTables,
    forward::{Forward, Most, Pass},
    segments::Segments,
};

/// Numbers of segments that are tried.
const SEGMENTS: [usize; 15] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
/// How many budgets are tried for each.
const BUDGETS: usize = 6;
/// For how many moments at once budgets are tried.
const MOMENTS: usize = 2;
/// Of so many operations every choice is tried.
const FEW: usize = 10;
/// How many operations choices are counted over when single ones are changed.
const COUNTED: usize = 1 << 21;

/// Operations that run again, and what they take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Which.
    pub again: FixedBitSet,
    /// What they take, in picoseconds.
    pub time: i64,
    /// The most that is alive then.
    pub most: Most,
}

impl Forward {
    /// The choice of least time that holds at most `limit`; where none does, the one that holds least.
    pub fn within(&self, limit: u64) -> Option<Choice> {
        let left = self.operations.iter().filter(|operation| operation.backward.is_some()).count();
        let mut best: Option<Choice> = None;
        let rank = |choice: &Choice| match choice.most.bytes {
            most if most <= limit => (false, choice.time, most),
            most => (true, i64::try_from(most).unwrap_or(i64::MAX), choice.time.unsigned_abs()),
        };
        for count in SEGMENTS.into_iter().filter(|count| *count <= left.max(2)) {
            let segments = Segments::new(self, count);
            for choice in self.choices(&segments, limit) {
                if best.as_ref().is_none_or(|best| rank(&choice) < rank(best)) {
                    best = Some(choice);
                }
            }
        }
        if let Some(all) = self.every_choice() {
            best = best.into_iter().chain(all).min_by_key(rank);
        }
        best.map(|best| self.improved(best, rank))
    }

    /// All choices, where there are few.
    fn every_choice(&self) -> Option<Vec<Choice>> {
        let free: Vec<usize> = self.free().collect();
        (free.len() <= FEW).then(|| {
            let choices = (0..1_u32 << free.len()).map(|bits| {
                let mut again = FixedBitSet::with_capacity(self.operations.len());
                free.iter().enumerate().for_each(|(at, number)| again.set(*number, bits >> at & 1 == 1));
                self.choice(&again)
            });
            choices.collect()
        })
    }

    /// The operations that can run again and need not be held anyway.
    fn free(&self) -> impl Iterator<Item = usize> {
        let decides = |number: &usize| self.follows[*number].is_none() && self.may_run_again(*number);
        (0..self.operations.len()).filter(decides)
    }

    /// Whether an operation can run again and need not be held anyway.
    fn may_run_again(&self, number: usize) -> bool {
        self.operations[number].is_repeatable && !self.operations[number].is_pinned
    }

    /// Everything that can be made again, in the number of segments with which least is held.
    pub fn full(&self) -> Option<Choice> {
        let all = SEGMENTS.into_iter().map(|count| self.choice(&Segments::new(self, count).all_again(self)));
        all.min_by_key(|choice| (choice.most.bytes, choice.time))
            .filter(|choice| choice.again.count_ones(..) > 0)
    }

    /// The positions of a choice's operations in program order.
    pub fn positions(&self, choice: &Choice) -> Positions {
        Positions(choice.again.ones().map(|number| self.operations[number].position as u32).collect())
    }

    fn choice(&self, again: &FixedBitSet) -> Choice {
        let mut of_all = again.clone();
        of_all.grow(self.operations.len());
        for (number, leader) in self.follows.iter().enumerate() {
            if let Some(leader) = leader {
                of_all.set(number, again.contains(*leader) && self.may_run_again(number));
            }
        }
        let again = self.needed(&of_all);
        let (time, most) = self.counted(&again);
        Choice { again, time, most }
    }

    /// That nothing runs again.
    pub fn nothing(&self) -> Choice {
        self.choice(&FixedBitSet::with_capacity(self.operations.len()))
    }

    /// Choices with these segments: everything again, and, where that holds at most `limit`, what budgets on the worst moments give.
    fn choices(&self, segments: &Segments, limit: u64) -> Vec<Choice> {
        let full = self.choice(&segments.all_again(self));
        if full.most.bytes > limit {
            return vec![full];
        }
        let mut found = vec![full];
        let mut worst = self.nothing().most;
        let mut moments: Vec<usize> = Vec::new();
        for _ in 0..MOMENTS {
            match segments.at(self, worst.position) {
                Some(segment) if !moments.contains(&segment) => moments.push(segment),
                _ => break,
            }
            let budgeted = self.budgeted(segments, &moments, worst.bytes, limit);
            let fits = budgeted.iter().any(|choice| choice.most.bytes <= limit);
            let last = budgeted.last().map(|choice| choice.most);
            found.extend(budgeted);
            match last {
                Some(most) if !fits => worst = most,
                _ => break,
            }
        }
        found
    }

    /// The choices of least time under budgets that fall, by what is over the limit, until one keeps it, and rise again as far as one does.
    fn budgeted(&self, segments: &Segments, moments: &[usize], held: u64, limit: u64) -> Vec<Choice> {
        let tables = ChoiceTables::new(self, segments, moments);
        let options = Options { dual: false, blame: false, ..Options::default() };
        let mut solver = Solver::new(&tables.problem, options);
        // Weights count each moment in each pass that decides for itself.
        let decides = |pass: &&Pass| {
            pass.operations.clone().next_back().is_none_or(|last| self.follows[last].is_none())
        };
        let each = (self.passes.iter().filter(decides).count() * moments.len()) as u64;
        let below = |weight: u64, held: u64| weight.saturating_sub((held - limit).saturating_mul(each));
        let (mut light, mut heavy) = (0, tables.heaviest);
        let mut budget = if held > limit { below(heavy, held) } else { heavy };
        let mut found = Vec::new();
        for _ in 0..BUDGETS {
            let mut next = 0;
            if let Ok(budgeted) = solver.solve_within(budget) {
                let choice = self.choice(&tables.again(&budgeted.solution.choices));
                if choice.most.bytes <= limit {
                    light = budget;
                } else {
                    heavy = budgeted.weight.min(heavy);
                    next = below(heavy, choice.most.bytes);
                }
                found.push(choice);
            } else {
                light = budget + 1;
            }
            // Closer than this they differ in small results alone.
            if heavy <= light + light / 64 {
                break;
            }
            budget = next.max(light + (heavy - light) / 2);
        }
        found
    }

    /// The choice with single operations changed while that makes it better, those first that take most.
    fn improved(&self, choice: Choice, rank: impl Fn(&Choice) -> (bool, i64, u64)) -> Choice {
        let mut best = choice;
        let mut dear: Vec<usize> = self.free().collect();
        dear.sort_by_key(|number| (-self.operations[*number].time, *number));
        let mut left = COUNTED / self.operations.len().max(1);
        loop {
            let before = rank(&best);
            for number in &dear {
                if left == 0 {
                    return best;
                }
                left -= 1;
                let mut again = best.again.clone();
                again.toggle(*number);
                let other = self.choice(&again);
                if rank(&other) < rank(&best) {
                    best = other;
                }
            }
            if rank(&best) == before {
                return best;
            }
        }
    }
}
