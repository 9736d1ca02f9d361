//! Views: operations that compute nothing, and which operations of a kernel may look through.

use aten::{Memory, Strides};
use ir::{Arg, Graph, Node, Schema, ValueDef, ValueId};

/// A part of a tensor along one dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cut {
    pub(super) dim: usize,
    pub(super) start: i64,
    pub(super) size: i64,
}

/// A view of another tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct View {
    pub(super) of: ValueId,
    /// What part it is; without it, sizes and strides say which element is which.
    pub(super) cut: Option<Cut>,
}

/// What a value is a view of, if an operation made it that does nothing else.
pub(super) fn view(graph: &Graph, value: ValueId) -> Option<View> {
    let ValueDef::Result(id, 0) = graph.values[value].def else { return None };
    let node = &graph.nodes[id];
    let row = aten::row(graph.op_name(id))?;
    let of = node.operands().next()?;
    let (from, to) = (graph.ty(of), graph.ty(value));
    if node.results().count() != 1 || from.dtype != to.dtype {
        return None;
    }
    match (row.memory, row.strides) {
        (Memory::Alias, _) => Some(View { of, cut: None }),
        (Memory::Own | Memory::Hidden, _)
        | (
            _,
            Strides::Dense
            | Strides::RowMajor
            | Strides::Suggested(_)
            | Strides::Selected
            | Strides::Windows
            | Strides::Diagonal
            | Strides::Paired
            | Strides::Parted,
        ) => None,
        (Memory::View, Strides::Sliced) => cut_of(graph, node, of).map(|cut| View { of, cut: Some(cut) }),
        (Memory::View, _) if from.elements() != to.elements() => None,
        _ => Some(View { of, cut: None }),
    }
}

/// The part that an operation with arguments `dim`, `start`, `end` and `step` takes of a tensor, or fills of it.
pub(super) fn cut_of(graph: &Graph, node: &Node, of: ValueId) -> Option<Cut> {
    cut(&Schema::parse(&graph.ops[node.op].schema)?, node, &graph.ty(of).shape)
}

/// The same of a tensor of a shape.
pub(super) fn cut(schema: &Schema<'_>, node: &Node, shape: &[i64]) -> Option<Cut> {
    let number = |name: &str, absent: i64| {
        let position = schema.parameters.iter().position(|parameter| parameter.name == name)?;
        match node.args.get(position)? {
            Arg::Int(number) => Some(*number),
            Arg::None => Some(absent),
            _ => None,
        }
    };
    let rank = shape.len() as i64;
    let dim = number("dim", 0)?;
    let dim = usize::try_from(if dim < 0 { dim + rank } else { dim }).ok()?;
    let size = *shape.get(dim)?;
    let within = |at: i64| (if at < 0 { at + size } else { at }).clamp(0, size);
    let (start, end) = (within(number("start", 0)?), within(number("end", size)?));
    (number("step", 1)? == 1).then_some(Cut { dim, start, size: (end - start).max(0) })
}
