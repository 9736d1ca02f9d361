//! The rows of schedules with two chunks on each stage, down and up again.

use std::collections::VecDeque;

use crate::action::{Action, Pass};

/// Which of a stage's two chunks.
#[derive(Clone, Copy)]
enum Way {
    Down,
    Up,
}

/// A row as it is written: actions take the next micro-batch of their kind. There may be more micro-batches than there are; what is of those
/// is left out.
struct Row {
    chunks: [u32; 2],
    micro_batches: u32,
    /// How many forwards and backwards of each chunk are written.
    forwards: [u32; 2],
    backwards: [u32; 2],
    /// Gradients of weights that are not made yet.
    open: VecDeque<(usize, u32)>,
    actions: Vec<Action>,
}

impl Row {
    const fn new(stage: u32, stages: u32, micro_batches: u32) -> Self {
        Self {
            chunks: [stage, 2 * stages - 1 - stage],
            micro_batches,
            forwards: [0; 2],
            backwards: [0; 2],
            open: VecDeque::new(),
            actions: Vec::new(),
        }
    }

    fn push(&mut self, way: usize, work: Pass, number: u32) {
        if number < self.micro_batches {
            self.actions.push(Action::new(self.chunks[way], work, number));
        }
    }

    fn forward(&mut self, way: Way) {
        let number = self.forwards[way as usize];
        self.forwards[way as usize] += 1;
        self.push(way as usize, Pass::Forward, number);
    }

    fn backward(&mut self, way: Way) {
        let number = self.backwards[way as usize];
        self.backwards[way as usize] += 1;
        self.push(way as usize, Pass::Backward, number);
    }

    /// What the chunk before needs; the gradients of weights are left open.
    fn inputs(&mut self, way: Way) {
        let number = self.backwards[way as usize];
        self.backwards[way as usize] += 1;
        self.push(way as usize, Pass::Inputs, number);
        self.open.push_back((way as usize, number));
    }

    /// The gradients of weights that have been open longest.
    fn weights(&mut self) {
        if let Some((way, number)) = self.open.pop_front() {
            self.push(way, Pass::Weights, number);
        }
    }

    /// Those of one chunk.
    fn weights_of(&mut self, way: Way) {
        let first = self.open.iter().position(|(one, _)| *one == way as usize);
        if let Some((_, number)) = first.and_then(|first| self.open.remove(first)) {
            self.push(way as usize, Pass::Weights, number);
        }
    }

    /// Backward, or what of it the chunk before needs.
    fn either(&mut self, way: Way, halves: bool) {
        if halves { self.inputs(way) } else { self.backward(way) }
    }

    /// All that are open.
    fn rest(mut self) -> Vec<Action> {
        while !self.open.is_empty() {
            self.weights();
        }
        self.actions
    }
}

/// The row of a stage under [`crate::Name::ZeroBubbleV`]: the pipeline fills down and up, then each forward has a backward behind it, and the
/// gradients of weights of the last micro-batches come at the very end.
pub fn zero_bubble(stage: u32, stages: u32, micro_batches: u32) -> Vec<Action> {
    let mut row = Row::new(stage, stages, micro_batches);
    // In shorter steps the pipeline is never full: what it would do with more micro-batches is left out.
    let all = micro_batches.max(2 * stages - 1);
    (0..2 * (stages - stage) - 1).for_each(|_| row.forward(Way::Down));
    for _ in 0..stage {
        row.forward(Way::Up);
        row.forward(Way::Down);
    }
    for _ in stage..stages {
        row.forward(Way::Up);
        row.inputs(Way::Up);
        row.weights_of(Way::Up);
    }
    while row.forwards[1] < all {
        if row.forwards[0] < all {
            row.forward(Way::Down);
        }
        row.inputs(Way::Down);
        row.weights_of(Way::Down);
        row.forward(Way::Up);
        row.inputs(Way::Up);
        row.weights_of(Way::Up);
    }
    for _ in 0..stage {
        row.inputs(Way::Down);
        row.inputs(Way::Up);
    }
    for _ in stage..stages {
        row.inputs(Way::Down);
        row.weights_of(Way::Down);
    }
    (0..stage).for_each(|_| row.weights_of(Way::Up));
    row.rest()
}

/// The row of a stage under [`crate::Name::DualPipeV`]: once the pipeline is full, a forward of each chunk has a backward of the other behind it.
pub fn dual_pipe(stage: u32, stages: u32, micro_batches: u32) -> Vec<Action> {
    let mut row = Row::new(stage, stages, micro_batches);
    let all = micro_batches.max(2 * stages);
    let behind = stages - stage - 1;
    (0..2 * behind).for_each(|_| row.forward(Way::Down));
    for _ in 0..=stage {
        row.forward(Way::Down);
        row.forward(Way::Up);
    }
    for _ in 0..behind {
        row.inputs(Way::Up);
        row.weights();
        row.forward(Way::Up);
    }
    for _ in 0..=all - 2 * stages + stage {
        row.forward(Way::Down);
        row.backward(Way::Up);
        row.forward(Way::Up);
        row.backward(Way::Down);
    }
    for _ in 0..behind {
        row.backward(Way::Up);
        row.forward(Way::Up);
        row.backward(Way::Down);
    }
    // From the middle on, the chunk before gets its gradients first.
    let middle = stage.div_ceil(2);
    for number in 0..=stage {
        let [up, down] =
            if stage % 2 == 1 { [number >= middle; 2] } else { [number > middle, number >= middle] };
        row.either(Way::Up, up);
        row.either(Way::Down, down);
    }
    for _ in 0..behind {
        row.weights();
        row.inputs(Way::Down);
    }
    row.rest()
}
