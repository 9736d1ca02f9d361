//! What an operation becomes on one rank.

use aten::{Call, Realise, Row, Sizes, Strategy, Strides};
use ir::{Arg, Chunks, Dtype, Placement, Reduction, Return, TensorType, ValueDef, ValueId, local_shape_at};
use smallvec::SmallVec;

use crate::{
    emit::Emitter,
    groups::{OwnGroups, offsets_within},
    layout::{reshaped, view_strides},
    local::{local_type, same_order},
    reshard::Resharder,
};

const INDEX_PUT: &str =
    "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor";

/// PyTorch's default for a target that does not count; never a class.
const IGNORED: i64 = -100;

/// One operation with its local operands. The rank's graph begins with the operators of the global one, so that their numbers hold in both.
pub struct Realised<'a> {
    /// The operation in the global graph.
    pub call: &'a Call<'a>,
    /// How it runs.
    pub strategy: &'a Strategy,
    /// Its operands in the rank's graph, in the required placements.
    pub operands: SmallVec<[ValueId; 4]>,
    /// The axis.
    pub resharder: &'a Resharder<'a>,
}

impl Realised<'_> {
    /// Writes the nodes and returns the local results, in the placements that the strategy provides.
    pub fn write(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        match self.strategy.realise {
            Realise::Plain => self.plain(out),
            Realise::Averaged => self.averaged(out),
            Realise::Softmax | Realise::LogSoftmax => smallvec::smallvec![self.softmax(out)],
            Realise::SoftmaxBackward => smallvec::smallvec![self.softmax_backward(out)],
            Realise::LogSoftmaxBackward => smallvec::smallvec![self.log_softmax_backward(out)],
            Realise::NllPick => self.on_own_classes(out, 0, 1, 4),
            Realise::NllPickBackward => self.on_own_classes(out, 1, 2, 5),
            Realise::EmbeddingRows => smallvec::smallvec![self.embedding(out)],
            Realise::EmbeddingRowsBackward => smallvec::smallvec![self.embedding_backward(out)],
            Realise::OwnGroups | Realise::PartsOfGroups => self.on_groups(out),
            Realise::IndexRows => smallvec::smallvec![self.index(out)],
            Realise::IndexPutRows => smallvec::smallvec![self.index_put(out)],
        }
    }

    fn ranks(&self) -> u32 {
        self.resharder.axis.size
    }

    /// The same operation on local operands.
    fn plain(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let mut operands = self.operands.clone();
        let row = aten::row(self.call.name());
        if row.is_some_and(|row| row.strides == Strides::Reshaped) {
            let shape = self.result_shape(0);
            let needs_copy = reshaped(out.graph.ty(operands[0]), &shape).is_none();
            if out.decide(needs_copy) {
                operands[0] = out.in_order(operands[0]);
            }
        }
        if row.is_some_and(|row| row.strides == Strides::Expanded) {
            operands[0] = out.with_usual_strides(operands[0]);
        }
        if row.is_some_and(|row| row.walks_memory) {
            self.lay_out_like_first(out, &mut operands);
        }
        if row.is_none_or(passes_layout_on) {
            self.lay_out_as_whole(out, &mut operands);
        }
        let args = self.args(&operands);
        self.push(out, args, &operands)
    }

    /// A change of placement may leave the dimensions of an operand in another order in memory than the global tensor has them: puts such
    /// operands back in that order, so that the strides of results are those of their types.
    fn lay_out_as_whole(&self, out: &mut Emitter<'_>, operands: &mut [ValueId]) {
        for (slot, operand) in operands.iter_mut().enumerate() {
            let global = self.call.operand(slot);
            let wanted = self.local_type(global, self.strategy.operands[slot]);
            let actual = out.graph.ty(*operand);
            let repeated =
                global.shape.iter().zip(&global.strides).any(|(size, step)| *size > 1 && *step == 0);
            let is_turned = !same_order(&actual.shape, &actual.strides, &wanted.strides);
            if !repeated && out.decide(is_turned) {
                *operand = out.laid_out(*operand, &ir::memory_order(&global.strides));
            }
        }
    }

    /// Puts operands in the order in memory of the first, such as gradient and state in that of the parameter.
    fn lay_out_like_first(&self, out: &mut Emitter<'_>, operands: &mut [ValueId]) {
        let first = out.ty(operands[0]);
        for operand in &mut operands[1..] {
            let ty = out.graph.ty(*operand);
            let is_turned = ty.shape == first.shape && ty.strides != first.strides && first.is_contiguous();
            if out.decide(is_turned) {
                *operand = out.in_order(*operand);
            }
        }
    }

    fn result_shape(&self, result: usize) -> ir::Dims {
        self.local_shape(self.call.result(result), self.strategy.results[result])
    }

    fn local_shape(&self, ty: &TensorType, placement: Placement) -> ir::Dims {
        local_shape_at(&ty.shape, placement, self.ranks(), self.resharder.coordinate)
    }

    fn local_type(&self, ty: &TensorType, placement: Placement) -> TensorType {
        local_type(ty, placement, self.ranks(), self.resharder.coordinate)
    }

    /// The arguments with local operands and localised sizes.
    fn args(&self, operands: &[ValueId]) -> Vec<Arg> {
        let mut args = self.call.node.args.clone();
        let mut next = operands.iter().copied();
        for arg in &mut args {
            arg.map_values(|_| next.next().expect("one local operand for each operand"));
        }
        match aten::row(self.call.name()).map_or(Sizes::None, |row| row.sizes) {
            Sizes::None => {}
            Sizes::Shape(arg) => args[arg] = Arg::Ints(self.result_shape(0).to_vec()),
            Sizes::Batch(arg) => {
                let local = self.local_shape(self.call.operand(0), self.strategy.operands[0]);
                args[arg] = Arg::Int(local[0]);
            }
            Sizes::Splits(lists) => {
                let sharded = matches!(self.strategy.operands[0], Placement::Shard { dim: 0, .. });
                let local = self.local_shape(self.call.operand(0), self.strategy.operands[0]);
                for arg in lists.iter().filter(|_| sharded) {
                    if let Arg::Ints(sizes) = &mut args[*arg] {
                        let count = sizes.len() as i64;
                        sizes.fill(local[0] / count);
                    }
                }
            }
            Sizes::Pieces { sizes, dim } => {
                let along = self.call.dim(dim, self.call.operand(0).rank());
                let sharded = matches!(self.strategy.operands[0], Placement::Shard { dim, .. } if Some(usize::from(dim)) == along);
                if let (true, Some(along)) = (sharded, along) {
                    // Pieces of one size, each of which is sharded.
                    let piece = self.result_shape(0)[along];
                    match &mut args[sizes] {
                        Arg::Int(size) => *size = piece,
                        Arg::Ints(sizes) => sizes.fill(piece),
                        _ => {}
                    }
                }
            }
        }
        args
    }

    /// Writes the operation itself.
    fn push(&self, out: &mut Emitter<'_>, args: Vec<Arg>, operands: &[ValueId]) -> SmallVec<[ValueId; 2]> {
        let id = out.graph.nodes.next_id();
        let mut results = SmallVec::new();
        let mut position = 0;
        let mut local = |value: &ValueId, out: &mut Emitter<'_>| {
            let ty = self.local_result(position, operands, out);
            debug_assert_eq!(self.call.results[position], *value);
            let made = out.graph.values.push(ir::Value { ty, def: ValueDef::Result(id, position as u32) });
            position += 1;
            results.push(made);
            made
        };
        let returns = self.call.node.returns.iter().map(|returned| match returned {
            Return::None => Return::None,
            Return::Value(value) => Return::Value(local(value, out)),
            Return::Values(values) => Return::Values(values.iter().map(|value| local(value, out)).collect()),
        });
        let returns = returns.collect();
        let origin = out.origin;
        out.graph.nodes.push(ir::Node {
            op: self.call.node.op,
            args,
            returns,
            place: origin.place,
            module: origin.module,
            part: origin.part,
            label: origin.label,
            stage: origin.stage,
        });
        out.graph.order.push(id);
        results
    }

    /// The local type of a result: the global type where the operands are as in the global graph; for a view, strides that follow from the
    /// operand's.
    fn local_result(&self, result: usize, operands: &[ValueId], out: &Emitter<'_>) -> TensorType {
        let unchanged = |(slot, value): (usize, &ValueId)| out.graph.ty(*value) == self.call.operand(slot);
        let is_whole = self.strategy.results[result] == Placement::Replicate;
        if is_whole && operands.iter().enumerate().all(unchanged) {
            return self.call.result(result).clone();
        }
        let ty = self.local_type(self.call.result(result), self.strategy.results[result]);
        let operand = operands.first().map(|operand| out.graph.ty(*operand));
        match operand.and_then(|operand| view_strides(self.call, operand, &ty.shape)) {
            Some(strides) => TensorType { strides, ..ty },
            None => ty,
        }
    }

    /// A mean of what this rank has, times the share that this is of all; nothing of nothing is 0, not undefined.
    fn averaged(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let (_, chunks) = self.chunks(0);
        let (_, part) = chunks.part(self.resharder.coordinate);
        let share = part as f64 / chunks.block as f64;
        let mut results = self.plain(out);
        for (result, value) in results.iter_mut().enumerate() {
            if !out.graph.ty(*value).dtype.is_floating() {
                continue;
            }
            *value = out.scaled(*value, share);
            if chunks.leaves_empty() && matches!(self.strategy.results[result], Placement::Partial(_)) {
                *value = out.kept_or_zeros(*value, part > 0);
            }
        }
        results
    }

    /// The first of these tensors, operands before results, that is sharded: its dimension, and who holds what of it.
    fn chunks(&self, first: usize) -> (usize, Chunks) {
        let operands = self.strategy.operands.iter().enumerate().map(|(i, p)| (*p, self.call.operand(i)));
        let results = self.strategy.results.iter().enumerate().map(|(i, p)| (*p, self.call.result(i)));
        let mut sharded = operands.chain(results).skip(first);
        sharded
            .find_map(|(placement, ty)| placement.chunks(&ty.shape, self.ranks()))
            .expect("this realisation belongs to a strategy that shards something")
    }

    /// The sharded dimension of the operand `slot`.
    fn cut_dim(&self, slot: usize) -> usize {
        match self.strategy.operands[slot] {
            Placement::Shard { dim, .. } => usize::from(dim),
            _ => unreachable!("this realisation belongs to a strategy that shards operand {slot}"),
        }
    }

    /// Softmax or log-softmax along the sharded dimension: the largest element and the sum of exponentials of all ranks.
    fn softmax(&self, out: &mut Emitter<'_>) -> ValueId {
        let dim = self.cut_dim(0);
        let x = self.as_result_type(out, self.operands[0]);
        let largest = out.amax(x, dim);
        let largest = self.resharder.all_reduce(out, largest, Reduction::Max);
        let shifted = out.sum("sub", x, largest);
        let exponential = out.unary("exp", shifted);
        let sum = out.reduce("sum", exponential, &[dim], true);
        let sum = self.resharder.all_reduce(out, sum, Reduction::Sum);
        if self.strategy.realise == Realise::Softmax {
            return out.binary("div.Tensor", exponential, sum);
        }
        let logarithm = out.unary("log", sum);
        out.sum("sub", shifted, logarithm)
    }

    /// `x` in the element type of the result.
    fn as_result_type(&self, out: &mut Emitter<'_>, x: ValueId) -> ValueId {
        let dtype = self.call.result(0).dtype;
        let ty = out.ty(x);
        if ty.dtype == dtype {
            return x;
        }
        let schema = "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor";
        let args = vec![
            Arg::Value(x),
            Arg::Dtype(dtype),
            Arg::None,
            Arg::None,
            Arg::None,
            Arg::Bool(false),
            Arg::None,
        ];
        out.op(schema, args, TensorType { dtype, ..ty })
    }

    /// `y * (g - sum(g * y))`.
    fn softmax_backward(&self, out: &mut Emitter<'_>) -> ValueId {
        let (gradient, y) = (self.operands[0], self.operands[1]);
        let product = out.binary("mul.Tensor", gradient, y);
        let sum = out.reduce("sum", product, &[self.cut_dim(0)], true);
        let sum = self.resharder.all_reduce(out, sum, Reduction::Sum);
        let weighted = out.binary("mul.Tensor", y, sum);
        let result = out.sum("sub", product, weighted);
        self.as_result_type(out, result)
    }

    /// `g - exp(y) * sum(g)`.
    fn log_softmax_backward(&self, out: &mut Emitter<'_>) -> ValueId {
        let (gradient, y) = (self.operands[0], self.operands[1]);
        let sum = out.reduce("sum", gradient, &[self.cut_dim(0)], true);
        let sum = self.resharder.all_reduce(out, sum, Reduction::Sum);
        let probability = out.unary("exp", y);
        let weighted = out.binary("mul.Tensor", probability, sum);
        let result = out.sum("sub", gradient, weighted);
        self.as_result_type(out, result)
    }

    /// Indices of rows or classes relative to the first of this rank's own, and a mask of those that belong to other ranks or equal
    /// `without`.
    fn own_numbers(
        &self,
        out: &mut Emitter<'_>,
        numbers: ValueId,
        chunks: Chunks,
        without: Option<i64>,
    ) -> (ValueId, ValueId) {
        let (first, own) = chunks.part(self.resharder.coordinate);
        let shifted = out.shifted(numbers, Arg::Int(-first));
        let below = out.compare("lt", shifted, 0);
        let above = out.compare("ge", shifted, own);
        let mut others = out.binary("bitwise_or.Tensor", below, above);
        if let Some(without) = without {
            let excluded = out.compare("eq", numbers, without);
            others = out.binary("bitwise_or.Tensor", others, excluded);
        }
        (shifted, others)
    }

    /// The negative log-likelihood (or its backward) on this rank's classes: targets of other ranks are ignored.
    fn on_own_classes(
        &self,
        out: &mut Emitter<'_>,
        scores: usize,
        targets: usize,
        ignore_arg: usize,
    ) -> SmallVec<[ValueId; 2]> {
        let ignored = self.call.int(ignore_arg);
        let (_, classes) = self.chunks(scores);
        let (shifted, others) = self.own_numbers(out, self.operands[targets], classes, ignored);
        let mut operands = self.operands.clone();
        operands[targets] = out.masked_fill(shifted, others, Arg::Int(IGNORED));
        let mut args = self.args(&operands);
        args[ignore_arg] = Arg::Int(IGNORED);
        self.push(out, args, &operands)
    }

    /// A product of groups on those that this rank has, or on its parts of them.
    fn on_groups(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let row = aten::row(self.call.name());
        let divides =
            row.and_then(|row| row.groups).and_then(|groups| self.call.operand_of_arg(groups.offsets));
        let at = divides.expect("this realisation belongs to an operation that divides a dimension");
        let mut operands = self.operands.clone();
        operands[at] = if self.strategy.realise == Realise::OwnGroups {
            OwnGroups::new(out, operands[at], self.ranks(), self.resharder.coordinate).offsets(out)
        } else {
            let (first, own) = self.chunks(0).1.part(self.resharder.coordinate);
            offsets_within(out, operands[at], first, own)
        };
        let args = self.args(&operands);
        self.push(out, args, &operands)
    }

    /// Numbers of rows, which may count from the end, relative to the first of this rank's own, and a mask of those of other ranks.
    fn own_rows(&self, out: &mut Emitter<'_>, numbers: ValueId) -> (ValueId, ValueId) {
        let (_, rows) = self.chunks(0);
        let from_end = out.compare("lt", numbers, 0);
        let wrapped = out.shifted(numbers, Arg::Int(rows.block));
        let numbers = out.chosen(from_end, wrapped, numbers);
        self.own_numbers(out, numbers, rows, None)
    }

    /// The rows at those numbers that are this rank's own, zeros for others.
    fn index(&self, out: &mut Emitter<'_>) -> ValueId {
        let (shifted, others) = self.own_rows(out, self.operands[1]);
        let mut operands = self.operands.clone();
        operands[1] = out.masked_fill(shifted, others, Arg::Int(0));
        let args = self.args(&operands);
        let rows = self.push(out, args, &operands)[0];
        let mut shape = out.graph.ty(others).shape.to_vec();
        shape.resize(out.graph.ty(rows).rank(), 1);
        let others = out.in_order(others);
        let others = out.view(others, &shape);
        out.masked_fill(rows, others, Arg::Float(0.0))
    }

    /// What goes to rows of other ranks goes into an additional last row, which is dropped.
    fn index_put(&self, out: &mut Emitter<'_>) -> ValueId {
        let own = self.result_shape(0)[0];
        let (shifted, others) = self.own_rows(out, self.operands[1]);
        let mut operands = self.operands.clone();
        operands[0] = out.pad(operands[0], 0, 0, 1);
        operands[1] = out.masked_fill(shifted, others, Arg::Int(own));
        let args = self.args(&operands);
        let ty = out.ty(operands[0]);
        let rows = out.op(INDEX_PUT, args, ty);
        out.slice(rows, 0, 0, own)
    }

    fn embedding(&self, out: &mut Emitter<'_>) -> ValueId {
        let (_, rows) = self.chunks(0);
        let (shifted, others) = self.own_numbers(out, self.operands[1], rows, None);
        let mut operands = self.operands.clone();
        operands[1] = out.masked_fill(shifted, others, Arg::Int(0));
        let mut args = self.args(&operands);
        args[2] = Arg::Int(-1);
        let rows = self.push(out, args, &operands)[0];
        let others = self.unsqueezed(out, others);
        out.masked_fill(rows, others, Arg::Float(0.0))
    }

    fn unsqueezed(&self, out: &mut Emitter<'_>, mask: ValueId) -> ValueId {
        let mut shape = out.graph.ty(mask).shape.to_vec();
        shape.push(1);
        let mask = out.in_order(mask);
        out.view(mask, &shape)
    }

    /// The gradients of other ranks' rows, and of the padding row, go into an additional last row, which is dropped.
    fn embedding_backward(&self, out: &mut Emitter<'_>) -> ValueId {
        let own = self.result_shape(0)[0];
        let padding = self.call.int(3).filter(|row| *row >= 0);
        let (_, rows) = self.chunks(0);
        let (shifted, others) = self.own_numbers(out, self.operands[1], rows, padding);
        let numbers = out.masked_fill(shifted, others, Arg::Int(own));
        let mut shape = self.result_shape(0);
        shape[0] = own + 1;
        let ty = TensorType::contiguous(out.graph.ty(self.operands[0]).dtype, shape);
        let ty = TensorType { device: out.graph.ty(self.operands[0]).device, ..ty };
        let args = vec![
            Arg::Value(self.operands[0]),
            Arg::Value(numbers),
            Arg::Int(own + 1),
            Arg::Int(-1),
            Arg::Bool(false),
        ];
        let schema = "aten::embedding_dense_backward(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq) -> Tensor";
        let rows = out.op(schema, args, ty);
        let own_rows = out.slice(rows, 0, 0, own);
        debug_assert_ne!(out.graph.ty(numbers).dtype, Dtype::Bool);
        own_rows
    }
}

/// Whether the layout of the results in memory may follow from that of the operands: not for views, whose strides are computed, and not
/// where it is always the same.
fn passes_layout_on(row: &Row) -> bool {
    !matches!(row.work, aten::Work::View) && row.strides != Strides::RowMajor
}
