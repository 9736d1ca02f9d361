//! The memory of one rank while it runs its graph.

use std::ops::AddAssign;

use base::{Bytes, Id};
use ir::{Graph, PartKind};

use crate::{BUFFERS, Curve, Effect, Steps, curve, steps_of};

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
    /// Everything else: results that are read soon, and what kernels take for themselves.
    Temporary,
}

impl Category {
    /// All categories, in the order of [`ByCategory`].
    pub const ALL: [Self; 7] = [
        Self::State,
        Self::Batch,
        Self::Kept,
        Self::Activation,
        Self::Gradient,
        Self::Collective,
        Self::Temporary,
    ];
}

/// Bytes of each category.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ByCategory([u64; Category::ALL.len()]);

impl ByCategory {
    /// The bytes of a category.
    pub fn of(&self, category: Category) -> Bytes {
        Bytes(self.0[category as usize])
    }

    /// The bytes of all categories.
    pub fn total(&self) -> Bytes {
        Bytes(self.0.iter().sum())
    }
}

impl AddAssign<(Category, Bytes)> for ByCategory {
    fn add_assign(&mut self, (category, bytes): (Category, Bytes)) {
        self.0[category as usize] += bytes.0;
    }
}

/// The most memory that a graph holds at once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Peak {
    /// What is alive at the worst moment.
    pub alive: ByCategory,
    /// The same where no small results stay: what a limit must leave at least. With buffers of any size, the total is at most this and
    /// them.
    pub least: ByCategory,
    /// What stays from step to step for small results, at the worst moment as at any other.
    pub buffers: Bytes,
    /// The most that is on the host at once, beside all that: copies, and state.
    pub on_host: Bytes,
}

impl Peak {
    /// The peak under a limit, which buffers are made to keep, and what they may then take.
    pub fn within(&self, limit: Option<Bytes>) -> (ByCategory, Bytes) {
        match limit {
            Some(limit) if self.alive.total() > limit => {
                let left = Bytes(limit.0.saturating_sub(self.least.total().0));
                let mut alive = self.least;
                alive += (Category::Kept, left);
                (alive, left)
            }
            _ => (self.alive, self.buffers),
        }
    }
}

/// The peak of a verified rank's graph, run as the executor runs it: memory freed after its last use, views sharing their operand's,
/// operations in place where nobody can tell, small results in buffers.
pub fn peak(graph: &Graph) -> Peak {
    let steps = steps_of(graph);
    let run = curve(&steps, limit(graph));
    let alive = worst(graph, &steps, &run);
    let least = if run.buffers.0 == 0 { alive } else { worst(graph, &steps, &curve(&steps, Bytes(0))) };
    let state = steps.state.iter().map(|value| steps.values[*value as usize]);
    let state: u64 = state.filter(|info| info.on_host).map(|info| info.bytes).sum();
    Peak { alive, least, buffers: run.buffers, on_host: Bytes(run.most_on_host().0 + state) }
}

/// Memory that is held for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// What for.
    pub category: Category,
    /// Its size.
    pub bytes: Bytes,
    /// The position in the program order of the operation that makes it; `None` where it is there from the start.
    pub from: Option<usize>,
    /// That of the last operation that reads it; `None` where it stays until the end.
    pub to: Option<usize>,
}

/// All memory that a verified rank's graph holds in a step.
pub fn held(graph: &Graph) -> Vec<Held> {
    let steps = steps_of(graph);
    let run = curve(&steps, limit(graph));
    held_in(graph, &steps, &run)
}

/// How many bytes of that are held at each position of the program.
pub fn bytes_held(graph: &Graph) -> Vec<u64> {
    let steps = steps_of(graph);
    let run = curve(&steps, limit(graph));
    let standing = standing(&steps, &run).total().0;
    run.on_device().map(|alive| standing + alive).collect()
}

/// What of that is held at the moment at which it is most, where buffers keep a limit as in [`Peak::within`].
pub fn at_peak(graph: &Graph, within: Option<Bytes>) -> Vec<Held> {
    let steps = steps_of(graph);
    let mut run = curve(&steps, limit(graph));
    if within.is_some_and(|within| worst(graph, &steps, &run).total() > within) {
        run = curve(&steps, Bytes(0));
    }
    let moment = run.worst();
    let is_held = |held: &Held| match (held.from, moment) {
        (Some(from), Some(moment)) => from <= moment && held.to.is_none_or(|to| moment <= to),
        (from, _) => from.is_none(),
    };
    held_in(graph, &steps, &run).into_iter().filter(is_held).collect()
}

fn held_in(graph: &Graph, steps: &Steps, run: &Curve) -> Vec<Held> {
    let standing = standing(steps, run);
    let standing = Category::ALL.into_iter().map(|category| {
        let bytes = standing.of(category);
        Held { category, bytes, from: None, to: None }
    });
    let made = run.spans.iter().filter(|span| !span.on_host).map(|span| {
        let to = Some(span.to).filter(|to| *to < graph.order.len());
        Held { category: category(graph, steps, span), bytes: Bytes(span.bytes), from: Some(span.from), to }
    });
    let workspaces = run.workspaces.iter().enumerate().map(|(at, bytes)| {
        let (category, bytes) = (Category::Temporary, Bytes(*bytes));
        Held { category, bytes, from: Some(at), to: Some(at) }
    });
    standing.chain(made).chain(workspaces).filter(|held| held.bytes.0 > 0).collect()
}

/// What is alive at the moment at which that is most.
fn worst(graph: &Graph, steps: &Steps, run: &Curve) -> ByCategory {
    let mut alive = standing(steps, run);
    if let Some(at) = run.worst() {
        let on_device = run.spans.iter().filter(|span| !span.on_host);
        for span in on_device.filter(|span| span.from <= at && at <= span.to) {
            alive += (category(graph, steps, span), Bytes(span.bytes));
        }
        alive += (Category::Temporary, Bytes(run.workspaces[at]));
    }
    alive
}

/// What is alive at all moments.
fn standing(steps: &Steps, run: &Curve) -> ByCategory {
    let bytes = |values: &[u32]| {
        let on_device = values.iter().map(|value| steps.values[*value as usize]).filter(|info| !info.on_host);
        Bytes(on_device.map(|info| info.bytes).sum())
    };
    let mut standing = ByCategory::default();
    standing += (Category::State, bytes(&steps.state));
    standing += (Category::Batch, bytes(&steps.inputs));
    standing += (Category::Kept, run.kept());
    standing
}

/// What buffers may take: they are for the CPU, where an allocation costs as much as a small operation.
fn limit(graph: &Graph) -> Bytes {
    let on_cpu = graph.inputs.values().all(|input| graph.ty(input.value).device.kind.is_cpu());
    if on_cpu { BUFFERS } else { Bytes(0) }
}

fn category(graph: &Graph, steps: &Steps, span: &crate::Span) -> Category {
    let part = |step: usize| graph.order.get(step).map(|node| graph.part_kind(*node));
    let last = part(span.to).unwrap_or(PartKind::Update);
    match part(span.from) {
        // What comes back from the host is state, or was made in forward.
        _ if graph.order.get(span.from).is_some_and(|id| graph.host_copy(*id).is_some()) => {
            let operand = graph.nodes[graph.order[span.from]].operands().next();
            let is_state = operand
                .is_some_and(|value| steps.values[value.index()].on_host && graph.maker(value).is_none());
            if is_state { Category::State } else { Category::Activation }
        }
        _ if steps.steps[span.from].effect == Effect::Collective => Category::Collective,
        Some(PartKind::Forward) if last == PartKind::Backward => Category::Activation,
        Some(PartKind::Backward) if last == PartKind::Update => Category::Gradient,
        _ => Category::Temporary,
    }
}
