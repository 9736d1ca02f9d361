//! Chains of views become one view, or none: `t(t(x))` is `x`, and a view of a view of a contiguous tensor is a view of it.
//!
//! Autograd leaves many of them, since each operation's backward undoes what its forward did.

use base::{Result, SecondaryMap};
use ir::{Arg, Dims, Graph, Node, NodeId, Patch, Return, TensorType, ValueId, contiguous_strides};
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

/// A tensor that is no view of these forms, and a form of it.
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
        for id in &graph.order {
            let Some((operand, form, result)) = view(graph, &graph.nodes[*id]) else { continue };
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
fn view(graph: &Graph, node: &Node) -> Option<(ValueId, Form, ValueId)> {
    let (Some(Arg::Value(operand)), [Return::Value(result)]) = (node.args.first(), node.returns.as_slice())
    else {
        return None;
    };
    let rank = graph.ty(*operand).rank();
    let mut dims: Vec<usize> = (0..rank).collect();
    let form = match (graph.ops[node.op].name.as_str(), &node.args[1..]) {
        ("aten::t", []) => {
            dims.reverse();
            Form::Permuted(dims)
        }
        ("aten::transpose.int", [Arg::Int(a), Arg::Int(b)]) => {
            dims.swap(position(*a, rank)?, position(*b, rank)?);
            Form::Permuted(dims)
        }
        ("aten::permute", [Arg::Ints(order)]) => {
            Form::Permuted(order.iter().map(|dim| position(*dim, rank)).collect::<Option<_>>()?)
        }
        ("aten::view" | "aten::_unsafe_view" | "aten::reshape", [Arg::Ints(_)]) => {
            let row_major = |ty: &TensorType| ty.strides == contiguous_strides(&ty.shape);
            let plain = row_major(graph.ty(*operand)) && row_major(graph.ty(*result));
            let same = graph.ty(*operand).dtype == graph.ty(*result).dtype;
            (plain && same).then(|| Form::Reshaped(graph.ty(*result).shape.clone()))?
        }
        _ => return None,
    };
    Some((*operand, form, *result))
}

/// A dimension counted from the front.
fn position(dim: i64, rank: usize) -> Option<usize> {
    let dim = if dim < 0 { dim + rank as i64 } else { dim };
    usize::try_from(dim).ok().filter(|dim| *dim < rank)
}

/// The form of a view in `above` form of a view in `below` form.
fn composed(below: &Form, above: &Form) -> Option<Form> {
    match (below, above) {
        (Form::Permuted(below), Form::Permuted(above)) => {
            Some(Form::Permuted(above.iter().map(|dim| below.get(*dim).copied()).collect::<Option<_>>()?))
        }
        (Form::Reshaped(_), Form::Reshaped(shape)) => Some(Form::Reshaped(shape.clone())),
        _ => None,
    }
}

/// The view, as a new node where it is not the viewed tensor itself.
fn made(patch: &mut Patch<'_>, source: NodeId, (root, form): &Seen) -> ValueId {
    let mut layout = Layout { patch, source };
    match form {
        Form::Permuted(dims) => layout.permute(*root, dims),
        Form::Reshaped(shape) => layout.view(*root, shape),
    }
}
