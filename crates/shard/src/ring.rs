//! Attention over a sequence that is sharded in queries, keys and values alike: keys and values go around the ranks, and what each rank
//! computes of its queries with one shard of them after the other is put together by the logarithms of sums that attention returns.
//!
//! Under a causal mask the last shard of a sequence has the most to compute. So ranks exchange halves of their shards in pairs, the first with
//! the last: each then holds an early piece of the sequence and the late piece that mirrors it, and works equally much at each step.
//!
//! Where keys and values are whole, queries are divided in the same way ([`queries`]).
//!
//! What depends on the rank is numbers: which of two pieces is selected, where zeros go, and to whom something is sent.

mod backward;
mod forward;
mod order;
mod queries;
mod turn;

use aten::Realise;
use ir::{Arg, Dtype, Placement, TensorType, UNEVEN, ValueId};
use smallvec::SmallVec;

use crate::{emit::Emitter, local::dense_strides, operation::Realised};

use order::Order;
use turn::Turn;

/// One attention in a ring. Tensors that are cut, sent or stacked are *turned*: their dimensions in the order in which they lie in memory.
pub struct Ring<'a> {
    /// The attention.
    realised: &'a Realised<'a>,
    /// Its local operands, as the operands of the whole one lie in memory.
    operands: SmallVec<[ValueId; 4]>,
    /// Whether queries see keys up to their own position only.
    causal: bool,
    /// Who holds what.
    order: Order,
}

impl<'a> Ring<'a> {
    /// The ring of a realisation.
    pub fn new(realised: &'a Realised<'a>, out: &mut Emitter<'_>) -> Self {
        let call = realised.call;
        let causal = call.argument("is_causal").and_then(|causal| call.flag(causal)) == Some(true);
        let order = Order { ranks: realised.ranks(), rank: realised.resharder.coordinate };
        let mut operands = realised.operands.clone();
        realised.lay_out_as_whole(out, &mut operands);
        Self { realised, operands, causal, order }
    }

    /// Whether it is the backward of attention.
    fn is_backward(&self) -> bool {
        matches!(self.realised.strategy.realise, Realise::RingBackward | Realise::CausalQueriesBackward)
    }

    /// The turn of an operand.
    fn of_operand(&self, operand: usize) -> Turn {
        Turn::of(self.realised.call.operand(operand))
    }

    /// The turn of a result.
    fn of_result(&self, result: usize) -> Turn {
        Turn::of(self.realised.call.result(result))
    }

    /// The attention, or its backward, of pieces: these operands in place of the first ones.
    fn block(&self, out: &mut Emitter<'_>, first: &[ValueId], causal: bool) -> SmallVec<[ValueId; 2]> {
        let call = self.realised.call;
        let mut operands = self.operands.clone();
        operands[..first.len()].copy_from_slice(first);
        let mut args = self.realised.args(&operands);
        let [queries, keys] =
            [0, 1 + usize::from(self.is_backward())].map(|operand| out.graph.ty(first[operand]).shape[2]);
        let changed =
            [("is_causal", Arg::Bool(causal)), ("max_q", Arg::Int(queries)), ("max_k", Arg::Int(keys))];
        for (name, arg) in changed {
            if let Some(position) = call.argument(name) {
                args[position] = arg;
            }
        }
        let types: SmallVec<[TensorType; 3]> =
            (0..call.results.len()).map(|result| self.block_type(result, [queries, keys])).collect();
        self.realised.push_typed(out, args, &types)
    }

    /// The type of a result of a block of so many queries and keys.
    fn block_type(&self, result: usize, [queries, keys]: [i64; 2]) -> TensorType {
        let whole = self.realised.call.result(result);
        let mut shape = whole.shape.clone();
        match self.realised.strategy.results[result] {
            Placement::Replicate => return whole.clone(),
            _ if self.is_backward() && result > 0 => shape[2] = keys,
            _ => shape[2] = queries,
        }
        TensorType { strides: dense_strides(&shape, &whole.strides), shape, ..whole.clone() }
    }

    /// Begins what a step of the ring writes, or what is read of other pieces than before in the same step. Labels differ, so that no pass takes nodes
    /// of two of them for one where their numbers are the same on this rank.
    fn label(&self, out: &mut Emitter<'_>, what: &str, step: u32) {
        let call = self.realised.call;
        let module = call.node.module.map_or("", |module| call.graph.modules[module].as_str());
        let (value, axis) = (call.results[0], &self.realised.resharder.axis.name);
        let name = format!("{value} of {} in `{module}`", call.name());
        let text = format!("sequence {name} on {axis}: {what}, step {step}{UNEVEN}");
        out.origin.label = Some(out.graph.labels.push(text));
    }

    /// What the rank before holds, which gets it from the one before: all ranks pass on what they have to the next.
    fn passed_on(&self, out: &mut Emitter<'_>, value: ValueId) -> ValueId {
        let Order { ranks, rank } = self.order;
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        self.realised.resharder.permute(out, value, next, previous)
    }

    /// The two pieces of the sequence that this rank holds under a causal mask, in a first dimension: the first half of its own shard, and the
    /// second half of that of the rank that mirrors it.
    fn mirrored(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize) -> ValueId {
        let half = out.ty(value).shape[dim] / 2;
        let (kept, sent) = (out.slice(value, dim, 0, half), out.slice(value, dim, half, 2 * half));
        let sent = out.in_order(sent);
        let mirror = self.order.mirror();
        let received = self.realised.resharder.permute(out, sent, mirror, mirror);
        out.stacked(&[kept, received])
    }

    /// The shard of the sequence of which both pieces are given, in the order of [`Self::mirrored`].
    fn restored(&self, out: &mut Emitter<'_>, pieces: ValueId, dim: usize) -> ValueId {
        let [kept, other] = [0, 1].map(|piece| out.select(pieces, 0, piece));
        let other = out.in_order(other);
        let mirror = self.order.mirror();
        let received = self.realised.resharder.permute(out, other, mirror, mirror);
        out.joined(kept, received, dim)
    }
}

/// A value in this element type.
fn in_type(out: &mut Emitter<'_>, value: ValueId, dtype: Dtype) -> ValueId {
    if out.graph.ty(value).dtype == dtype { value } else { out.cast(value, dtype) }
}
