//! Schedules made from the beginning to the end: whenever a stage is free, it takes what a rule likes best of what is there.

use crate::{
    action::{Action, Pass},
    costs::Costs,
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

/// How far a schedule is: micro-batches of a chunk go in their order, since they are all alike.
struct Made<'a> {
    costs: &'a Costs,
    room: &'a [i64],
    micro_batches: u32,
    /// For each chunk the ends of what is done: forward, and both halves of backward.
    forward: Vec<Vec<i64>>,
    inputs: Vec<Vec<i64>>,
    weights: Vec<u32>,
    free: Vec<i64>,
    held: Vec<i64>,
    rows: Vec<Vec<Action>>,
}

/// The schedule that a rule makes where micro-batches take at most so much memory of each stage; none where one of them alone takes more.
pub fn greedy(costs: &Costs, micro_batches: u32, room: &[i64], rule: Rule) -> Option<Schedule> {
    let (stages, chunks) = (costs.placement.stages as usize, costs.placement.chunks() as usize);
    let mut made = Made {
        costs,
        room,
        micro_batches,
        forward: vec![Vec::new(); chunks],
        inputs: vec![Vec::new(); chunks],
        weights: vec![0; chunks],
        free: vec![0; stages],
        held: vec![0; stages],
        rows: vec![Vec::new(); stages],
    };
    let all = 3 * chunks * micro_batches as usize;
    for _ in 0..all {
        let next = (0..stages).filter_map(|stage| made.next(stage, rule));
        let (begin, stage, action) = next.min_by_key(|(begin, stage, _)| (*begin, *stage))?;
        made.add(stage, action, begin);
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
        let mut there = Vec::new();
        for chunk in self.costs.placement.chunks_of(stage as u32) {
            let own = chunk as usize;
            let [forward, inputs, weights] =
                [self.forward[own].len() as u32, self.inputs[own].len() as u32, self.weights[own]];
            let ready = if own == 0 {
                Some(0)
            } else {
                let end = self.forward[own - 1].get(forward as usize);
                end.map(|end| end + self.costs.sending[own - 1])
            };
            if let Some(ready) = ready.filter(|_| forward < self.micro_batches && self.has_room(stage, chunk))
            {
                there.push((ready, Action::new(chunk, Pass::Forward, forward)));
            }
            if inputs < forward {
                let done = self.forward[own][inputs as usize];
                let ready = match self.inputs.get(own + 1) {
                    None => Some(done),
                    Some(after) => {
                        let end = after.get(inputs as usize);
                        end.map(|end| done.max(end + self.costs.sending[own]))
                    }
                };
                there.extend(ready.map(|ready| (ready, Action::new(chunk, Pass::Inputs, inputs))));
            }
            if weights < inputs {
                let ready = self.inputs[own][weights as usize];
                there.push((ready, Action::new(chunk, Pass::Weights, weights)));
            }
        }
        for (begin, _) in &mut there {
            *begin = (*begin).max(self.free[stage]);
        }
        there
    }

    /// Whether a chunk's next forward leaves the room that the first micro-batch needs which is not all forward yet: that one can always go on.
    fn has_room(&self, stage: usize, chunk: u32) -> bool {
        let number = self.forward[chunk as usize].len();
        let others = self.costs.placement.chunks_of(stage as u32);
        let first = others.clone().map(|one| self.forward[one as usize].len()).min().unwrap_or(0);
        let kept = |one: u32| self.costs.kept[one as usize];
        let reserved: i64 = if number == first {
            0
        } else {
            others.filter(|one| self.forward[*one as usize].len() == first).map(kept).sum()
        };
        self.held[stage] + kept(chunk) + reserved <= self.room[stage]
    }

    fn add(&mut self, stage: usize, action: Action, begin: i64) {
        let end = begin + self.costs.time(action);
        let own = action.chunk as usize;
        match action.work {
            Pass::Forward => self.forward[own].push(end),
            Pass::Inputs | Pass::Backward => self.inputs[own].push(end),
            Pass::Weights => self.weights[own] += 1,
        }
        self.free[stage] = end;
        self.held[stage] += self.costs.change(action);
        self.rows[stage].push(action);
    }
}
