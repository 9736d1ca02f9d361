//! The nodes of a transfer: the sender's broadcast in a group of two, and the receiver's.

use ir::{
    Arg, CollectiveKind, Dims, TensorType, ValueId, WAIT, contiguous_strides, inverse, memory_order,
    transfer_group,
};

use crate::emit::{EMPTY, Emitter, VIEW_AS_COMPLEX};

/// From which stage to which.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Route {
    /// The stage that sends.
    pub from: u32,
    /// The stage that receives.
    pub to: u32,
}

/// How a tensor is sent: its dimensions in this order, outermost first. It is the order that they have in memory, which results of what reads
/// it follow, unless elements share memory.
fn layout(ty: &TensorType) -> Vec<usize> {
    if ty.repeats() { (0..ty.rank()).collect() } else { memory_order(&ty.strides) }
}

/// Starts sending values, all of one type of elements, to a stage that expects them as of these types; what is to be waited for.
pub fn send(out: &mut Emitter<'_>, values: &[ValueId], types: &[TensorType], route: Route) -> ValueId {
    let ready = match values {
        [only] => laid_out(out, *only, &types[0]),
        several => {
            let flat: Vec<ValueId> = several.iter().map(|value| flattened(out, *value)).collect();
            let sizes: i64 = flat.iter().map(|value| out.graph.ty(*value).shape[0]).sum();
            let ty = vector(&out.ty(flat[0]), sizes);
            let list = Arg::Values(flat.into_iter().map(Some).collect());
            out.op("aten::cat(Tensor[] tensors, int dim=0) -> Tensor", vec![list, Arg::Int(0)], ty)
        }
    };
    broadcast(out, ready, route)
}

/// Starts receiving values of these types; what is to be [awaited](receive).
pub fn expect(out: &mut Emitter<'_>, types: &[TensorType], route: Route) -> ValueId {
    let sent = match types {
        [only] => sent_type(only),
        several => vector(&several[0], several.iter().map(elements).sum()),
    };
    let args = vec![
        Arg::Ints(sent.shape.to_vec()),
        Arg::Dtype(sent.dtype),
        Arg::None,
        Arg::Device(sent.device),
        Arg::None,
        Arg::None,
    ];
    let empty = out.op(EMPTY, args, sent);
    broadcast(out, empty, route)
}

/// Waits for values of these types.
pub fn receive(out: &mut Emitter<'_>, expected: ValueId, types: &[TensorType]) -> Vec<ValueId> {
    let there = wait(out, expected);
    if let [only] = types {
        return vec![restored(out, there, only)];
    }
    let mut start = 0;
    let piece = |ty: &TensorType| {
        let end = start + elements(ty);
        let piece = out.slice(there, 0, start, end);
        start = end;
        out.view(piece, &ty.shape)
    };
    types.iter().map(piece).collect()
}

/// A value as it is sent: contiguous, its dimensions in the order that its type says.
fn laid_out(out: &mut Emitter<'_>, value: ValueId, ty: &TensorType) -> ValueId {
    let turned = out.permute(value, &layout(ty));
    let ready = out.in_order(turned);
    if ty.dtype.is_complex() { out.real_pairs(ready) } else { ready }
}

/// What was sent so, as it was.
fn restored(out: &mut Emitter<'_>, mut there: ValueId, ty: &TensorType) -> ValueId {
    let order = layout(ty);
    if ty.dtype.is_complex() {
        let shape: Dims = order.iter().map(|dim| ty.shape[*dim]).collect();
        let made = TensorType { strides: contiguous_strides(&shape), shape, ..ty.clone() };
        there = out.op(VIEW_AS_COMPLEX, vec![Arg::Value(there)], made);
    }
    out.permute(there, &inverse(&order))
}

/// A contiguous value as a vector.
fn flattened(out: &mut Emitter<'_>, value: ValueId) -> ValueId {
    let ready = out.in_order(value);
    let size = elements(&out.ty(ready));
    out.view(ready, &[size])
}

fn elements(ty: &TensorType) -> i64 {
    ty.shape.iter().product()
}

fn vector(like: &TensorType, size: i64) -> TensorType {
    TensorType { shape: Dims::from_slice(&[size]), strides: Dims::from_slice(&[1]), ..like.clone() }
}

/// Waits for what was started.
pub fn wait(out: &mut Emitter<'_>, started: ValueId) -> ValueId {
    let ty = out.ty(started);
    out.op(WAIT, vec![Arg::Value(started)], ty)
}

/// The type of what is sent.
fn sent_type(ty: &TensorType) -> TensorType {
    let shape: Dims = layout(ty).into_iter().map(|dim| ty.shape[dim]).collect();
    let sent = TensorType { strides: contiguous_strides(&shape), shape, ..ty.clone() };
    if ty.dtype.is_complex() { sent.real_pairs() } else { sent }
}

fn broadcast(out: &mut Emitter<'_>, value: ValueId, route: Route) -> ValueId {
    let ty = out.ty(value);
    // Ranks of a group are in their order, and those of earlier stages come first.
    let source = Arg::Int(i64::from(route.from > route.to));
    let group = Arg::Str(transfer_group(route.from, route.to));
    out.op(CollectiveKind::Broadcast.schema(), vec![Arg::Value(value), source, group], ty)
}
