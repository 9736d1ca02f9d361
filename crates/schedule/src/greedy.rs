//! Schedules made from the beginning to the end: whenever a stage is free, it takes what a rule likes best of what is there.

use crate::{
    action::{Action, Pass},
    costs::Costs,
    progress::Progress,
    rows::Schedule,
};

/// What a stage takes first.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Which kind before which.
    pub order: [Pass; 3],
    /// Whether chunks near the end of the program come first.
    pub deep: bool,
    /// How much of a half that makes gradients of weights must be over before something else is there, in percent, for it to be taken.
    pub percent: i64,
}

impl Rule {
    /// All rules.
    pub fn all() -> impl Iterator<Item = Self> {
        use Pass::{Forward, Inputs, Weights};
        let orders = [[Inputs, Forward, Weights], [Forward, Inputs, Weights], [Inputs, Weights, Forward]];
        let of_order = |order| {
            let of_depth = move |deep| [0, 50, 100].map(|percent| Self { order, deep, percent });
            [true, false].into_iter().flat_map(of_depth)
        };
        orders.into_iter().flat_map(of_order)
    }

    /// How an action is ranked: the least first.
    fn rank(&self, action: Action) -> (usize, u32) {
        let kind = self.order.iter().position(|one| *one == action.work).unwrap_or(usize::MAX);
        (kind, if self.deep { u32::MAX - action.chunk } else { action.chunk })
    }
}

/// A schedule as it is made.
struct Made<'a> {
    costs: &'a Costs,
    room: &'a [i64],
    micro_batches: u32,
    done: Progress,
    rows: Vec<Vec<Action>>,
}

/// The schedule that a rule makes where micro-batches take at most so much memory of each stage; none where one of them alone takes more.
pub fn greedy(costs: &Costs, micro_batches: u32, room: &[i64], rule: Rule) -> Option<Schedule> {
    let stages = costs.placement.stages as usize;
    let rows = vec![Vec::new(); stages];
    let mut made = Made { costs, room, micro_batches, done: Progress::new(costs), rows };
    let all = 3 * costs.placement.chunks() * micro_batches;
    for _ in 0..all {
        let next = (0..stages).filter_map(|stage| made.next(stage, rule));
        let (begin, stage, action) = next.min_by_key(|(begin, stage, _)| (*begin, *stage))?;
        made.done.add(costs, action, begin);
        made.rows[stage].push(action);
    }
    Some(Schedule { placement: costs.placement.clone(), micro_batches, rows: made.rows })
}

impl Made<'_> {
    /// What a stage does next, and when it can begin.
    fn next(&self, stage: usize, rule: Rule) -> Option<(i64, usize, Action)> {
        let there: Vec<(i64, Action)> = self.there(stage);
        let now = there.iter().map(|(begin, _)| *begin).min()?;
        let taken = there
            .iter()
            .filter(|(begin, _)| *begin == now)
            .min_by_key(|(_, action)| rule.rank(*action))
            .copied()?;
        let patience = self.costs.time(taken.1) * rule.percent / 100;
        let soon = there
            .iter()
            .filter(|(begin, action)| action.work != Pass::Weights && *begin < now + patience)
            .min_by_key(|(begin, action)| (*begin, rule.rank(*action)));
        let (begin, action) = soon.copied().filter(|_| taken.1.work == Pass::Weights).unwrap_or(taken);
        Some((begin, stage, action))
    }

    /// What a stage could do next, each with when it could begin.
    fn there(&self, stage: usize) -> Vec<(i64, Action)> {
        let of_chunk = |chunk: u32| {
            let has_room = || self.has_room(stage, chunk);
            self.done.next(self.costs, chunk as usize, self.micro_batches as usize, has_room)
        };
        self.costs.placement.chunks_of(stage as u32).flat_map(of_chunk).flatten().collect()
    }

    /// Whether a chunk's next forward leaves the room that the first micro-batch needs which is not all forward yet: that one can always go on.
    fn has_room(&self, stage: usize, chunk: u32) -> bool {
        let number = self.done.forward[chunk as usize].len();
        let others = self.costs.placement.chunks_of(stage as u32);
        let first = others.clone().map(|one| self.done.forward[one as usize].len()).min().unwrap_or(0);
        let kept = |one: u32| self.costs.kept[one as usize];
        let reserved: i64 = if number == first {
            0
        } else {
            others.filter(|one| self.done.forward[*one as usize].len() == first).map(kept).sum()
        };
        self.done.held[stage] + kept(chunk) + reserved <= self.room[stage]
    }
}
