//! The best schedule of a small pipeline, by trying everything that may be better than what is known.
//!
//! Actions are added in the order in which they begin. Micro-batches of a chunk go in their order: they are all alike, so that nothing is lost.

use rustc_hash::FxHashMap;

use crate::{
    action::{Action, Pass},
    costs::Costs,
    progress::Progress,
    rows::Schedule,
};

/// Of states that are as far, at most so many are kept to compare with.
const MOST_KEPT: usize = 32;

/// How far a schedule is, and when its last action began.
#[derive(Clone)]
struct State {
    done: Progress,
    now: i64,
}

struct Exact<'a> {
    costs: &'a Costs,
    micro_batches: usize,
    /// What must follow forward, and the first half of backward, of a chunk until the step ends.
    after_forward: Vec<i64>,
    after_inputs: Vec<i64>,
    /// The states that were seen, by how far they are.
    seen: FxHashMap<Vec<u8>, Vec<Vec<i64>>>,
    path: Vec<Action>,
    /// The best step, and its actions in the order in which they begin.
    best: i64,
    found: Option<Vec<Action>>,
    effort: usize,
}

/// A schedule whose step is shorter than `known`, the shortest there is; none where there is none shorter. The second value says whether
/// everything was tried, which is so unless it takes more than `effort` states.
pub fn shorter(costs: &Costs, micro_batches: u32, known: i64, effort: usize) -> (Option<Schedule>, bool) {
    let stages = costs.placement.stages as usize;
    let (after_forward, after_inputs) = tails(costs);
    let mut exact = Exact {
        costs,
        micro_batches: micro_batches as usize,
        after_forward,
        after_inputs,
        seen: FxHashMap::default(),
        path: Vec::new(),
        best: known,
        found: None,
        effort,
    };
    let start = State { done: Progress::new(costs), now: 0 };
    exact.go_on(&start);
    let is_proven = exact.effort > 0;
    let schedule = exact.found.map(|actions| {
        let mut rows = vec![Vec::new(); stages];
        for action in actions {
            rows[costs.placement.stage_of[action.chunk as usize] as usize].push(action);
        }
        Schedule { placement: costs.placement.clone(), micro_batches, rows }
    });
    (schedule, is_proven)
}

/// What must follow each chunk's forward, and the first half of its backward.
fn tails(costs: &Costs) -> (Vec<i64>, Vec<i64>) {
    let chunks = costs.forward.len();
    let mut after_inputs = vec![costs.weights[0]; chunks];
    for chunk in 1..chunks {
        let path = costs.sending[chunk - 1] + costs.inputs[chunk - 1] + after_inputs[chunk - 1];
        after_inputs[chunk] = costs.weights[chunk].max(path);
    }
    let mut after_forward = vec![0; chunks];
    for chunk in (0..chunks).rev() {
        after_forward[chunk] = if chunk + 1 == chunks {
            costs.inputs[chunk] + after_inputs[chunk]
        } else {
            costs.sending[chunk] + costs.forward[chunk + 1] + after_forward[chunk + 1]
        };
    }
    (after_forward, after_inputs)
}

impl Exact<'_> {
    fn go_on(&mut self, state: &State) {
        if self.effort == 0 {
            return;
        }
        self.effort -= 1;
        if self.path.len() == 3 * self.costs.forward.len() * self.micro_batches {
            let step = state.done.free.iter().copied().max().unwrap_or(0);
            if step < self.best {
                self.best = step;
                self.found = Some(self.path.clone());
            }
            return;
        }
        if self.least(state) >= self.best || self.is_dominated(state) {
            return;
        }
        let mut next: Vec<(i64, Action)> =
            (0..self.costs.forward.len()).flat_map(|chunk| self.there(state, chunk)).flatten().collect();
        next.retain(|(begin, _)| *begin >= state.now);
        let kind = |work| match work {
            Pass::Inputs | Pass::Backward => 0,
            Pass::Forward => 1,
            Pass::Weights => 2,
        };
        next.sort_by_key(|(begin, action)| (*begin, kind(action.work), action.chunk));
        for (begin, action) in next {
            let mut after = state.clone();
            after.done.add(self.costs, action, begin);
            after.now = begin;
            self.path.push(action);
            self.go_on(&after);
            self.path.pop();
        }
    }

    /// What a chunk could do next, with when it would begin.
    fn there(&self, state: &State, chunk: usize) -> [Option<(i64, Action)>; 3] {
        let stage = self.costs.placement.stage_of[chunk] as usize;
        let has_room = || state.done.held[stage] + self.costs.kept[chunk] <= self.costs.room[stage];
        state.done.next(self.costs, chunk, self.micro_batches, has_room)
    }

    /// No way to go on ends sooner.
    fn least(&self, state: &State) -> i64 {
        let mut work: Vec<i64> = state.done.free.iter().map(|free| (*free).max(state.now)).collect();
        let mut least = 0;
        for chunk in 0..self.costs.forward.len() {
            let stage = self.costs.placement.stage_of[chunk] as usize;
            let begin = state.done.free[stage].max(state.now);
            let forwards =
                (self.micro_batches - state.done.forward[chunk].len()) as i64 * self.costs.forward[chunk];
            let inputs =
                (self.micro_batches - state.done.inputs[chunk].len()) as i64 * self.costs.inputs[chunk];
            let weights = (self.micro_batches - state.done.weights[chunk]) as i64 * self.costs.weights[chunk];
            if state.done.forward[chunk].len() < self.micro_batches {
                least = least.max(begin + forwards + self.after_forward[chunk]);
            }
            if state.done.inputs[chunk].len() < self.micro_batches {
                least = least.max(begin + inputs + self.after_inputs[chunk]);
            }
            work[stage] += forwards + inputs + weights;
        }
        work.into_iter().fold(least, i64::max)
    }

    /// Whether a state was seen that is as far, and in which nothing ends later. Notes this one else.
    fn is_dominated(&mut self, state: &State) -> bool {
        let chunks = 0..self.costs.forward.len();
        let far = chunks.clone().flat_map(|chunk| {
            [
                state.done.forward[chunk].len() as u8,
                state.done.inputs[chunk].len() as u8,
                state.done.weights[chunk] as u8,
            ]
        });
        let mut ends = vec![state.now];
        ends.extend(state.done.free.iter().map(|free| (*free).max(state.now)));
        for chunk in chunks {
            let read = state
                .done
                .forward
                .get(chunk + 1)
                .map_or(usize::MAX, Vec::len)
                .min(state.done.inputs[chunk].len());
            ends.extend(state.done.forward[chunk].iter().skip(read).map(|end| (*end).max(state.now)));
            let before = chunk.checked_sub(1).map_or(usize::MAX, |before| state.done.inputs[before].len());
            let read = before.min(state.done.weights[chunk]);
            ends.extend(state.done.inputs[chunk].iter().skip(read).map(|end| (*end).max(state.now)));
        }
        let seen = self.seen.entry(far.collect()).or_default();
        let is_later = |known: &Vec<i64>| known.iter().zip(&ends).all(|(known, end)| known <= end);
        if seen.iter().any(is_later) {
            return true;
        }
        seen.retain(|known| !ends.iter().zip(known).all(|(end, known)| end <= known));
        if seen.len() < MOST_KEPT {
            seen.push(ends);
        }
        false
    }
}
