//! A tensor that is written slice by slice is all slices joined, and a slice that later writes leave alone is read before them.
//!
//! `out[..., 0::2], out[..., 1::2] = a, b`, made functional, is a copy of the whole tensor for each line, and backward of it another.

use aten::{Moves, Strides};
use base::Result;
use ir::{Arg, Dims, Graph, NodeId, Patch, TensorType, ValueId};

use crate::{Pass, facts::is_uneven, layout::Layout};

/// Joins tensors that slices are written of.
pub struct JoinSlices;

impl Pass for JoinSlices {
    fn name(&self) -> &'static str {
        "join_slices"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        for id in graph.order.iter().filter(|id| !is_uneven(graph, **id)) {
            let Some(result) = graph.nodes[*id].results().next() else { continue };
            let made = match Write::of(graph, *id) {
                Some(write) => write.joined(graph, *id, &mut patch),
                None => read_before(graph, *id, &mut patch),
            };
            if let Some(made) = made {
                patch.replace(result, made);
                patch.remove(*id);
            }
        }
        Ok(patch)
    }
}

/// Each `step`-th element of a dimension from `start` on, `count` of them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Slice {
    dim: usize,
    start: i64,
    step: i64,
    count: i64,
}

impl Slice {
    /// A slice by its arguments `dim, start, end, step`, as PyTorch reads them.
    fn of(args: &[Arg], shape: &Dims) -> Option<Self> {
        let [Arg::Int(dim), start, end, Arg::Int(step)] = args else { return None };
        let rank = shape.len() as i64;
        let dim = usize::try_from(if *dim < 0 { dim + rank } else { *dim }).ok()?;
        let size = *shape.get(dim)?;
        let bound = |arg: &Arg, otherwise: i64| match arg {
            Arg::None => Some(otherwise),
            Arg::Int(at) => Some((if *at < 0 { at + size } else { *at }).clamp(0, size)),
            _ => None,
        };
        let (start, end) = (bound(start, 0)?, bound(end, size)?);
        let count = (end - start).max(0).checked_add(step - 1)?.checked_div(*step)?;
        Some(Self { dim, start, step: *step, count })
    }

    /// Whether no element is in both, as far as that is seen.
    fn is_apart_from(&self, other: &Self) -> bool {
        let end = |slice: &Self| slice.start + (slice.count - 1) * slice.step;
        let in_turn = self.step == other.step && (self.start - other.start) % self.step != 0;
        self.dim == other.dim
            && (in_turn
                || self.count.min(other.count) == 0
                || end(self) < other.start
                || end(other) < self.start)
    }
}

/// A tensor with another one over a slice.
struct Write {
    over: ValueId,
    from: ValueId,
    slice: Slice,
    /// Whether `from` is copied over something before it is written.
    is_copied: bool,
}

impl Write {
    fn of(graph: &Graph, id: NodeId) -> Option<Self> {
        aten::row(graph.op_name(id)).filter(|row| row.moves == Some(Moves::Overwrite))?;
        let [Arg::Value(over), Arg::Value(written), slice @ ..] = graph.nodes[id].args.as_slice() else {
            return None;
        };
        let from = before_copies(graph, *written);
        let slice = Slice::of(slice, &graph.ty(*over).shape)?;
        let is_whole = graph.ty(from).dtype == graph.ty(*over).dtype;
        is_whole.then_some(Self { over: *over, from, slice, is_copied: from != *written })
    }

    /// What stands for the whole tensor: its slices joined, or, where it has others, the same without a copy of what is written.
    fn joined(&self, graph: &Graph, id: NodeId, patch: &mut Patch<'_>) -> Option<ValueId> {
        let ty = graph.ty(graph.nodes[id].results().next()?);
        let joined = self.slices(graph).filter(|_| ty.is_contiguous());
        if let Some(made) = joined.and_then(|slices| join(&slices, ty, &mut Layout { patch, source: id })) {
            return Some(made);
        }
        self.is_copied.then(|| {
            let mut args = graph.nodes[id].args.clone();
            args[1] = Arg::Value(self.from);
            patch.push_value(id, &graph.ops[graph.nodes[id].op].to_string(), args, ty.clone())
        })
    }

    /// All slices of the tensor in their order, where writes one after the other make it up.
    fn slices(&self, graph: &Graph) -> Option<Vec<(Slice, ValueId)>> {
        let size = graph.ty(self.over).shape[self.slice.dim];
        let mut slices = vec![(self.slice, self.from)];
        let mut below = self.over;
        while slices.iter().map(|(slice, _)| slice.count).sum::<i64>() < size {
            let write = Self::of(graph, graph.maker(below)?)?;
            slices.iter().all(|(slice, _)| slice.is_apart_from(&write.slice)).then_some(())?;
            slices.push((write.slice, write.from));
            below = write.over;
        }
        slices.sort_by_key(|(slice, _)| slice.start);
        Some(slices)
    }
}

/// What a copy over another tensor of the same shape and type copies.
fn before_copies(graph: &Graph, written: ValueId) -> ValueId {
    let mut at = written;
    while let Some(copy) = graph.maker(at) {
        let argument = aten::row(graph.op_name(copy)).and_then(|row| row.copied);
        let Some(Arg::Value(from)) = argument.and_then(|argument| graph.nodes[copy].args.get(argument))
        else {
            break;
        };
        let (old, new) = (graph.ty(at), graph.ty(*from));
        if old.shape != new.shape || old.dtype != new.dtype || old.device != new.device {
            break;
        }
        at = *from;
    }
    at
}

/// The tensor of these slices, which lie side by side or take turns.
fn join(slices: &[(Slice, ValueId)], whole: &TensorType, layout: &mut Layout<'_, '_>) -> Option<ValueId> {
    let (dim, turns) = (slices[0].0.dim, slices.len() as i64);
    let values: Vec<ValueId> = slices.iter().map(|(_, value)| *value).collect();
    if slices.iter().all(|(slice, _)| slice.step == 1) {
        return Some(layout.cat(&values, dim));
    }
    let takes_turns = |slice: &Slice| slice.step == turns && slice.count * turns == whole.shape[dim];
    slices.iter().all(|(slice, _)| takes_turns(slice)).then(|| {
        let stacked = layout.stack(&values, dim + 1);
        layout.view(stacked, &whole.shape)
    })
}

/// A slice of what was there before writes that leave it alone.
fn read_before(graph: &Graph, id: NodeId, patch: &mut Patch<'_>) -> Option<ValueId> {
    aten::row(graph.op_name(id)).filter(|row| row.strides == Strides::Sliced)?;
    let node = &graph.nodes[id];
    let [Arg::Value(written), slice @ ..] = node.args.as_slice() else { return None };
    let read = Slice::of(slice, &graph.ty(*written).shape)?;
    let mut before = *written;
    while let Some(write) = graph.maker(before).and_then(|maker| Write::of(graph, maker)) {
        let same = graph.ty(write.over) == graph.ty(*written);
        if !same || !write.slice.is_apart_from(&read) {
            break;
        }
        before = write.over;
    }
    (before != *written).then(|| {
        let ty = graph.ty(node.results().next().expect("a slice is a tensor")).clone();
        Layout { patch, source: id }.again(before, ty)
    })
}
