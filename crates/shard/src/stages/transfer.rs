//! The nodes of a transfer: the sender's broadcast in a group of two, and the receiver's.

use ir::{
    Arg, CollectiveKind, Dims, TensorType, ValueId, WAIT, contiguous_strides, memory_order, transfer_group,
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

/// How a tensor is sent: its dimensions in this order, outermost first.
fn layout(ty: &TensorType) -> Vec<usize> {
    let order = memory_order(&ty.strides);
    let picked = |of: &Dims| order.iter().map(|dim| of[*dim]).collect::<Dims>();
    let turned = TensorType { shape: picked(&ty.shape), strides: picked(&ty.strides), ..ty.clone() };
    if turned.is_contiguous() { order } else { (0..ty.rank()).collect() }
}

/// Starts sending a value; what is to be waited for.
pub fn send(out: &mut Emitter<'_>, value: ValueId, route: Route) -> ValueId {
    let ty = out.ty(value);
    let turned = out.permute(value, &layout(&ty));
    let mut ready = out.in_order(turned);
    if ty.dtype.is_complex() {
        ready = out.real_pairs(ready);
    }
    broadcast(out, ready, route)
}

/// Starts receiving a value of a type; what is to be [awaited](receive).
pub fn expect(out: &mut Emitter<'_>, ty: &TensorType, route: Route) -> ValueId {
    let sent = sent_type(ty);
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

/// Waits for a value of a type.
pub fn receive(out: &mut Emitter<'_>, expected: ValueId, ty: &TensorType) -> ValueId {
    let mut there = wait(out, expected);
    let order = layout(ty);
    if ty.dtype.is_complex() {
        let shape: Dims = order.iter().map(|dim| ty.shape[*dim]).collect();
        let made = TensorType { strides: contiguous_strides(&shape), shape, ..ty.clone() };
        there = out.op(VIEW_AS_COMPLEX, vec![Arg::Value(there)], made);
    }
    let mut back = vec![0; order.len()];
    for (position, dim) in order.iter().enumerate() {
        back[*dim] = position;
    }
    out.permute(there, &back)
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
