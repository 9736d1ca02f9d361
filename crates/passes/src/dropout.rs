//! A dropout, taken apart: its mask, and the product with it.

use aten::Draw;
use ir::{Arg, Graph, NodeId, Patch, Return, ValueId};

const PRODUCT: &str = "aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor";

/// A dropout in training.
pub struct Dropout<'g> {
    graph: &'g Graph,
    id: NodeId,
    /// What elements are dropped of.
    pub x: ValueId,
    /// The share that is dropped.
    p: f64,
}

impl<'g> Dropout<'g> {
    /// Whether an operation is a dropout.
    pub fn is(graph: &Graph, id: NodeId) -> bool {
        aten::row(graph.op_name(id)).and_then(|row| row.draws) == Some(Draw::Dropout)
    }

    /// Whether an operation is a dropout outside of training, which drops nothing.
    pub fn is_off(graph: &Graph, id: NodeId) -> bool {
        Self::is(graph, id) && graph.nodes[id].args.get(2) == Some(&Arg::Bool(false))
    }

    /// The operation as a dropout that drops something.
    pub fn of(graph: &'g Graph, id: NodeId) -> Option<Self> {
        if !Self::is(graph, id) || Self::is_off(graph, id) {
            return None;
        }
        let args = &graph.nodes[id].args;
        let (Arg::Value(x), p) = (args.first()?, args.get(1)?) else { return None };
        let p = match p {
            Arg::Float(p) => *p,
            Arg::Int(p) => *p as f64,
            _ => return None,
        };
        Some(Self { graph, id, x: *x, p })
    }

    /// The share of elements that are kept.
    pub fn kept(&self) -> f64 {
        1.0 - self.p
    }

    /// The mask among the results, where the step has it.
    pub fn mask(&self) -> Option<ValueId> {
        self.returned(1)
    }

    /// Replaces the results: `x * mask / (1 - p)` and the mask.
    pub fn replace(&self, patch: &mut Patch<'_>, mask: ValueId) {
        if let Some(result) = self.returned(0) {
            let scale = if self.p < 1.0 { 1.0 / (1.0 - self.p) } else { 0.0 };
            let args = vec![Arg::Value(self.x), Arg::Value(mask), Arg::Float(scale)];
            let product = patch.push_value(self.id, PRODUCT, args, self.graph.ty(result).clone());
            patch.replace(result, product);
        }
        if let Some(own) = self.mask() {
            patch.replace(own, mask);
        }
    }

    fn returned(&self, position: usize) -> Option<ValueId> {
        match self.graph.nodes[self.id].returns.get(position)? {
            Return::Value(value) => Some(*value),
            _ => None,
        }
    }
}
