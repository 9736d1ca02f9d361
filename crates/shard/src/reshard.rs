//! The nodes that do changes of placement.

use ir::{
    Arg, Chunks, CollectiveKind, Dims, MeshAxis, Placement, Reduce, Reduction, Reshard, TensorType, ValueId,
    WAIT,
};

use crate::emit::{Emitter, VIEW_AS_COMPLEX};

/// Writes the nodes of one rank for changes of placement along one axis.
pub struct Resharder<'a> {
    /// The axis.
    pub axis: &'a MeshAxis,
    /// This rank's position on it.
    pub coordinate: u32,
    /// The symbolic name of the process group.
    pub group: &'a str,
}

impl Resharder<'_> {
    /// Changes the placement of `value`, the local tensor of a tensor of global `shape`. The change must be possible, see
    /// [`ir::reshard_steps`].
    pub fn reshard(&self, out: &mut Emitter<'_>, value: ValueId, shape: &[i64], reshard: Reshard) -> ValueId {
        use Placement::{Partial, Replicate, Shard};
        let chunks = |placement: Placement| {
            placement.chunks(shape, self.axis.size).expect("a strategy shards what can be sharded")
        };
        match (reshard.from, reshard.to) {
            (from, to) if from == to => value,
            (Replicate, to @ Shard { .. }) => self.shard(out, value, chunks(to)),
            (Replicate, Partial(_)) => out.kept_or_zeros(value, self.coordinate == 0),
            (from @ Shard { blocks: 1, .. }, Partial(Reduce::Sum | Reduce::Norm)) => {
                let (dim, chunks) = chunks(from);
                let (before, part) = chunks.part(self.coordinate);
                out.pad(value, dim, before, chunks.block - part - before)
            }
            (from @ Shard { .. }, Replicate) => self.gather(out, value, chunks(from)),
            (from @ Shard { dim: a, .. }, to @ Shard { dim: b, .. }) if a != b => {
                self.exchange(out, value, chunks(from), chunks(to))
            }
            (Partial(Reduce::Sum), to @ Shard { .. }) => self.reduce_scatter(out, value, chunks(to)),
            (Partial(Reduce::Sum), Replicate) => self.all_reduce(out, value, Reduction::Sum),
            (Partial(Reduce::Norm), Replicate) => {
                let squares = out.binary("mul.Tensor", value, value);
                let sum = self.all_reduce(out, squares, Reduction::Sum);
                out.unary("sqrt", sum)
            }
            (from, to) => {
                debug_assert!(
                    from != Replicate && to != Replicate,
                    "{from} to {to} of {shape:?} goes through replicate"
                );
                let global = self.reshard(out, value, shape, Reshard { from, to: Replicate });
                self.reshard(out, global, shape, Reshard { from: Replicate, to })
            }
        }
    }

    /// This rank's shard of a replicated tensor.
    fn shard(&self, out: &mut Emitter<'_>, value: ValueId, (dim, chunks): (usize, Chunks)) -> ValueId {
        if !chunks.is_even() {
            return self.shard_uneven(out, value, (dim, chunks));
        }
        if chunks.blocks == 1 {
            let (start, part) = chunks.part(self.coordinate);
            let shard = out.slice(value, dim, start, start + part);
            // With leading dimensions of size 1 the slice is in order already.
            return out.in_order(shard);
        }
        let global = out.in_order(value);
        let opened = self.open(out, global, dim, chunks.blocks);
        let mine = out.select(opened, dim + 1, i64::from(self.coordinate));
        self.close(out, mine, dim)
    }

    /// A view with dimension `dim` as `[blocks, ranks, rest]`.
    fn open(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: i64) -> ValueId {
        let shape = out.graph.ty(value).shape.clone();
        let ranks = i64::from(self.axis.size);
        let mut opened = Dims::from_slice(&shape[..dim]);
        opened.extend([blocks, ranks, shape[dim] / blocks / ranks]);
        opened.extend_from_slice(&shape[dim + 1..]);
        out.view(value, &opened)
    }

    /// Dimensions `dim` and `dim + 1` as one, copied if they are not adjacent in memory.
    fn close(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize) -> ValueId {
        let value = out.in_order(value);
        let mut shape = out.graph.ty(value).shape.clone();
        let inner = shape.remove(dim + 1);
        shape[dim] *= inner;
        out.view(value, &shape)
    }

    /// The global tensor from all shards.
    fn gather(&self, out: &mut Emitter<'_>, value: ValueId, (dim, chunks): (usize, Chunks)) -> ValueId {
        if chunks.is_even() {
            self.gather_equal(out, value, dim, chunks.blocks)
        } else {
            self.gather_uneven(out, value, (dim, chunks))
        }
    }

    /// The tensor that equal shards make.
    pub fn gather_equal(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: i64) -> ValueId {
        let value = out.in_order(value);
        let ty = out.ty(value);
        if ty.shape.is_empty() {
            return value;
        }
        let ranks = i64::from(self.axis.size);
        let mut gathered_ty = ty.clone();
        gathered_ty.shape[0] *= ranks;
        gathered_ty.strides = ir::contiguous_strides(&gathered_ty.shape);
        let args = vec![Arg::Value(value), Arg::Int(ranks), Arg::Str(self.group.into())];
        let gathered = collective(out, CollectiveKind::AllGather, args, gathered_ty);
        if dim == 0 && blocks == 1 {
            return gathered;
        }
        self.interleave(out, gathered, &ty.shape, dim, blocks)
    }

    /// From `[ranks, shard...]`, flattened over the first two dimensions, to the tensor that is not sharded along `dim`.
    fn interleave(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        part: &[i64],
        dim: usize,
        blocks: i64,
    ) -> ValueId {
        let mut stacked = Dims::from_slice(&[i64::from(self.axis.size)]);
        stacked.extend_from_slice(&part[..dim]);
        stacked.extend([blocks, part[dim] / blocks]);
        stacked.extend_from_slice(&part[dim + 1..]);
        let stacked = out.view(value, &stacked);
        // [ranks, before.., blocks, rest, after..] -> [before.., blocks, ranks, rest, after..]
        let rank = part.len() + 2;
        let mut order: Vec<usize> = (1..=dim + 1).collect();
        order.push(0);
        order.extend(dim + 2..rank);
        let turned = out.permute(stacked, &order);
        let turned = out.in_order(turned);
        let mut global = Dims::from_slice(part);
        global[dim] *= i64::from(self.axis.size);
        out.view(turned, &global)
    }

    /// The shards of all ranks one after the other, `[ranks * shard...]`, of a tensor that is not sharded along `dim`.
    fn deal(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: i64) -> (ValueId, Dims) {
        let value = out.in_order(value);
        let opened = self.open(out, value, dim, blocks);
        let rank = out.graph.ty(opened).rank();
        let mut order = vec![dim + 1];
        order.extend((0..rank).filter(|d| *d != dim + 1));
        let turned = out.permute(opened, &order);
        let turned = out.in_order(turned);
        let mut part: Dims = out.graph.ty(value).shape.clone();
        part[dim] /= i64::from(self.axis.size);
        let mut dealt = part.clone();
        dealt[0] *= i64::from(self.axis.size);
        (out.view(turned, &dealt), part)
    }

    /// This rank's shard of the sum.
    fn reduce_scatter(&self, out: &mut Emitter<'_>, value: ValueId, to: (usize, Chunks)) -> ValueId {
        let (dim, chunks) = to;
        if !chunks.is_even() {
            return self.reduce_scatter_uneven(out, value, to);
        }
        let (dealt, part) = self.deal(out, value, dim, chunks.blocks);
        let sum = self.scatter(out, dealt);
        out.view(sum, &part)
    }

    /// This rank's part of the sum of what is dealt.
    pub fn scatter(&self, out: &mut Emitter<'_>, dealt: ValueId) -> ValueId {
        let mut ty = out.ty(dealt);
        ty.shape[0] /= i64::from(self.axis.size);
        let ty = TensorType { strides: ir::contiguous_strides(&ty.shape), ..ty };
        let args = vec![
            Arg::Value(dealt),
            Arg::Str(Reduction::Sum.text().into()),
            Arg::Int(i64::from(self.axis.size)),
            Arg::Str(self.group.into()),
        ];
        collective(out, CollectiveKind::ReduceScatter, args, ty)
    }

    /// From shards of one dimension to shards of another.
    fn exchange(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        from: (usize, Chunks),
        to: (usize, Chunks),
    ) -> ValueId {
        if !from.1.is_even() || !to.1.is_even() {
            return self.exchange_uneven(out, value, from, to);
        }
        let (dealt, part) = self.deal(out, value, to.0, to.1.blocks);
        let received = self.all_to_all(out, dealt);
        self.interleave(out, received, &part, from.0, from.1.blocks)
    }

    /// What all ranks have dealt to this one, one after the other.
    pub fn all_to_all(&self, out: &mut Emitter<'_>, dealt: ValueId) -> ValueId {
        let ty = out.ty(dealt);
        let splits = vec![ty.shape[0] / i64::from(self.axis.size); self.axis.size as usize];
        let args = vec![
            Arg::Value(dealt),
            Arg::Ints(splits.clone()),
            Arg::Ints(splits),
            Arg::Str(self.group.into()),
        ];
        collective(out, CollectiveKind::AllToAll, args, ty)
    }

    /// What rank `from` has sent to this one, which sends `value`, in row-major order, to rank `to`.
    pub fn permute(&self, out: &mut Emitter<'_>, value: ValueId, to: u32, from: u32) -> ValueId {
        let one = out.unsqueezed(value, 0);
        let splits = |rank: u32| Arg::Ints((0..self.axis.size).map(|r| i64::from(r == rank)).collect());
        let args = vec![Arg::Value(one), splits(from), splits(to), Arg::Str(self.group.into())];
        let ty = out.ty(one);
        let received = collective(out, CollectiveKind::Permute, args, ty);
        out.select(received, 0, 0)
    }

    /// The reduction of all, on every rank.
    pub fn all_reduce(&self, out: &mut Emitter<'_>, value: ValueId, reduction: Reduction) -> ValueId {
        let value = out.in_order(value);
        let ty = out.ty(value);
        let args = vec![Arg::Value(value), Arg::Str(reduction.text().into()), Arg::Str(self.group.into())];
        collective(out, CollectiveKind::AllReduce, args, ty)
    }
}

/// Starts a collective and waits for it; complex numbers, which not every network sends, go as pairs of real ones.
fn collective(out: &mut Emitter<'_>, kind: CollectiveKind, mut args: Vec<Arg>, ty: TensorType) -> ValueId {
    if let (Some(Arg::Value(value)), true) = (args.first(), ty.dtype.is_complex()) {
        args[0] = Arg::Value(out.real_pairs(*value));
        let pairs = collective(out, kind, args, ty.real_pairs());
        return out.op(VIEW_AS_COMPLEX, vec![Arg::Value(pairs)], ty);
    }
    let issued = out.op(kind.schema(), args, ty.clone());
    out.op(WAIT, vec![Arg::Value(issued)], ty)
}

#[cfg(test)]
mod tests {
    use ir::{Graph, InputClass};

    use super::*;
    use crate::emit::Origin;

    /// The nodes of a change of placement of a `[4, 6]` tensor on each of two ranks: operators, and arguments that are numbers.
    fn nodes(from: Placement, to: Placement) -> [Vec<String>; 2] {
        [0, 1].map(|coordinate| {
            let mut graph = Graph::default();
            let global = TensorType::contiguous(ir::Dtype::F32, Dims::from_slice(&[4, 6]));
            let local = crate::local::local_type(&global, from, 2, coordinate);
            let value = graph.input(InputClass::Constant, "constants.0", local);
            let axis = MeshAxis::ranks("a", 2);
            let resharder = Resharder { axis: &axis, coordinate, group: "axis:a" };
            let mut emitter = Emitter::new(&mut graph, Origin::default());
            let result = resharder.reshard(&mut emitter, value, &global.shape, Reshard { from, to });
            assert_eq!(graph.ty(result).shape, crate::local::local_type(&global, to, 2, coordinate).shape);
            let numbers = |node: &ir::NodeId| {
                let numbers =
                    graph.nodes[*node].args.iter().filter(|arg| matches!(arg, Arg::Ints(_) | Arg::Bool(_)));
                format!("{} {:?}", graph.op_name(*node), numbers.collect::<Vec<_>>())
            };
            graph.order.iter().map(numbers).collect()
        })
    }

    #[test]
    fn a_replicated_value_becomes_a_sum_of_itself_and_zeros_by_the_same_nodes_on_all_ranks() {
        let [first, second] = nodes(Placement::Replicate, Placement::Partial(Reduce::Sum));
        assert_eq!(first, ["aten::full [Ints([]), Bool(false)]", "aten::masked_fill.Scalar []"]);
        assert_eq!(second, ["aten::full [Ints([]), Bool(true)]", "aten::masked_fill.Scalar []"]);
    }

    #[test]
    fn complex_numbers_are_sent_as_pairs_of_real_ones() {
        let mut graph = Graph::default();
        let ty = TensorType::contiguous(ir::Dtype::C64, Dims::from_slice(&[4, 6]));
        let value = graph.input(InputClass::Constant, "constants.0", ty.clone());
        let axis = MeshAxis::ranks("a", 2);
        let resharder = Resharder { axis: &axis, coordinate: 0, group: "axis:a" };
        let mut emitter = Emitter::new(&mut graph, Origin::default());
        let sum = resharder.all_reduce(&mut emitter, value, Reduction::Sum);
        assert_eq!(*graph.ty(sum), ty);
        let lines: Vec<_> = graph.order.iter().map(|node| graph.op_name(*node).to_owned()).collect();
        let wait = "_c10d_functional::wait_tensor";
        let expected = [
            "aten::resolve_conj",
            "aten::view_as_real",
            "_c10d_functional::all_reduce",
            wait,
            "aten::view_as_complex",
        ];
        assert_eq!(lines, expected);
        let Some(node) = graph.order.get(2) else { unreachable!("five nodes") };
        let sent = graph.ty(graph.nodes[*node].operands().next().expect("an operand"));
        assert_eq!((sent.dtype, sent.shape.as_slice()), (ir::Dtype::F32, [4, 6, 2].as_slice()));
    }

    #[test]
    fn shards_become_a_sum_by_zeros_around_them_without_a_collective() {
        let [first, second] = nodes(Placement::shard(1), Placement::Partial(Reduce::Sum));
        assert_eq!(first, ["aten::constant_pad_nd [Ints([0, 3])]"]);
        assert_eq!(second, ["aten::constant_pad_nd [Ints([3, 0])]"]);
        let [first, _] = nodes(Placement::shard(0), Placement::Partial(Reduce::Sum));
        assert_eq!(first, ["aten::constant_pad_nd [Ints([0, 0, 0, 2])]"]);
    }
}
