//! The nodes that do changes of placement.

use ir::{
    Arg, CollectiveKind, Dims, MeshAxis, Placement, Reduce, Reduction, Reshard, TensorType, ValueId, WAIT,
};

use crate::emit::Emitter;

/// Writes the nodes of changes of placement along one axis, for one rank.
pub struct Resharder<'a> {
    /// The axis.
    pub axis: &'a MeshAxis,
    /// This rank's position on it.
    pub coordinate: u32,
    /// The symbolic name of the process group.
    pub group: &'a str,
}

impl Resharder<'_> {
    /// Writes the nodes that take `value`, one rank's part of a tensor of global `shape`, from one placement to another, which must be
    /// possible (see [`ir::reshard_steps`]).
    pub fn reshard(&self, out: &mut Emitter<'_>, value: ValueId, shape: &[i64], reshard: Reshard) -> ValueId {
        use Placement::{Partial, Replicate, Shard};
        match (reshard.from, reshard.to) {
            (from, to) if from == to => value,
            (Replicate, Shard { dim, blocks }) => self.cut(out, value, usize::from(dim), blocks),
            (Replicate, Partial(_)) => out.kept_or_zeros(value, self.coordinate == 0),
            (Shard { dim, blocks: 1 }, Partial(Reduce::Sum | Reduce::Norm)) => {
                let dim = usize::from(dim);
                let part = out.graph.ty(value).shape[dim];
                let before = part * i64::from(self.coordinate);
                out.pad(value, dim, before, part * i64::from(self.axis.size) - part - before)
            }
            (Shard { dim, blocks }, Replicate) => self.gather(out, value, usize::from(dim), blocks),
            (Shard { dim: from, blocks: a }, Shard { dim: to, blocks: b }) if from != to => {
                self.exchange(out, value, (usize::from(from), a), (usize::from(to), b))
            }
            (Partial(Reduce::Sum), Shard { dim, blocks }) => {
                self.reduce_cut(out, value, usize::from(dim), blocks)
            }
            (Partial(Reduce::Sum), Replicate) => self.all_reduce(out, value, Reduction::Sum),
            (Partial(Reduce::Norm), Replicate) => {
                let squares = out.binary("mul.Tensor", value, value);
                let sum = self.all_reduce(out, squares, Reduction::Sum);
                out.unary("sqrt", sum)
            }
            (from, to) => {
                debug_assert!(
                    from != Replicate && to != Replicate,
                    "{from} to {to} of {shape:?} goes through the whole"
                );
                let whole = self.reshard(out, value, shape, Reshard { from, to: Replicate });
                self.reshard(out, whole, shape, Reshard { from: Replicate, to })
            }
        }
    }

    /// This rank's part of a whole tensor.
    fn cut(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: u32) -> ValueId {
        let size = out.graph.ty(value).shape[dim];
        let part = size / i64::from(self.axis.size);
        if blocks == 1 {
            let start = part * i64::from(self.coordinate);
            let cut = out.slice(value, dim, start, start + part);
            // Leading dimensions of size 1 leave the cut in order.
            return out.in_order(cut);
        }
        let whole = out.in_order(value);
        let opened = self.open(out, whole, dim, blocks);
        let mine = out.select(opened, dim + 1, i64::from(self.coordinate));
        self.close(out, mine, dim)
    }

    /// Looks at dimension `dim` as `[blocks, ranks, rest]`.
    fn open(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: u32) -> ValueId {
        let shape = out.graph.ty(value).shape.clone();
        let (blocks, ranks) = (i64::from(blocks), i64::from(self.axis.size));
        let mut opened = Dims::from_slice(&shape[..dim]);
        opened.extend([blocks, ranks, shape[dim] / blocks / ranks]);
        opened.extend_from_slice(&shape[dim + 1..]);
        out.view(value, &opened)
    }

    /// Looks at dimensions `dim` and `dim + 1` as one, copying if they do not lie together.
    fn close(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize) -> ValueId {
        let value = out.in_order(value);
        let mut shape = out.graph.ty(value).shape.clone();
        let inner = shape.remove(dim + 1);
        shape[dim] *= inner;
        out.view(value, &shape)
    }

    /// The whole tensor from all parts.
    fn gather(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: u32) -> ValueId {
        let value = out.in_order(value);
        let ty = out.ty(value);
        let ranks = i64::from(self.axis.size);
        let mut gathered_ty = ty.clone();
        if ty.shape.is_empty() {
            return value;
        }
        gathered_ty.shape[0] *= ranks;
        gathered_ty.strides = ir::contiguous_strides(&gathered_ty.shape);
        let args = vec![Arg::Value(value), Arg::Int(ranks), Arg::Str(self.group.into())];
        let gathered = self.collective(out, CollectiveKind::AllGather, args, gathered_ty);
        if dim == 0 && blocks == 1 {
            return gathered;
        }
        self.interleave(out, gathered, &ty.shape, dim, blocks)
    }

    /// From `[ranks, parts...]`, flattened over the first two dimensions, to the tensor in which dimension `dim` is whole.
    fn interleave(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        part: &[i64],
        dim: usize,
        blocks: u32,
    ) -> ValueId {
        let blocks = i64::from(blocks);
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
        let mut whole = Dims::from_slice(part);
        whole[dim] *= i64::from(self.axis.size);
        out.view(turned, &whole)
    }

    /// The parts of each rank one after the other: `[ranks * part...]`, from a tensor in which dimension `dim` is whole.
    fn deal(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: u32) -> (ValueId, Dims) {
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

    /// This rank's part of the sum.
    fn reduce_cut(&self, out: &mut Emitter<'_>, value: ValueId, dim: usize, blocks: u32) -> ValueId {
        let (dealt, part) = self.deal(out, value, dim, blocks);
        let ty = TensorType { strides: ir::contiguous_strides(&part), shape: part, ..out.ty(dealt) };
        let args = vec![
            Arg::Value(dealt),
            Arg::Str(Reduction::Sum.text().into()),
            Arg::Int(i64::from(self.axis.size)),
            Arg::Str(self.group.into()),
        ];
        self.collective(out, CollectiveKind::ReduceScatter, args, ty)
    }

    /// From parts of one dimension to parts of another.
    fn exchange(
        &self,
        out: &mut Emitter<'_>,
        value: ValueId,
        from: (usize, u32),
        to: (usize, u32),
    ) -> ValueId {
        let (dealt, part) = self.deal(out, value, to.0, to.1);
        let ty = out.ty(dealt);
        let splits = vec![ty.shape[0] / i64::from(self.axis.size); self.axis.size as usize];
        let args = vec![
            Arg::Value(dealt),
            Arg::Ints(splits.clone()),
            Arg::Ints(splits),
            Arg::Str(self.group.into()),
        ];
        let received = self.collective(out, CollectiveKind::AllToAll, args, ty);
        self.interleave(out, received, &part, from.0, from.1)
    }

    /// The reduction of all, on every rank.
    pub fn all_reduce(&self, out: &mut Emitter<'_>, value: ValueId, reduction: Reduction) -> ValueId {
        let value = out.in_order(value);
        let ty = out.ty(value);
        let args = vec![Arg::Value(value), Arg::Str(reduction.text().into()), Arg::Str(self.group.into())];
        self.collective(out, CollectiveKind::AllReduce, args, ty)
    }

    /// Starts a collective and waits for it.
    fn collective(
        &self,
        out: &mut Emitter<'_>,
        kind: CollectiveKind,
        args: Vec<Arg>,
        ty: TensorType,
    ) -> ValueId {
        let issued = out.op(kind.schema(), args, ty.clone());
        out.op(WAIT, vec![Arg::Value(issued)], ty)
    }
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
            let whole = TensorType::contiguous(ir::Dtype::F32, Dims::from_slice(&[4, 6]));
            let local = crate::local::local_type(&whole, from, 2);
            let value = graph.input(InputClass::Constant, "constants.0", local);
            let axis = MeshAxis { name: "a".into(), size: 2 };
            let resharder = Resharder { axis: &axis, coordinate, group: "axis:a" };
            let mut emitter = Emitter { graph: &mut graph, origin: Origin::default() };
            let result = resharder.reshard(&mut emitter, value, &whole.shape, Reshard { from, to });
            assert_eq!(graph.ty(result).shape, crate::local::local_type(&whole, to, 2).shape);
            let numbers = |node: &ir::NodeId| {
                let numbers =
                    graph.nodes[*node].args.iter().filter(|arg| matches!(arg, Arg::Ints(_) | Arg::Bool(_)));
                format!("{} {:?}", graph.op_name(*node), numbers.collect::<Vec<_>>())
            };
            graph.order.iter().map(numbers).collect()
        })
    }

    #[test]
    fn a_whole_becomes_a_sum_of_itself_and_zeros_by_the_same_nodes_on_all_ranks() {
        let [first, second] = nodes(Placement::Replicate, Placement::Partial(Reduce::Sum));
        assert_eq!(first, ["aten::full [Ints([]), Bool(false)]", "aten::masked_fill.Scalar []"]);
        assert_eq!(second, ["aten::full [Ints([]), Bool(true)]", "aten::masked_fill.Scalar []"]);
    }

    #[test]
    fn parts_become_a_sum_by_zeros_around_them_without_a_collective() {
        let [first, second] = nodes(Placement::shard(1), Placement::Partial(Reduce::Sum));
        assert_eq!(first, ["aten::constant_pad_nd [Ints([0, 3])]"]);
        assert_eq!(second, ["aten::constant_pad_nd [Ints([3, 0])]"]);
        let [first, _] = nodes(Placement::shard(0), Placement::Partial(Reduce::Sum));
        assert_eq!(first, ["aten::constant_pad_nd [Ints([0, 0, 0, 2])]"]);
    }
}
