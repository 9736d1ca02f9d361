//! Chains of views become one view, or none: `t(t(x))` is `x`, and a view of a view of a contiguous tensor is a view of it.
//!
//! Autograd leaves many of them, since each operation's backward undoes what its forward did.

use aten::{Call, RunTimeSizes, Strides};
use base::{Result, SecondaryMap};
use ir::{Arg, Dims, Graph, NodeId, Patch, Return, TensorType, ValueId, contiguous_strides};
use rustc_hash::FxHashMap;

use crate::{Pass, layout::Layout};

/// Looks through views that permute dimensions or give a contiguous tensor another shape.
pub struct MergeViews;

/// How a tensor is a view of another one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Form {
    /// Dimension `i` is dimension `dims[i]` of what is viewed.
    Permuted(Vec<usize>),
    /// A row-major tensor in another shape.
    Reshaped(Dims),
}

/// A tensor that is not itself such a view, and how it is viewed.
type Seen = (ValueId, Form);

impl Pass for MergeViews {
    fn name(&self) -> &'static str {
        "merge_views"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label("merge_views");
        let mut seen: SecondaryMap<ValueId, Option<Seen>> = SecondaryMap::with_default(None);
        let mut known: FxHashMap<Seen, ValueId> = FxHashMap::default();
        let sizes = RunTimeSizes::of(graph);
        for id in &graph.order {
            let Some((operand, form, result)) = view(graph, *id) else { continue };
            if matches!(form, Form::Reshaped(_)) && sizes.has(result) {
                continue;
            }
            let through =
                seen[operand].as_ref().and_then(|(root, below)| Some((*root, composed(below, &form)?)));
            let is_chain = through.is_some();
            let view = through.unwrap_or((operand, form));
            if is_chain {
                let merged = known.get(&view).copied().unwrap_or_else(|| made(&mut patch, *id, &view));
                if patch.ty(merged) == graph.ty(result) {
                    patch.replace(result, merged);
                    patch.remove(*id);
                    known.insert(view.clone(), merged);
                }
            } else {
                known.entry(view.clone()).or_insert(result);
            }
            seen[result] = Some(view);
        }
        Ok(patch)
    }
}

/// The operand of a view, how it is viewed, and the result.
fn view(graph: &Graph, id: NodeId) -> Option<(ValueId, Form, ValueId)> {
    let node = &graph.nodes[id];
    let strides = aten::row(graph.op_name(id))?.strides;
    let (Some(Arg::Value(operand)), [Return::Value(result)]) = (node.args.first(), node.returns.as_slice())
    else {
        return None;
    };
    let form = if strides == Strides::Reshaped {
        let row_major = |ty: &TensorType| ty.strides == contiguous_strides(&ty.shape);
        let plain = row_major(graph.ty(*operand)) && row_major(graph.ty(*result));
        let same = graph.ty(*operand).dtype == graph.ty(*result).dtype;
        (plain && same).then(|| Form::Reshaped(graph.ty(*result).shape.clone()))?
    } else {
        Form::Permuted(strides.order(&Call::new(graph, id))?)
    };
    Some((*operand, form, *result))
}

/// The form of a view of form `above` of a view of form `below`.
fn composed(below: &Form, above: &Form) -> Option<Form> {
    match (below, above) {
        (Form::Permuted(below), Form::Permuted(above)) => {
            Some(Form::Permuted(above.iter().map(|dim| below.get(*dim).copied()).collect::<Option<_>>()?))
        }
        (Form::Reshaped(_), Form::Reshaped(shape)) => Some(Form::Reshaped(shape.clone())),
        _ => None,
    }
}

/// The view: a new node, or the viewed tensor itself where they are the same.
fn made(patch: &mut Patch<'_>, source: NodeId, (root, form): &Seen) -> ValueId {
    let mut layout = Layout { patch, source };
    match form {
        Form::Permuted(dims) => layout.permute(*root, dims),
        Form::Reshaped(shape) => layout.view(*root, shape),
    }
}
