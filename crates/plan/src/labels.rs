//! What a plan is in the field's words, with the degree along each axis, derived from its placements. No decision depends on it.

mod division;
mod origins;
mod state;

use std::{
    borrow::Cow,
    cell::{OnceCell, RefCell},
    rc::Rc,
};

use aten::Call;
use base::{Result, SecondaryMap};
use cost::{Machine, operation_time};
use ir::{AxisKind, Chunks, Graph, MeshAxis, NodeId, ValueId};
use shard::{Assignment, partition};

use crate::{
    on_axes::OnAxis,
    roles::{gradients, of_state},
};
use origins::Origins;

/// Names plans for one graph on one machine.
pub struct Labels<'a> {
    /// The graph in canonical form.
    graph: &'a Graph,
    machine: Machine<'a>,
    /// What is known along the outermost axis: the same for all plans.
    known: OnceCell<Known>,
    /// The best plan, axis by axis.
    best: &'a [OnAxis<'a>],
    /// The graphs that axes outside leave, by what was decided along these: many plans differ along the last axis alone.
    left: RefCell<Vec<(Vec<Assignment>, Rc<Left<'a>>)>>,
}

/// What decisions along some axes leave for the next one.
struct Left<'a> {
    graph: Cow<'a, Graph>,
    known: Known,
}

/// What is known of a graph's values along an axis, whatever a plan decides.
struct Known {
    /// What comes from which dimension of the batch.
    origins: Origins,
    /// What comes from state alone.
    of_state: SecondaryMap<ValueId, bool>,
    /// What only updates need.
    gradients: SecondaryMap<ValueId, bool>,
}

impl Known {
    fn new(graph: &Graph, ranks: u32) -> Self {
        Self { origins: Origins::new(graph, ranks), of_state: of_state(graph), gradients: gradients(graph) }
    }
}

impl<'a> Labels<'a> {
    /// For plans for a graph in canonical form, of which the best one is decided so.
    pub const fn new(graph: &'a Graph, machine: Machine<'a>, best: &'a [OnAxis<'a>]) -> Self {
        Self { graph, machine, known: OnceCell::new(), best, left: RefCell::new(Vec::new()) }
    }

    /// The name of a plan: a phrase for each axis of more than one rank.
    pub fn label(&self, assignments: &[Assignment]) -> Result<String> {
        let axes = self.machine.mesh.sharding_axes().zip(assignments);
        let axes: Vec<(&MeshAxis, &Assignment)> = axes.filter(|(axis, _)| axis.rank_count() > 1).collect();
        let mut names = Vec::new();
        for (number, (axis, assignment)) in axes.iter().enumerate() {
            let left;
            let (graph, known) = if number == 0 {
                (self.graph, self.known.get_or_init(|| Known::new(self.graph, axis.size)))
            } else {
                left = self.left(&axes[..number], axis)?;
                (&*left.graph, &left.known)
            };
            names.push(self.along(graph, known, assignment, axis, axes.len() > 1));
        }
        let names = if names.is_empty() { "one rank".into() } else { names.join("; ") };
        Ok(match self.machine.mesh.micro_batches() {
            1 => names,
            count => format!("{names}; {count} micro-batches"),
        })
    }

    /// What decisions along the axes `outside` leave for `axis`.
    fn left(&self, outside: &[(&MeshAxis, &Assignment)], axis: &MeshAxis) -> Result<Rc<Left<'a>>> {
        let is_same =
            |known: &[Assignment]| known.iter().eq(outside.iter().map(|(_, assignment)| *assignment));
        if let Some((_, left)) = self.left.borrow().iter().find(|(known, _)| is_same(known)) {
            return Ok(left.clone());
        }
        let of_best = self.of_best(outside, axis);
        let mut graph = Cow::Borrowed(of_best.unwrap_or(self.graph));
        for (axis, assignment) in outside.iter().filter(|_| of_best.is_none()) {
            graph = Cow::Owned(partition(&graph, assignment, axis, 0)?.into_renumbered());
        }
        let known = Known::new(&graph, axis.size);
        let left = Rc::new(Left { graph, known });
        let decided = outside.iter().map(|(_, assignment)| (*assignment).clone()).collect();
        self.left.borrow_mut().push((decided, left.clone()));
        Ok(left)
    }

    /// The graph that the best plan leaves for `axis`, where it is decided so along the axes outside.
    fn of_best(&self, outside: &[(&MeshAxis, &Assignment)], axis: &MeshAxis) -> Option<&'a Graph> {
        let at = self.best.iter().position(|one| one.axis == axis)?;
        let known = self.best[..at].iter().filter(|one| one.axis.rank_count() > 1);
        let is_same = known.map(|one| &*one.decided).eq(outside.iter().map(|(_, assignment)| *assignment));
        is_same.then_some(&*self.best[at].graph)
    }

    /// The phrase of an axis: how computation is divided along it, how state is, and whether ranks have nothing to do.
    fn along(
        &self,
        graph: &Graph,
        known: &Known,
        assignment: &Assignment,
        axis: &MeshAxis,
        several: bool,
    ) -> String {
        let computation = division::divided(graph, known, assignment, axis, self.machine);
        let on = if several { format!(" on {}", axis.name) } else { String::new() };
        let idle = match idle(graph, assignment, axis, self.machine) {
            0 => None,
            idle => Some(format!("{idle} of {} ranks idle", axis.size)),
        };
        let state = state::placed(graph, known, assignment);
        let further = computation.further.map(str::to_owned).into_iter().chain(state).chain(idle);
        std::iter::once(format!("{}{on}", computation.name)).chain(further).collect::<Vec<_>>().join(", ")
    }
}

/// A rank is idle whose operations take less than this share of those of the first rank, in percent.
const IDLE: i64 = 10;

/// How many ranks have next to nothing to compute: what is sharded in unequal parts may leave none for the last ranks.
fn idle(graph: &Graph, assignment: &Assignment, axis: &MeshAxis, machine: Machine<'_>) -> u32 {
    let mut times = vec![0_i64; axis.size as usize];
    let is_uneven = |chunks: &Chunks| !chunks.is_even();
    let uneven = |id: &NodeId| {
        let strategy = assignment.nodes.get(id)?;
        cost::shares(&Call::new(graph, *id), strategy, axis.size).filter(is_uneven)
    };
    if axis.kind != AxisKind::Ranks || !graph.order.iter().any(|id| uneven(id).is_some()) {
        return 0;
    }
    for id in &graph.order {
        let call = Call::new(graph, *id);
        let replicated = || aten::replicated(&call);
        let strategy = assignment.nodes.get(id).cloned().unwrap_or_else(replicated);
        let time = operation_time(machine, &call, &strategy, axis);
        let chunks = uneven(id);
        for (coordinate, sum) in times.iter_mut().enumerate() {
            *sum += chunks.map_or(time, |chunks| time * chunks.part(coordinate as u32).1 / chunks.chunk);
        }
    }
    times.iter().filter(|time| **time * 100 < times[0] * IDLE).count() as u32
}
