//! The nodes that do changes of placement where ranks hold unequal shards. Collectives stay of equal sizes: what is sent is padded to the
//! largest shard, and what zeros lie behind is what is wanted. The dimension that is sharded lies outermost in memory while it travels, so
//! that padding puts it there and taking the padding away is a view.

use ir::{Chunks, Dims, ValueId};

use crate::{emit::Emitter, reshard::Resharder};

impl Resharder<'_> {
    /// This rank's shard of a replicated tensor.
    pub fn shard_uneven(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        (dim, chunks): (usize, Chunks),
    ) -> ValueId {
        let (start, part) = chunks.part(self.coordinate);
        let (value, at) = opened(out, value, (dim, chunks));
        let mine = out.slice(value, at, start, start + part);
        // With leading dimensions of size 1 the slice is in order already.
        let mine = out.in_order_everywhere(mine, at, &chunks.sizes());
        closed(out, mine, (dim, chunks))
    }

    /// The global tensor from all shards.
    pub fn gather_uneven(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        (dim, chunks): (usize, Chunks),
    ) -> ValueId {
        let (value, at) = opened(out, value, (dim, chunks));
        let (first, back) = outermost(out, value, &[at]);
        let first = out.in_order(first);
        let missing = chunks.chunk - out.graph.ty(first).shape[0];
        let padded = out.widened(first, 0, &[(0, missing)]);
        let gathered = self.gather_equal(out, padded, 0, 1);
        let whole = out.slice(gathered, 0, 0, chunks.block);
        let whole = out.permute(whole, &back);
        let whole = out.in_order(whole);
        closed(out, whole, (dim, chunks))
    }

    /// This rank's shard of the sum.
    pub fn reduce_scatter_uneven(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        (dim, chunks): (usize, Chunks),
    ) -> ValueId {
        let (value, at) = opened(out, value, (dim, chunks));
        let (first, back) = outermost(out, value, &[at]);
        let padded = out.widened(first, 0, &[(0, chunks.padded() - chunks.block)]);
        let sum = self.scatter(out, padded);
        let mine = out.slice(sum, 0, 0, chunks.part(self.coordinate).1);
        let mine = out.permute(mine, &back);
        let mine = out.in_order_everywhere(mine, at, &chunks.sizes());
        closed(out, mine, (dim, chunks))
    }

    /// From shards of one dimension to shards of another, of which one at least are unequal.
    pub fn exchange_uneven(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        from: (usize, Chunks),
        to: (usize, Chunks),
    ) -> ValueId {
        // What lies behind an opened dimension moves by one.
        let (value, source) = opened(out, value, from);
        let place = to.0 + usize::from(from.1.blocks > 1 && to.0 > from.0);
        let (value, target) = opened(out, value, (place, to.1));
        let source = source + usize::from(to.1.blocks > 1 && source > place);
        let (first, back) = outermost(out, value, &[target, source]);
        // Padding by nothing keeps the order in memory, and on some rank nothing of the source is missing.
        let first = if to.1.is_even() { out.in_order(first) } else { first };
        let ranks = i64::from(self.axis.size);
        let (chunk, part) = (to.1.chunk, from.1.chunk);
        let missing = part - out.graph.ty(first).shape[1];
        let padded = out.widened(first, 0, &[(0, to.1.padded() - to.1.block), (0, missing)]);
        // [ranks * chunk, part, rest..] -> [ranks, part, chunk, rest..]
        let rest: Dims = out.graph.ty(padded).shape[2..].into();
        let shape = |front: &[i64]| -> Dims { front.iter().chain(&rest).copied().collect() };
        let dealt = out.view(padded, &shape(&[ranks, chunk, part]));
        let turned: Vec<usize> = [0, 2, 1].into_iter().chain(3..3 + rest.len()).collect();
        let dealt = out.permute(dealt, &turned);
        let dealt = out.in_order(dealt);
        let dealt = out.view(dealt, &shape(&[ranks * part, chunk]));
        let received = self.all_to_all(out, dealt);
        let whole = out.slice(received, 0, 0, from.1.block);
        let mine = out.slice(whole, 1, 0, to.1.part(self.coordinate).1);
        // The dimension that is whole now comes first, the one that is sharded second.
        let mut order = vec![1, 0];
        order.extend(2..2 + rest.len());
        let mine = out.permute(mine, &order);
        let mine = out.permute(mine, &back);
        let mut mine = out.in_order_everywhere(mine, target, &to.1.sizes());
        let mut opened = [(source, from.1), (target, to.1)];
        opened.sort_by_key(|(dim, _)| std::cmp::Reverse(*dim));
        for (dim, chunks) in opened.into_iter().filter(|(_, chunks)| chunks.blocks > 1) {
            mine = closed(out, mine, (dim - 1, chunks));
        }
        mine
    }
}

/// The value with a dimension of several blocks as `[blocks, rest]`, and the place of what is dealt out then.
fn opened(out: &mut Emitter<'_>, value: ValueId, (dim, chunks): (usize, Chunks)) -> (ValueId, usize) {
    if chunks.blocks == 1 {
        return (value, dim);
    }
    let value = out.in_order(value);
    let mut shape = out.graph.ty(value).shape.clone();
    shape[dim] /= chunks.blocks;
    shape.insert(dim, chunks.blocks);
    (out.view(value, &shape), dim + 1)
}

/// A value in row-major order with such dimensions as one again.
fn closed(out: &mut Emitter<'_>, value: ValueId, (dim, chunks): (usize, Chunks)) -> ValueId {
    if chunks.blocks == 1 {
        return value;
    }
    let mut shape = out.graph.ty(value).shape.clone();
    let inner = shape.remove(dim + 1);
    shape[dim] *= inner;
    out.view(value, &shape)
}

/// The value with these dimensions before all others, and the order that undoes it.
pub fn outermost(out: &mut Emitter<'_>, value: ValueId, dims: &[usize]) -> (ValueId, Vec<usize>) {
    let rank = out.graph.ty(value).rank();
    let mut order = dims.to_vec();
    order.extend((0..rank).filter(|dim| !dims.contains(dim)));
    (out.permute(value, &order), ir::inverse(&order))
}
