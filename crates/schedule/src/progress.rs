//! How far a schedule is while it is made: what each stage could do next, and what an action changes. Micro-batches of a chunk go in their
//! order, since they are all alike.

use crate::{
    action::{Action, Pass},
    costs::Costs,
};

/// How far a schedule is.
#[derive(Clone)]
pub struct Progress {
    /// For each chunk the ends of forward and of the first half of backward, and how often the second one is done.
    pub forward: Vec<Vec<i64>>,
    pub inputs: Vec<Vec<i64>>,
    pub weights: Vec<usize>,
    /// When each stage is free, and what it holds.
    pub free: Vec<i64>,
    pub held: Vec<i64>,
}

impl Progress {
    /// Nothing is done.
    pub fn new(costs: &Costs) -> Self {
        let (stages, chunks) = (costs.placement.stages as usize, costs.placement.chunks() as usize);
        Self {
            forward: vec![Vec::new(); chunks],
            inputs: vec![Vec::new(); chunks],
            weights: vec![0; chunks],
            free: vec![0; stages],
            held: vec![0; stages],
        }
    }

    /// What a chunk could do next, each with when it could begin; forward while there are micro-batches, where its stage has room.
    pub fn next(
        &self,
        costs: &Costs,
        chunk: usize,
        micro_batches: usize,
        has_room: impl FnOnce() -> bool,
    ) -> [Option<(i64, Action)>; 3] {
        let [forward, inputs, weights] =
            [self.forward[chunk].len(), self.inputs[chunk].len(), self.weights[chunk]];
        let free = self.free[costs.placement.stage_of[chunk] as usize];
        let is_open = forward < micro_batches && has_room();
        let makes_forward = is_open.then(|| self.forward_ready(costs, chunk, forward)).flatten();
        let makes_inputs = (inputs < forward).then(|| self.inputs_ready(costs, chunk, inputs)).flatten();
        let makes_weights = (weights < inputs).then(|| self.inputs[chunk][weights]);
        let action = move |work, number: usize, ready: Option<i64>| {
            ready.map(|ready| (ready.max(free), Action::new(chunk as u32, work, number as u32)))
        };
        [
            action(Pass::Forward, forward, makes_forward),
            action(Pass::Inputs, inputs, makes_inputs),
            action(Pass::Weights, weights, makes_weights),
        ]
    }

    /// When forward of a micro-batch has what it needs from the chunk before.
    fn forward_ready(&self, costs: &Costs, chunk: usize, number: usize) -> Option<i64> {
        let Some(before) = chunk.checked_sub(1) else { return Some(0) };
        Some(self.forward[before].get(number)? + costs.sending[before])
    }

    /// When the first half of backward, whose forward is done, has what it needs from the chunk behind.
    fn inputs_ready(&self, costs: &Costs, chunk: usize, number: usize) -> Option<i64> {
        let done = self.forward[chunk][number];
        let Some(after) = self.inputs.get(chunk + 1) else { return Some(done) };
        Some(done.max(after.get(number)? + costs.sending[chunk]))
    }

    /// Does an action.
    pub fn add(&mut self, costs: &Costs, action: Action, begin: i64) {
        let chunk = action.chunk as usize;
        let stage = costs.placement.stage_of[chunk] as usize;
        let end = begin + costs.time(action);
        match action.work {
            Pass::Forward => self.forward[chunk].push(end),
            Pass::Inputs | Pass::Backward => self.inputs[chunk].push(end),
            Pass::Weights => self.weights[chunk] += 1,
        }
        self.free[stage] = end;
        self.held[stage] += costs.change(action);
    }
}
