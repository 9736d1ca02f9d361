//! What an operation becomes on one rank.

use aten::{Realise, Row, Strides};
use ir::{Arg, Chunks, Dtype, Placement, Reduction, TensorType, ValueId};
use smallvec::SmallVec;

use crate::{
    emit::Emitter,
    groups::{OwnGroups, offsets_within},
    layout::reshaped,
    operation::Realised,
    ring::Ring,
};

const INDEX_PUT: &str =
    "aten::index_put(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor";

/// PyTorch's default for a target that does not count; never a class.
const IGNORED: i64 = -100;

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
            Realise::Ring => Ring::new(self, out).forward(out),
            Realise::RingBackward => Ring::new(self, out).backward(out),
            Realise::CausalQueries => Ring::new(self, out).forward_of_queries(out),
            Realise::CausalQueriesBackward => Ring::new(self, out).backward_of_queries(out),
        }
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
        let in_groups = self.strategy.operands.first().is_some_and(|placement| placement.is_groups());
        if row.is_some_and(|row| row.strides == Strides::Expanded) && !in_groups {
            operands[0] = out.with_usual_strides(operands[0]);
        }
        if row.is_some_and(|row| row.walks_memory) {
            self.lay_out_like_first(out, &mut operands);
        }
        // What is sent along another axis lies side by side: a slice of it does not.
        if ir::CollectiveKind::of_operator(self.call.name()).is_some() {
            operands[0] = out.in_order(operands[0]);
        }
        if row.is_none_or(passes_layout_on) {
            self.lay_out_as_whole(out, &mut operands);
        }
        let args = self.args(&operands);
        self.push(out, args, &operands)
    }

    /// A mean of what this rank has, times the share that this is of all; nothing of nothing is 0, not undefined.
    fn averaged(&self, out: &mut Emitter<'_>) -> SmallVec<[ValueId; 2]> {
        let (_, chunks) = self.chunks(0);
        let (_, part) = chunks.part(self.resharder.coordinate);
        let share = part as f64 / chunks.block as f64;
        let mut results = self.plain(out);
        let is_partial = |placement: &Placement| matches!(placement, Placement::Partial(_));
        let sums = self.strategy.results.iter().any(is_partial);
        for (result, value) in results.iter_mut().enumerate() {
            // Beside a mean, what is sharded says something of each element.
            let is_mean = !sums || is_partial(&self.strategy.results[result]);
            if !is_mean || !out.graph.ty(*value).dtype.is_floating() {
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
        let mut placed = self.strategy.placed(self.call).skip(first);
        placed
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
