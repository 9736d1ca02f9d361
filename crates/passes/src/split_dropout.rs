//! A dropout becomes the drawing of its mask and a product, which kernels can have with what stands around it. The mask is the one that
//! PyTorch draws in the whole operation; where it would be another, the dropout stays.

use base::Result;
use ir::{Arg, Dtype, Graph, NodeId, Patch, TensorType};

use crate::{Pass, dropout::Dropout};

const EMPTY: &str = "aten::empty_like(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor";
const MASK: &str = "aten::bernoulli.p(Tensor self, float p, *, Generator? generator=None) -> Tensor";

/// Takes dropouts apart.
pub struct SplitDropout;

impl Pass for SplitDropout {
    fn name(&self) -> &'static str {
        "split_dropout"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        for id in &graph.order {
            if split(graph, &mut patch, *id).is_some() {
                patch.remove(*id);
            }
        }
        Ok(patch)
    }
}

/// Replaces the results of a dropout; none where it drops nothing, has no elements, or its mask would not be, or lie as, PyTorch's.
fn split(graph: &Graph, patch: &mut Patch<'_>, id: NodeId) -> Option<()> {
    let dropout = Dropout::of(graph, id)?;
    let ty = graph.ty(dropout.x);
    // Other devices draw the mask of a whole dropout in another kernel.
    if ty.elements() == 0 || !ty.is_contiguous() || !ty.device.kind.is_cpu() {
        return None;
    }
    let mask_ty = TensorType { dtype: Dtype::Bool, ..ty.clone() };
    let none = || Arg::None;
    let args = vec![Arg::Value(dropout.x), Arg::Dtype(Dtype::Bool), none(), none(), none(), none()];
    let empty = patch.push_value(id, EMPTY, args, mask_ty.clone());
    let args = vec![Arg::Value(empty), Arg::Float(dropout.kept()), Arg::None];
    let mask = patch.push_value(id, MASK, args, mask_ty);
    dropout.replace(patch, mask);
    Some(())
}
