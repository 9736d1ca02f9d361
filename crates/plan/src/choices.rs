//! Which operations of forward run again, and which results are on the host, under a limit on what is held.
//!
//! Each operation of forward is gone after its last reader in forward, kept for backward, on the host until then, or made again there, from operands
//! that are kept, on the host or made again themselves. Forward is cut into segments: what crosses between two is kept, so that backward makes one segment at a time again. What is
//! kept, and what the segment of the worst moment makes again, weighs its bytes; within a budget of them the solver finds the choices that take
//! least time. Several numbers of segments are tried, what each choice really holds is [counted](Forward::counted), and single operations
//! of the best are changed while that makes it better.

use fixedbitset::FixedBitSet;
use passes::{Positions, Stays};
use solve::{Options, Solver};

use crate::{
    choice_tables::ChoiceTables,
    chosen::{Chosen, State, Weighed},
    forward::{Forward, Most, Pass},
    segments::Segments,
    stays::Ways,
};

/// Numbers of segments that are tried.
const SEGMENTS: [usize; 15] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192];
/// Of so many operations not all of these numbers are tried.
const MANY: usize = 1 << 10;
/// How many budgets are tried for each.
const BUDGETS: usize = 6;
/// After so many budgets that are not enough the next falls by as many times what is over the limit as the last ones fell short of it, up to some times.
const PATIENCE: usize = 2;
const MOST_TIMES: u64 = 4;
/// For how many moments at once budgets are tried.
const MOMENTS: usize = 2;
/// Where there are so many choices all are tried.
const FEW: usize = 1 << 10;
/// How what is on the host is weighed in tables: hundredths of the time of copies that count, where they are hidden and where they are waited for.
const HOST: [(State, i64); 2] = [(State::OnHost, 2), (State::Awaited, 100)];
/// How many operations choices are counted over when single ones are changed.
const COUNTED: usize = 1 << 21;

/// Operations that run again, results on the host, and what they take.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The operations that run again, as far as they are needed.
    pub again: FixedBitSet,
    /// What is on the host, and when.
    pub stays: Stays,
    /// What that takes, in picoseconds.
    pub time: i64,
    /// The most that is alive then.
    pub most: Most,
    /// The operations by number.
    chosen: Chosen,
}

impl Choice {
    /// Whether nothing runs again, and nothing is on the host.
    pub fn is_nothing(&self) -> bool {
        self.again.is_clear() && self.stays.is_empty()
    }
}

impl Forward {
    /// The choice of least time that holds at most `limit`; where none does, the one that holds least.
    pub fn within(&self, limit: u64) -> Option<Choice> {
        let in_segments = self.in_segments(limit, self.operations.len() <= MANY);
        let all = self.every_choice().into_iter().flatten();
        let best = in_segments.into_iter().chain(all).min_by_key(|choice| rank(choice, limit));
        best.map(|best| self.improved(best, limit))
    }

    /// The best choice that budgets give for every number of segments; or for each third of them, and those beside the best.
    fn in_segments(&self, limit: u64, is_every: bool) -> Option<Choice> {
        let left = self.operations.iter().filter(|operation| operation.backward.is_some()).count();
        let counts: Vec<usize> = SEGMENTS.into_iter().take_while(|count| *count <= left.max(2)).collect();
        let mut best: Option<(usize, Choice)> = None;
        let consider = |at: usize, best: &mut Option<(usize, Choice)>| {
            let known = best.as_ref().filter(|(_, best)| best.most.bytes <= limit).map(|(_, best)| best.time);
            for choice in self.choices(&Segments::new(self, counts[at]), limit, known) {
                if best.as_ref().is_none_or(|(_, best)| rank(&choice, limit) < rank(best, limit)) {
                    *best = Some((at, choice));
                }
            }
        };
        if is_every {
            (0..counts.len()).for_each(|at| consider(at, &mut best));
        } else {
            (1..counts.len()).step_by(3).for_each(|at| consider(at, &mut best));
            let found = best.as_ref().map_or(0, |(at, _)| *at);
            let beside = [found.checked_sub(1), Some(found + 1)].into_iter().flatten();
            beside.filter(|at| *at < counts.len()).for_each(|at| consider(at, &mut best));
        }
        best.map(|(_, choice)| choice)
    }

    /// All choices, where there are few.
    fn every_choice(&self) -> Option<Vec<Choice>> {
        let free: Vec<(usize, Vec<State>)> =
            self.free().map(|number| (number, self.states(number))).collect();
        let count = free.iter().try_fold(1_usize, |count, (_, states)| {
            count.checked_mul(states.len()).filter(|count| *count <= FEW)
        })?;
        let choices = (0..count).map(|mut code| {
            let mut chosen = Chosen::of(self.operations.len());
            for (number, states) in &free {
                chosen.set(*number, states[code % states.len()]);
                code /= states.len();
            }
            self.choice(&chosen)
        });
        Some(choices.collect())
    }

    /// The operations of which something can be chosen.
    fn free(&self) -> impl Iterator<Item = usize> {
        let decides = |number: &usize| self.follows[*number].is_none() && self.states(*number).len() > 1;
        (0..self.operations.len()).filter(decides)
    }

    /// What can be chosen of an operation.
    fn states(&self, number: usize) -> Vec<State> {
        let may = |state: &State| match state {
            State::Kept => true,
            State::Again => self.may_run_again(number),
            State::OnHost | State::Awaited => self.may_be_on_host(number),
        };
        State::ALL.into_iter().filter(may).collect()
    }

    /// Whether an operation can run again and need not be held anyway.
    fn may_run_again(&self, number: usize) -> bool {
        self.operations[number].is_repeatable && !self.operations[number].is_pinned
    }

    /// Whether an operation's results can be on the host and need not be held anyway.
    fn may_be_on_host(&self, number: usize) -> bool {
        self.operations[number].copy.is_some() && !self.operations[number].is_pinned
    }

    /// Everything that can be made again, in the number of segments with which least is held; what is kept for that, or everything, is on the host if
    /// it can be.
    pub fn full(&self, ways: Ways) -> Option<Choice> {
        let of = |count: usize| {
            let mut chosen = Chosen::of(self.operations.len());
            if ways.again {
                chosen.again = Segments::new(self, count).all_again(self);
            }
            self.choice(&if ways.host { self.rest_on_host(chosen, State::OnHost) } else { chosen })
        };
        let all = SEGMENTS.into_iter().take(if ways.again { SEGMENTS.len() } else { 1 }).map(of);
        all.min_by_key(|choice| (choice.most.bytes, choice.time)).filter(|choice| !choice.is_nothing())
    }

    /// The same with everything on the host that does not run again and can be there.
    fn rest_on_host(&self, mut chosen: Chosen, state: State) -> Chosen {
        for number in 0..self.operations.len() {
            if self.may_be_on_host(number) && chosen.state(number) == State::Kept {
                chosen.set(number, state);
            }
        }
        chosen
    }

    /// The positions of a choice's operations in program order.
    pub fn positions(&self, choice: &Choice) -> Positions {
        Positions(choice.again.ones().map(|number| self.operations[number].position as u32).collect())
    }

    fn choice(&self, chosen: &Chosen) -> Choice {
        let mut of_all = chosen.clone();
        for set in [&mut of_all.again, &mut of_all.host, &mut of_all.awaited] {
            set.grow(self.operations.len());
        }
        for (number, leader) in self.follows.iter().enumerate() {
            if let Some(leader) = leader {
                let state = chosen.state(*leader);
                of_all.set(number, if self.states(number).contains(&state) { state } else { State::Kept });
            }
        }
        let again = self.needed(&of_all.again);
        let (time, most, copies) = self.counted(&again, (&of_all.host, &of_all.awaited));
        let chosen = Chosen {
            again: again.clone(),
            host: copies.numbers(self.operations.len()),
            awaited: of_all.awaited,
        };
        Choice { again, stays: copies.stays(), time, most, chosen }
    }

    /// That nothing runs again and nothing is on the host.
    pub fn nothing(&self) -> Choice {
        self.choice(&Chosen::of(self.operations.len()))
    }

    /// Choices with these segments: those that hold least, and, where one of them holds at most `limit`, what budgets on the worst moments give that may
    /// take less time than what is `known` to.
    fn choices(&self, segments: &Segments, limit: u64, known: Option<i64>) -> Vec<Choice> {
        let again = Chosen { again: segments.all_again(self), ..Chosen::of(self.operations.len()) };
        let mut found = vec![self.choice(&again)];
        if self.link.is_some() {
            found.push(self.choice(&self.rest_on_host(again, State::Awaited)));
            let none = Chosen::of(self.operations.len());
            found.extend(
                [State::OnHost, State::Awaited]
                    .map(|state| self.choice(&self.rest_on_host(none.clone(), state))),
            );
        }
        if found.iter().all(|choice| choice.most.bytes > limit) {
            return found;
        }
        let host = if self.link.is_none() { &HOST[..1] } else { &HOST[..] };
        for on_host in host {
            let within = found.iter().filter(|choice| choice.most.bytes <= limit).map(|choice| choice.time);
            let known = within.chain(known).min();
            found.extend(self.at_moments(segments, *on_host, (limit, known)));
        }
        found
    }

    /// What budgets on the worst moments give.
    fn at_moments(
        &self,
        segments: &Segments,
        on_host: (State, i64),
        (limit, known): (u64, Option<i64>),
    ) -> Vec<Choice> {
        let mut found = Vec::new();
        let mut worst = self.nothing().most;
        let mut moments: Vec<usize> = Vec::new();
        for _ in 0..MOMENTS {
            match segments.at(self, worst.position) {
                Some(segment) if !moments.contains(&segment) => moments.push(segment),
                _ => break,
            }
            let tables = ChoiceTables::new(self, segments, &moments, on_host);
            let of = Weighed { segments: segments.count, moments: moments.clone(), on_host };
            let budgeted = self.budgeted((of, &tables), worst.bytes, (limit, known));
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

    /// The choices of least time under budgets that fall, by what is over the limit, until one keeps it, and rise again as far as one does. Under lower
    /// budgets they only take more.
    fn budgeted(
        &self,
        (of, tables): (Weighed, &ChoiceTables),
        held: u64,
        (limit, known): (u64, Option<i64>),
    ) -> Vec<Choice> {
        let options = Options { dual: false, blame: false, ..Options::default() };
        let known_minima = self.minima.borrow_mut().remove(&of).unwrap_or_default();
        let mut solver = Solver::new(&tables.problem, options).knowing(known_minima);
        // Weights count each moment in each pass that decides for itself.
        let decides = |pass: &&Pass| {
            pass.operations.clone().next_back().is_none_or(|last| self.follows[last].is_none())
        };
        let each = (self.passes.iter().filter(decides).count() * of.moments.len()) as u64;
        let excess = |held: u64| held.saturating_sub(limit).saturating_mul(each);
        let (mut light, mut heavy) = (0, tables.heaviest);
        // What choices over the limit weigh and hold, the last one behind the others.
        let mut over: Vec<(u64, u64)> = Vec::new();
        let mut budget = heavy.saturating_sub(excess(held));
        let mut found = Vec::new();
        for _ in 0..BUDGETS {
            let mut next = 0;
            if let Ok(budgeted) = solver.solve_within(budget) {
                let choice = self.choice(&tables.chosen(&budgeted.solution.choices));
                if choice.most.bytes <= limit {
                    light = budget;
                } else if known.is_some_and(|known| choice.time >= known) {
                    found.push(choice);
                    break;
                } else {
                    heavy = budgeted.weight.min(heavy);
                    over.push((budgeted.weight, choice.most.bytes));
                    let times = if over.len() > PATIENCE { slowness(&over, each) } else { 1 };
                    next = heavy.saturating_sub(excess(choice.most.bytes).saturating_mul(times));
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
        self.minima.borrow_mut().insert(of, solver.into_known());
        found
    }

    /// The choice with single operations changed while that makes it better, those first that take most.
    fn improved(&self, choice: Choice, limit: u64) -> Choice {
        let mut best = choice;
        let mut dear: Vec<usize> = self.free().collect();
        let copy = |number: usize| self.operations[number].copy.unwrap_or(0);
        dear.sort_by_key(|number| (-self.operations[*number].time.max(copy(*number)), *number));
        let mut left = COUNTED / self.operations.len().max(1);
        loop {
            let before = rank(&best, limit);
            for number in &dear {
                if left == 0 {
                    return best;
                }
                let now = best.chosen.state(*number);
                for state in self.states(*number).into_iter().filter(|state| *state != now) {
                    left = left.saturating_sub(1);
                    let mut chosen = best.chosen.clone();
                    chosen.set(*number, state);
                    let other = self.choice(&chosen);
                    if rank(&other, limit) < rank(&best, limit) {
                        best = other;
                    }
                }
            }
            if rank(&best, limit) == before {
                return best;
            }
        }
    }
}

/// How many times more weight than the two last choices over a limit differ by made them hold that much less, where each byte weighs as often as `each`.
fn slowness(over: &[(u64, u64)], each: u64) -> u64 {
    let [.., (heavier, more), (lighter, less)] = *over else { return 1 };
    let held = more.saturating_sub(less).saturating_mul(each);
    (heavier.saturating_sub(lighter) / held.max(1)).clamp(1, MOST_TIMES)
}

/// Less is better: less time within the limit, less memory beyond it.
fn rank(choice: &Choice, limit: u64) -> (bool, i64, u64) {
    match choice.most.bytes {
        most if most <= limit => (false, choice.time, most),
        most => (true, i64::try_from(most).unwrap_or(i64::MAX), choice.time.unsigned_abs()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use cluster::testing::{link, uniform};
    use cost::Machine;
    use ir::Mesh;
    use shard::canonical;

    use super::*;
    use crate::{
        layers::tests::{Tower, tower},
        run::settled,
    };

    #[test]
    fn budgets_fall_further_where_the_last_ones_fell_short() {
        assert_eq!(slowness(&[(100, 50)], 3), 1);
        assert_eq!(slowness(&[(200, 90), (100, 57)], 3), 1);
        assert_eq!(slowness(&[(300, 99), (200, 90), (100, 74)], 3), 2);
        assert_eq!(slowness(&[(200, 90), (100, 90)], 3), MOST_TIMES);
    }

    #[test]
    fn of_many_operations_some_numbers_of_segments_give_what_all_of_them_do() {
        let (cluster, mesh) = (uniform(1e14, 1e12, link(10_000.0, 1e11)), Mesh::along("ranks", 1));
        let machine = Machine { cluster: &cluster, mesh: &mesh };
        for layers in [300, 400] {
            let graph = canonical(&tower(Tower { layers, rows: 4096, width: 1024, reach: 1, odd: None }));
            let forward = Forward::new(&settled(&graph, false).unwrap(), machine, Ways::AGAIN);
            assert!(forward.operations.len() > MANY);
            let most = forward.nothing().most.bytes;
            for tenths in [2, 4, 6, 9] {
                let limit = most / 10 * tenths;
                let of = |is_every| forward.in_segments(limit, is_every).unwrap();
                let (some, all) = (of(false), of(true));
                assert_eq!(some.most.bytes <= limit, all.most.bytes <= limit);
                assert!(some.time <= all.time / 100 * 101, "{tenths}: {} for {}", some.time, all.time);
            }
        }
    }
}
