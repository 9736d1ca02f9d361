//! Gradients are summed between ranks in the element type that the user's policy says, and are of their own type again behind that.
//!
//! A step in 16 bits makes gradients of 16 bits. Between ranks they are summed in 16 bits too, each sum rounded, unless something wider is
//! asked for; a narrower type is less to send. What is summed in the middle of backward is no gradient of state, and stays as it is. What the
//! update adds to gradients before they are summed is summed in a wider type alone.

use base::{Result, SecondaryMap};
use ir::{Dtype, Graph, NodeId, PartKind, Patch, Reduction, TensorType, ValueId};

use crate::{
    Pass,
    facts::{Facts, Users, users},
    layout::Layout,
};

/// Sums gradients between ranks in a type of their own.
pub struct ReduceDtype {
    /// The type; none where sums are in the type of the gradient.
    pub dtype: Option<Dtype>,
}

impl Pass for ReduceDtype {
    fn name(&self) -> &'static str {
        "reduce_dtype"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        let Some(dtype) = self.dtype else { return Ok(patch) };
        let found = Found { graph, facts: Facts::new(graph), users: users(graph) };
        // What is summed along a further axis goes on in the type of the sum.
        let mut summed: SecondaryMap<ValueId, Option<ValueId>> = SecondaryMap::with_default(None);
        for start in &graph.order {
            if let Some(sum) = found.sum(*start).filter(|sum| found.is_cast_for(sum, dtype)) {
                summed[sum.result] = Some(found.cast(&sum, summed[sum.operand], dtype, &mut patch));
            }
        }
        Ok(patch)
    }
}

/// Whether numbers of the type `own` that only updates need are summed in the type `dtype` where a part of this kind makes them. What updates
/// make of gradients before they are summed holds state too, and is summed in nothing narrower than that.
pub fn is_summed_in(dtype: Dtype, own: Dtype, part: PartKind) -> bool {
    let is_real = own.is_floating() && !own.is_complex();
    let is_cast = match part {
        PartKind::Backward => own != dtype,
        PartKind::Update => own.bytes() < dtype.bytes(),
        PartKind::Forward => false,
    };
    is_real && is_cast
}

/// A sum between ranks.
struct Sum {
    start: NodeId,
    operand: ValueId,
    started: ValueId,
    wait: NodeId,
    result: ValueId,
}

struct Found<'g> {
    graph: &'g Graph,
    facts: Facts,
    users: Users,
}

impl Found<'_> {
    /// The sum that a node starts, if one node waits for it.
    fn sum(&self, start: NodeId) -> Option<Sum> {
        let graph = self.graph;
        graph.collective(start).filter(|it| it.reduction == Some(Reduction::Sum))?;
        let node = &graph.nodes[start];
        let (operand, started) = (node.operands().next()?, node.results().next()?);
        let [wait] = self.users[started][..] else { return None };
        let waiting = &graph.nodes[wait];
        let result = waiting.results().next().filter(|_| self.facts.is_wait(waiting))?;
        Some(Sum { start, operand, started, wait, result })
    }

    /// Whether what is summed are real numbers of another type, for the update.
    fn is_cast_for(&self, sum: &Sum, dtype: Dtype) -> bool {
        let own = self.graph.ty(sum.operand).dtype;
        is_summed_in(dtype, own, self.graph.part_kind(sum.start)) && self.is_for_update(sum.result)
    }

    fn is_backward(&self, id: NodeId) -> bool {
        self.graph.part_kind(id) == PartKind::Backward
    }

    /// Whether backward does nothing with a value but pass it on: as a view, a copy or a cast, and to other ranks.
    fn is_for_update(&self, value: ValueId) -> bool {
        self.users[value].iter().all(|user| {
            let node = &self.graph.nodes[*user];
            let passes_on = self.facts.carries(node) || self.facts.is_collective(node);
            !self.is_backward(*user) || passes_on && node.results().all(|result| self.is_for_update(result))
        })
    }

    /// Sums in another type, from what is `given` in it already; the sum in that type.
    fn cast(&self, sum: &Sum, given: Option<ValueId>, dtype: Dtype, patch: &mut Patch<'_>) -> ValueId {
        let graph = self.graph;
        let own = graph.ty(sum.operand).dtype;
        // What is added is named as the collective is.
        let label = graph.nodes[sum.start].label;
        patch.label(label.map_or("reduce_dtype", |label| &graph.labels[label]));
        let operand = given.unwrap_or_else(|| Layout { patch, source: sum.start }.cast(sum.operand, dtype));
        let of = |value: ValueId| TensorType { dtype, ..graph.ty(value).clone() };
        let started = Layout { patch, source: sum.start }.again(operand, of(sum.started));
        let mut behind = Layout { patch, source: sum.wait };
        let waited = behind.again(started, of(sum.result));
        let result = behind.cast(waited, own);
        patch.replace(sum.result, result);
        patch.remove(sum.wait);
        patch.remove(sum.start);
        waited
    }
}
