//! A cross entropy that never writes the logarithms of its probabilities: forward keeps two numbers for each row, backward makes the rest
//! again from the logits. As kernels, that is one pass over the logits forward and one backward.
//!
//! On a shard of the batch backward divides by the count of all ranks, so that it need not be forward's own.
//!
//! What is picked at a target is picked by PyTorch, which refuses targets that are none.

use std::sync::LazyLock;

use base::Result;
use ir::{Arg, Dtype, Graph, NodeId, Patch, Return, TensorType, ValueId};
use patterns::{Match, Pattern, find};

use crate::{Pass, facts::Facts, late_casts::Widened, terms::Terms};

const PATTERN: &str = "
pattern cross_entropy
logs = aten::_log_softmax(x, dim, false)
loss, count = aten::nll_loss_forward(logs, target, none, reduction, ignored)
slope = aten::nll_loss_backward(gradient, logs, target, none, reduction, ignored, total)
made = aten::_log_softmax_backward_data(slope, logs, dim, type)
-> loss, count, made
where x is 2d
where x is f32
where x is dense
where target is 1d
";

const AMAX: &str = "aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor";
const SUB: &str = "aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
const ADD: &str = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
const DIV: &str = "aten::div.Tensor(Tensor self, Tensor other) -> Tensor";
const EXP: &str = "aten::exp(Tensor self) -> Tensor";
const LOG: &str = "aten::log(Tensor self) -> Tensor";
const SUM_ROWS: &str = "aten::sum.dim_IntList(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor";
const SUM: &str = "aten::sum(Tensor self, *, ScalarType? dtype=None) -> Tensor";
const PICK: &str = "aten::nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) -> (Tensor output, Tensor total_weight)";
const CAST: &str = "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor";
const VIEW: &str = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
const EQUAL: &str = "aten::eq.Scalar(Tensor self, Scalar other) -> Tensor";
const OTHER: &str = "aten::ne.Scalar(Tensor self, Scalar other) -> Tensor";
const FILL: &str = "aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor";

/// How a loss is made of those of the rows.
const MEAN: &str = "1";
const TOTAL: &str = "2";

static PATTERNS: LazyLock<[Pattern; 1]> = LazyLock::new(|| [PATTERN.parse().expect("the pattern is one")]);

/// Makes cross entropies keep two numbers for each row.
pub struct CrossEntropy;

impl Pass for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let terms = Terms::new(graph);
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        for found in find(&*PATTERNS, &terms) {
            if let Some(loss) = Loss::of(&terms, &found) {
                loss.rewrite(&mut patch);
            }
        }
        Ok(patch)
    }
}

/// A cross entropy with its backward.
struct Loss<'g> {
    graph: &'g Graph,
    /// The operations of the pattern, in its order.
    ops: [NodeId; 4],
    x: ValueId,
    /// The logits before they became `f32`.
    before: Option<Widened>,
    target: ValueId,
    ignored: Arg,
    is_mean: bool,
}

impl<'g> Loss<'g> {
    fn of(terms: &Terms<'g>, found: &Match<ValueId, NodeId>) -> Option<Self> {
        let graph = terms.graph;
        let capture = |name: &str| PATTERNS[0].capture(name);
        let ops: [NodeId; 4] = found.ops.as_slice().try_into().ok()?;
        let x = found.value(capture("x")?)?;
        let (dim, reduction) = (found.literal(capture("dim")?)?, found.literal(capture("reduction")?)?);
        let is_known = ["1", "-1"].contains(&dim) && [MEAN, TOTAL].contains(&reduction);
        is_known.then_some(Self {
            graph,
            x,
            before: Widened::of(graph, &Facts::new(graph), x),
            target: found.value(capture("target")?)?,
            ignored: graph.nodes[ops[1]].args[4].clone(),
            is_mean: reduction == MEAN,
            ops,
        })
    }

    fn rewrite(&self, patch: &mut Patch<'_>) {
        let [logs, forward, slope, backward] = self.ops;
        let at = Rows { patch: &mut *patch, at: forward, x: self.graph.ty(self.x).clone() };
        let (most, rest) = self.of_rows(at);
        self.loss(patch, most, rest);
        // Backward reads what is there anyway, not a copy of it that is twice as large.
        let again = self.before.as_ref().map_or(self.x, |before| before.again(patch, backward));
        let mut rows = Rows { patch: &mut *patch, at: backward, x: self.graph.ty(self.x).clone() };
        let behind = rows.points(SUB, vec![of(again), of(most), Arg::Int(1)]);
        let found = rows.points(SUB, vec![of(behind), of(rest), Arg::Int(1)]);
        let old = first_of(patch, logs);
        patch.replace_in(slope, old, found);
        patch.replace_in(backward, old, found);
        patch.remove(forward);
        patch.remove(logs);
    }

    /// The largest logit of each row, and the logarithm of the sum of what is left of the others.
    fn of_rows(&self, mut rows: Rows<'_, '_>) -> (ValueId, ValueId) {
        let last = || Arg::Ints(vec![1]);
        let most = rows.row(AMAX, vec![of(self.x), last(), Arg::Bool(true)]);
        let behind = rows.points(SUB, vec![of(self.x), of(most), Arg::Int(1)]);
        let powers = rows.points(EXP, vec![of(behind)]);
        let sums = rows.row(SUM_ROWS, vec![of(powers), last(), Arg::Bool(true), Arg::None]);
        (most, rows.row(LOG, vec![of(sums)]))
    }

    /// The loss: of each row what is above its target's logit, and their sum or mean.
    fn loss(&self, patch: &mut Patch<'_>, most: ValueId, rest: ValueId) {
        let [_, forward, ..] = self.ops;
        let shape = self.graph.ty(self.target).shape.to_vec();
        let x = self.graph.ty(self.x);
        let ty = |dtype: Dtype, shape: Vec<i64>| TensorType {
            device: x.device,
            ..TensorType::contiguous(dtype, shape)
        };
        let (rows, mask) = (ty(Dtype::F32, shape.clone()), ty(Dtype::Bool, shape.clone()));
        let number = ty(Dtype::F32, Vec::new());
        let mut source = self.before.as_ref().map_or(self.x, |before| before.before);
        let read = self.graph.ty(source).dtype;
        if self.graph.ty(source).shape != x.shape {
            let seen = TensorType { dtype: read, ..x.clone() };
            source = patch.push_value(forward, VIEW, vec![of(source), Arg::Ints(x.shape.to_vec())], seen);
        }
        let args = vec![of(source), of(self.target), Arg::None, Arg::Int(0), self.ignored.clone()];
        let picked = patch.push(
            forward,
            PICK,
            args,
            vec![ty(read, shape.clone()).into(), ty(read, Vec::new()).into()],
        );
        let mut picked = first_of(patch, picked);
        let mut push =
            |op: &str, args: Vec<Arg>, ty: &TensorType| patch.push_value(forward, op, args, ty.clone());
        if read != Dtype::F32 {
            let none = || Arg::None;
            let cast = Arg::Dtype(Dtype::F32);
            picked =
                push(CAST, vec![of(picked), cast, none(), none(), none(), Arg::Bool(false), none()], &rows);
        }
        let flat = |value: ValueId| vec![of(value), Arg::Ints(shape.clone())];
        let (most, rest) = (push(VIEW, flat(most), &rows), push(VIEW, flat(rest), &rows));
        let above = push(ADD, vec![of(most), of(picked), Arg::Int(1)], &rows);
        let losses = push(ADD, vec![of(above), of(rest), Arg::Int(1)], &rows);
        let out = push(EQUAL, vec![of(self.target), self.ignored.clone()], &mask);
        let losses = push(FILL, vec![of(losses), of(out), Arg::Float(0.0)], &rows);
        let taken = push(OTHER, vec![of(self.target), self.ignored.clone()], &mask);
        let count = push(SUM, vec![of(taken), Arg::Dtype(Dtype::F32)], &number);
        let mut loss = push(SUM, vec![of(losses), Arg::None], &number);
        if self.is_mean {
            loss = push(DIV, vec![of(loss), of(count)], &number);
        }
        for (returned, new) in self.graph.nodes[forward].returns.iter().zip([loss, count]) {
            if let Return::Value(old) = returned {
                patch.replace(*old, new);
            }
        }
    }
}

/// Adds operations on the logits where an operation stands.
struct Rows<'a, 'g> {
    patch: &'a mut Patch<'g>,
    at: NodeId,
    /// The logits' type.
    x: TensorType,
}

impl Rows<'_, '_> {
    fn points(&mut self, op: &str, args: Vec<Arg>) -> ValueId {
        self.patch.push_value(self.at, op, args, self.x.clone())
    }

    fn row(&mut self, op: &str, args: Vec<Arg>) -> ValueId {
        let shape = vec![self.x.shape[0], 1];
        let ty = TensorType { device: self.x.device, ..TensorType::contiguous(Dtype::F32, shape) };
        self.patch.push_value(self.at, op, args, ty)
    }
}

const fn of(value: ValueId) -> Arg {
    Arg::Value(value)
}

fn first_of(patch: &Patch<'_>, node: NodeId) -> ValueId {
    patch.node(node).results().next().expect("it has a result")
}
