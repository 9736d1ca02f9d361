//! Backward reads what is there in 16 bits, and makes `f32` of it itself: kernels have such casts for nothing, and a copy of twice the size
//! would be held from forward on.

use base::Result;
use ir::{Dtype, Graph, NodeId, PartKind, Patch, ValueDef, ValueId};

use crate::{
    Pass,
    facts::{Facts, users},
};

/// Casts to `f32` again where backward reads them.
pub struct LateCasts;

impl Pass for LateCasts {
    fn name(&self) -> &'static str {
        "late_casts"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let (users, facts) = (users(graph), Facts::new(graph));
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        for id in graph.order.iter().filter(|id| graph.part_kind(**id) == PartKind::Forward) {
            let Some(made) = graph.nodes[*id].results().next() else { continue };
            let Some(cast) = Widened::of(graph, &facts, made) else { continue };
            let is_late = |user: &NodeId| graph.part_kind(*user) == PartKind::Backward;
            let mut late: Vec<NodeId> = users[made].iter().copied().filter(is_late).collect();
            late.dedup();
            // What else reads it would have it held all the same.
            if !late.iter().all(|user| may_be_fused(graph, *user)) {
                continue;
            }
            for user in late {
                let again = cast.again(&mut patch, user);
                patch.replace_in(user, made, again);
            }
        }
        Ok(patch)
    }
}

/// Whether an operation may be part of a kernel.
fn may_be_fused(graph: &Graph, id: NodeId) -> bool {
    aten::row(graph.op_name(id)).is_some_and(|row| row.formula.is_some())
}

/// A value that became `f32` without a loss, perhaps seen as another shape.
pub struct Widened {
    /// What it was.
    pub before: ValueId,
    /// What made it `f32`, and the views of that in their order.
    made: Vec<NodeId>,
}

impl Widened {
    /// The value as such, if it is one.
    pub fn of(graph: &Graph, facts: &Facts, value: ValueId) -> Option<Self> {
        let (mut at, mut made) = (value, Vec::new());
        loop {
            let ValueDef::Result(id, 0) = graph.values[at].def else { return None };
            let before = graph.nodes[id].operands().next()?;
            made.push(id);
            if aten::row(graph.op_name(id)).is_some_and(|row| row.copies) {
                made.reverse();
                return is_widened(graph, before, at).then_some(Self { before, made });
            }
            let is_whole = graph.ty(before).elements() == graph.ty(at).elements();
            if !facts.is_view(&graph.nodes[id]) || !is_whole {
                return None;
            }
            at = before;
        }
    }

    /// Makes the value again where `source` stands.
    pub fn again(&self, patch: &mut Patch<'_>, source: NodeId) -> ValueId {
        let mut now = self.before;
        for node in &self.made {
            let copied = patch.copy(*node, source, |_| now);
            now = patch.node(copied).results().next().expect("casts and views have a result");
        }
        now
    }
}

fn is_widened(graph: &Graph, from: ValueId, to: ValueId) -> bool {
    let (from, to) = (graph.ty(from), graph.ty(to));
    let is_alike = from.shape == to.shape && from.strides == to.strides && from.device == to.device;
    is_alike && to.dtype == Dtype::F32 && [Dtype::Bf16, Dtype::F16].contains(&from.dtype)
}
