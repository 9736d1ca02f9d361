//! The memory of one rank while it runs its graph.

use base::Bytes;
use ir::{DeviceKind, Graph, NodeId, PartKind};

use crate::{BUFFERS, Curve, Effect, Steps, curve, steps_of};

/// The most memory that a graph holds at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Peak {
    /// Inputs that live on: parameters, buffers, optimizer state.
    pub state: Bytes,
    /// State and everything else that is alive at the worst moment.
    pub total: Bytes,
    /// The same where no small results stay: what a limit must leave at least. With buffers of any size, `total` is at most this and them.
    pub least: Bytes,
    /// What of `total` stays from step to step for small results.
    pub buffers: Bytes,
    /// What of it stays because it is the same at every step.
    pub constants: Bytes,
    /// The node that runs at that moment.
    pub at: Option<NodeId>,
}

impl Peak {
    /// The peak under a limit, which buffers are made to keep, and what they may then take.
    pub fn within(&self, limit: Option<Bytes>) -> (Bytes, Bytes) {
        match limit {
            Some(limit) if self.total > limit => {
                let left = Bytes(limit.0.saturating_sub(self.least.0));
                (Bytes(self.least.0 + left.0), left)
            }
            _ => (self.total, self.buffers),
        }
    }
}

/// What memory is held for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Category {
    /// Parameters, buffers of the model, optimizer state.
    State,
    /// What is passed to the step.
    Batch,
    /// Small results and constants that stay from step to step.
    Kept,
    /// Made in the forward part, read in the backward part.
    Activation,
    /// Made in the backward part, read by the optimizer.
    Gradient,
    /// Results of collectives.
    Collective,
    /// Everything else.
    Temporary,
}

impl Category {
    /// All categories, in the order of [`Moment::alive`].
    pub const ALL: [Self; 7] = [
        Self::State,
        Self::Batch,
        Self::Kept,
        Self::Activation,
        Self::Gradient,
        Self::Collective,
        Self::Temporary,
    ];

    /// Its name in text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Batch => "batch",
            Self::Kept => "kept",
            Self::Activation => "activation",
            Self::Gradient => "gradient",
            Self::Collective => "collective",
            Self::Temporary => "temporary",
        }
    }
}

/// The memory that is alive while one node runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// The node.
    pub node: NodeId,
    /// The bytes of each category.
    pub alive: [Bytes; Category::ALL.len()],
}

impl Moment {
    /// The bytes of all categories.
    pub fn total(&self) -> Bytes {
        Bytes(self.alive.iter().map(|bytes| bytes.0).sum())
    }
}

/// The peak of a verified rank's graph, run as the executor runs it: memory freed after its last use, views sharing their operand's,
/// operations in place where nobody can tell, small results in buffers.
pub fn peak(graph: &Graph) -> Peak {
    let steps = steps_of(graph);
    let (state, given) = given(&steps);
    let run = curve(&steps, limit(graph));
    let (most, at) = run.most();
    let least = if run.buffers.0 == 0 { run.clone() } else { curve(&steps, Bytes(0)) };
    Peak {
        state: Bytes(state),
        total: Bytes(state + given + run.kept() + most),
        least: Bytes(state + given + least.kept() + least.most().0),
        buffers: run.buffers,
        constants: run.constants,
        at: at.map(|step| graph.order[step]),
    }
}

/// The memory that is alive while each node of a verified rank's graph runs.
pub fn over_time(graph: &Graph) -> Vec<Moment> {
    let steps = steps_of(graph);
    let (state, given) = given(&steps);
    let run = curve(&steps, limit(graph));
    let categories = categories(graph, &steps, &run);
    let mut alive = [0_i64; Category::ALL.len()];
    (alive[Category::State as usize], alive[Category::Batch as usize]) = (state as i64, given as i64);
    alive[Category::Kept as usize] = run.kept() as i64;
    let mut ends: Vec<Vec<usize>> = vec![Vec::new(); graph.order.len()];
    let mut begins = ends.clone();
    for (number, span) in run.spans.iter().enumerate() {
        begins[span.from].push(number);
        if let Some(ending) = ends.get_mut(span.to) {
            ending.push(number);
        }
    }
    let moments = graph.order.iter().enumerate().map(|(index, node)| {
        for number in &begins[index] {
            alive[categories[*number] as usize] += run.spans[*number].bytes as i64;
        }
        let mut now = alive;
        now[Category::Temporary as usize] += run.workspaces[index] as i64;
        for number in &ends[index] {
            alive[categories[*number] as usize] -= run.spans[*number].bytes as i64;
        }
        Moment { node: *node, alive: now.map(|bytes| Bytes(bytes as u64)) }
    });
    moments.collect()
}

/// The bytes of state, and of what is passed to each step.
fn given(steps: &Steps) -> (u64, u64) {
    let bytes = |values: &[u32]| values.iter().map(|value| steps.values[*value as usize].bytes).sum();
    (bytes(&steps.state), bytes(&steps.inputs))
}

/// What buffers may take: they are for the CPU, where an allocation costs as much as a small operation.
fn limit(graph: &Graph) -> Bytes {
    let on_cpu = graph.inputs.values().all(|input| graph.ty(input.value).device.kind != DeviceKind::Cuda);
    if on_cpu { BUFFERS } else { Bytes(0) }
}

/// The category of each span.
fn categories(graph: &Graph, steps: &Steps, run: &Curve) -> Vec<Category> {
    let part = |step: usize| graph.order.get(step).map(|node| graph.part_kind(*node));
    let of = |span: &crate::Span| {
        let last = part(span.to).unwrap_or(PartKind::Update);
        match part(span.from) {
            _ if steps.steps[span.from].effect == Effect::Collective => Category::Collective,
            Some(PartKind::Forward) if last == PartKind::Backward => Category::Activation,
            Some(PartKind::Backward) if last == PartKind::Update => Category::Gradient,
            _ => Category::Temporary,
        }
    };
    run.spans.iter().map(of).collect()
}
