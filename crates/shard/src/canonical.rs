//! Rewrites operations that cannot be sharded into ones that can.
//!
//! Means over a batch with ignored elements become a sum and a count, which is taken from the targets alone, so that backward need not wait
//! for the loss. A tensor filled in the shape of another becomes a constant of that shape, so that the other is not gathered for it. Batch
//! norm becomes means, products and sums, so that its statistics are those of the global batch under any sharding. Dropout as one kernel
//! becomes a mask, which is drawn from an operand without values, and a product with it, so that only the mask is replicated. A transposition of a
//! transposition goes away, so that gradients are reduced where they are made and not behind a view. A view of state is made in each part of
//! the program that uses it, so that sharded state can be gathered in each part, and not only once for all. Empty tensors that are joined
//! with others are left out, because they have no dimension that could be sharded. A reduction of all elements is one of each element of the
//! first dimension, and then of these. Conjugates that are views of memory with other elements are computed.

mod batch_norm;

use aten::{Fill, Rewrite, Strides};
use ir::{Arg, Dtype, Graph, Node, NodeId, PartId, Return, TensorType, ValueDef, ValueId};
use rustc_hash::FxHashMap;

use crate::{
    emit::{EMPTY, Emitter, FULL, Origin},
    local::same_order,
};

/// PyTorch's numbers for losses that are a mean and a sum.
const MEAN: i64 = 1;
const SUM: i64 = 2;
const DROPPED: &str = "aten::native_dropout_backward(Tensor grad_output, Tensor mask, float scale) -> Tensor";

/// `graph` with such operations rewritten. Inputs, returns and updates are the same.
pub fn canonical(graph: &Graph) -> Graph {
    let mut rewrite = Rewriter {
        graph,
        out: Graph {
            ops: graph.ops.clone(),
            places: graph.places.clone(),
            modules: graph.modules.clone(),
            labels: graph.labels.clone(),
            parts: graph.parts.clone(),
            ..Graph::default()
        },
        new: FxHashMap::default(),
        views: FxHashMap::default(),
    };
    for input in graph.inputs.values() {
        let value = rewrite.out.input(input.class, input.name.clone(), graph.ty(input.value).clone());
        rewrite.new.insert(input.value, value);
    }
    for node in &graph.order {
        rewrite.node(*node);
    }
    let Rewriter { mut out, new, .. } = rewrite;
    out.returns = graph.returns.iter().map(|value| new[value]).collect();
    out.updates = graph.updates.iter().map(|(input, value)| (*input, new[value])).collect();
    out
}

struct Rewriter<'a> {
    graph: &'a Graph,
    out: Graph,
    new: FxHashMap<ValueId, ValueId>,
    /// Views of state as they were made again in a later part of the program.
    views: FxHashMap<(ValueId, PartId), ValueId>,
}

impl Rewriter<'_> {
    fn node(&mut self, id: NodeId) {
        let is = |arg: usize, value: &Arg| self.graph.nodes[id].args.get(arg) == Some(value);
        let (mean, yes) = (Arg::Int(MEAN), Arg::Bool(true));
        let Some(row) = aten::row(self.graph.op_name(id)) else { return self.copy(id) };
        match row.rewrite {
            Some(Rewrite::MeanLoss(arg)) if is(arg, &mean) => self.nll_loss(id),
            Some(Rewrite::MeanLossBackward(arg)) if is(arg, &mean) => self.nll_loss_backward(id),
            Some(Rewrite::BatchNorm(arg)) if is(arg, &yes) => self.batch_norm(id),
            Some(Rewrite::BatchNorm(_)) => self.fixed_batch_norm(id),
            Some(Rewrite::BatchNormBackward(arg)) if is(arg, &yes) => self.batch_norm_backward(id),
            Some(Rewrite::BatchNormBackward(_)) => self.fixed_batch_norm_backward(id),
            Some(Rewrite::Dropout(arg)) if is(arg, &yes) => self.dropout(id),
            Some(Rewrite::Own(name)) => self.own(id, name),
            Some(Rewrite::Nothing) => self.nothing(id),
            Some(Rewrite::InTwo(schema)) => self.in_two(id, schema),
            _ if row.strides == Strides::Reversed && self.turned_back(id) => {}
            _ if row.fills.is_some_and(|fill| self.constant(id, fill)) => {}
            _ if row.joins() => self.join(id),
            _ => self.copy(id),
        }
    }

    fn args(&mut self, id: NodeId) -> Vec<Arg> {
        let Node { args, part, .. } = &self.graph.nodes[id];
        let (mut args, part) = (args.clone(), *part);
        for arg in &mut args {
            arg.map_values(|value| self.in_part(self.new[&value], part));
        }
        args
    }

    /// A new value as a part of the program uses it: views of state that an earlier part made are made again.
    fn in_part(&mut self, value: ValueId, part: PartId) -> ValueId {
        let Some((node, position)) =
            self.view_of_state(value).filter(|(node, _)| self.out.nodes[*node].part < part)
        else {
            return value;
        };
        if let Some(known) = self.views.get(&(value, part)) {
            return *known;
        }
        let mut again = Node { part, ..self.out.nodes[node].clone() };
        for arg in &mut again.args {
            arg.map_values(|operand| self.in_part(operand, part));
        }
        let old: Vec<ValueId> = again.results().collect();
        let new = self.push(again, |out, value| out.ty(value).clone());
        for (old, new) in old.into_iter().zip(&new) {
            self.views.insert((old, part), *new);
        }
        new[position as usize]
    }

    /// The node that made a new value, where that is a view of state.
    fn view_of_state(&self, value: ValueId) -> Option<(NodeId, u32)> {
        let ValueDef::Result(node, position) = self.out.values[value].def else { return None };
        let is_view = aten::is_view(&self.out, node);
        let operand = self.out.nodes[node].operands().next().filter(|_| is_view)?;
        let of_state = match self.out.values[operand].def {
            ValueDef::Input(input) => self.out.inputs[input].class.is_state(),
            ValueDef::Result(..) => self.view_of_state(operand).is_some(),
        };
        of_state.then_some((node, position))
    }

    fn emitter(&mut self, id: NodeId) -> Emitter<'_> {
        let node = &self.graph.nodes[id];
        let origin = Origin::of(node);
        Emitter::new(&mut self.out, origin)
    }

    /// The operand that argument `arg` is.
    fn operand(&mut self, id: NodeId, arg: usize) -> Option<ValueId> {
        let Node { args, part, .. } = &self.graph.nodes[id];
        match args.get(arg)? {
            Arg::Value(value) => Some(self.in_part(self.new[value], *part)),
            _ => None,
        }
    }

    /// The name and schema of a node's operator.
    fn signature(&self, id: NodeId) -> String {
        format!("{}{}", self.graph.op_name(id), self.graph.ops[self.graph.nodes[id].op].schema)
    }

    fn number(&self, id: NodeId, arg: usize) -> f64 {
        match self.graph.nodes[id].args[arg] {
            Arg::Float(number) => number,
            Arg::Int(number) => number as f64,
            _ => 0.0,
        }
    }

    /// Uses `new` in place of return number `position` of a node, copied into the same order in memory if need be.
    fn bind(&mut self, id: NodeId, position: usize, new: ValueId) {
        if let Some(Return::Value(old)) = self.graph.nodes[id].returns.get(position) {
            let was = self.graph.ty(*old);
            let is = self.out.ty(new);
            let new = if same_order(&is.shape, &is.strides, &was.strides) {
                new
            } else {
                self.emitter(id).laid_out(new, &ir::memory_order(&was.strides))
            };
            self.new.insert(*old, new);
        }
    }

    fn copy(&mut self, id: NodeId) {
        let mut node = self.graph.nodes[id].clone();
        node.args = self.args(id);
        let old: Vec<ValueId> = node.results().collect();
        let graph = self.graph;
        let new = self.push(node, |_, value| graph.ty(value).clone());
        self.new.extend(old.into_iter().zip(new));
    }

    /// Joined tensors without those that PyTorch passes over: of shape `[0]`, such as caches of keys that begin empty, beside others. They
    /// count for the element type of the result, so the others are cast to it.
    fn join(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id];
        let (origin, part) = (Origin::of(node), node.part);
        let passed_over = |value: &ValueId| self.graph.ty(*value).shape.as_slice() == [0];
        let kept: Vec<ValueId> = node.operands().filter(|value| !passed_over(value)).collect();
        if kept.is_empty() || kept.len() == node.operands().count() {
            return self.copy(id);
        }
        let dtype = node.results().next().map(|result| self.graph.ty(result).dtype);
        let cast: Vec<Option<ValueId>> = kept
            .iter()
            .map(|value| {
                let value = self.in_part(self.new[value], part);
                match dtype.filter(|dtype| *dtype != self.out.ty(value).dtype) {
                    Some(dtype) => Some(Emitter::new(&mut self.out, origin).cast(value, dtype)),
                    None => Some(value),
                }
            })
            .collect();
        let copy = self.out.nodes.next_id();
        self.copy(id);
        self.out.nodes[copy].args[0] = Arg::Values(cast);
    }

    /// Appends a node with results of its own, of the types of those that it had.
    fn push(&mut self, mut node: Node, ty: impl Fn(&Graph, ValueId) -> TensorType) -> Vec<ValueId> {
        let id = self.out.nodes.next_id();
        let mut new: Vec<ValueId> = Vec::new();
        let mut renew = |old: &mut ValueId| {
            let def = ValueDef::Result(id, new.len() as u32);
            let ty = ty(&self.out, *old);
            *old = self.out.values.push(ir::Value { ty, def });
            new.push(*old);
        };
        for returned in &mut node.returns {
            match returned {
                Return::None => {}
                Return::Value(value) => renew(value),
                Return::Values(values) => values.iter_mut().for_each(&mut renew),
            }
        }
        self.out.nodes.push(node);
        self.out.order.push(id);
        new
    }

    /// Whether a transposition undoes another one; if so, the operand of that one is used in place of its result.
    fn turned_back(&mut self, id: NodeId) -> bool {
        let Some(operand) = self.operand(id, 0) else { return false };
        let ValueDef::Result(before, _) = self.out.values[operand].def else { return false };
        if aten::row(self.out.op_name(before)).is_none_or(|row| row.strides != Strides::Reversed) {
            return false;
        }
        let original = self.out.nodes[before].operands().next();
        original.inspect(|original| self.bind(id, 0, *original)).is_some()
    }

    /// Whether a tensor that is filled in the shape of a computed one was written as a constant.
    fn constant(&mut self, id: NodeId, fill: Fill) -> bool {
        let fill = match fill {
            Fill::Nothing => None,
            Fill::Number(number) => Some(Arg::Int(number)),
            Fill::Argument(arg) => Some(self.graph.nodes[id].args[arg].clone()),
        };
        let of = self.graph.nodes[id].operands().next();
        let is_computed = of.is_some_and(|of| matches!(self.graph.values[of].def, ValueDef::Result(..)));
        if !is_computed {
            return false;
        }
        let ty = self.graph.ty(self.graph.nodes[id].results().next().expect("one result")).clone();
        let constant = self.emitter(id).filled(&ty, fill);
        self.bind(id, 0, constant);
        true
    }

    /// Elements of its own in place of a view that has others than memory.
    fn own(&mut self, id: NodeId, name: &str) {
        let Some(operand) = self.operand(id, 0) else { return self.copy(id) };
        let made = self.emitter(id).unary(name, operand);
        self.bind(id, 0, made);
    }

    /// The operand itself, which is no such view where an operation made it.
    fn nothing(&mut self, id: NodeId) {
        match self.operand(id, 0) {
            Some(operand) if matches!(self.out.values[operand].def, ValueDef::Result(..)) => {
                self.bind(id, 0, operand);
            }
            _ => self.copy(id),
        }
    }

    /// What remains of each element of the first dimension, and of these, so that shards of the first dimension are reduced where they are.
    fn in_two(&mut self, id: NodeId, schema: &str) {
        let result = self.graph.nodes[id].results().next().map(|value| self.graph.ty(value).dtype);
        let operand = self.operand(id, 0).filter(|operand| {
            let ty = self.out.ty(*operand);
            ty.rank() > 1 && ty.elements() > 0 && Some(ty.dtype) == result
        });
        let Some(operand) = operand else { return self.copy(id) };
        let mut out = self.emitter(id);
        let (schema, ty) = (format!("aten::{schema} -> Tensor"), out.ty(operand));
        let mut reduced = |value, dims: std::ops::Range<i64>, shape: &[i64]| {
            let ty = TensorType { device: ty.device, ..TensorType::contiguous(ty.dtype, shape) };
            out.op(&schema, vec![Arg::Value(value), Arg::Ints(dims.collect()), Arg::Bool(false)], ty)
        };
        let rows = reduced(operand, 1..ty.rank() as i64, &ty.shape[..1]);
        let made = reduced(rows, 0..1, &[]);
        self.bind(id, 0, made);
    }

    /// The mask that the kernel draws for a tensor without values in this shape and order, and `x * mask / (1 - p)`, which is what it computes.
    fn dropout(&mut self, id: NodeId) {
        let (p, schema) = (self.number(id, 1), &self.graph.ops[self.graph.nodes[id].op].schema);
        let (Some(x), true) = (self.operand(id, 0), p < 1.0) else { return self.copy(id) };
        let [Return::Value(result), Return::Value(mask)] = &self.graph.nodes[id].returns[..] else {
            return self.copy(id);
        };
        let [result, mask] = [result, mask].map(|value| self.graph.ty(*value).clone());
        let (mut args, schema) = (self.args(id), format!("aten::native_dropout{schema}"));
        let ty: TensorType = self.out.ty(x).clone();
        let mut out = self.emitter(id);
        args[0] = Arg::Value(out.filled(&ty, None));
        let (_, mask) = out.pair(&schema, args, result, mask);
        let args = vec![Arg::Value(x), Arg::Value(mask), Arg::Float(1.0 / (1.0 - p))];
        let product = out.op(DROPPED, args, ty);
        self.bind(id, 0, product);
        self.bind(id, 1, mask);
    }

    /// The mean is the sum over the total weight: both sums may be partial, the mean may not.
    fn nll_loss(&mut self, id: NodeId) {
        let mut args = self.args(id);
        args[3] = Arg::Int(SUM);
        let types: Vec<TensorType> =
            self.graph.nodes[id].results().map(|value| self.graph.ty(value).clone()).collect();
        let schema = self.signature(id);
        let targets = self.operand(id, 1).filter(|_| args[2] == Arg::None);
        let ignored = args[4].clone();
        let mut out = self.emitter(id);
        let (sum, weight) = out.pair(&schema, args, types[0].clone(), types[1].clone());
        let weight = match (targets, ignored) {
            (Some(targets), Arg::Int(ignored)) => out.count(targets, ignored, types[1].dtype),
            _ => weight,
        };
        let mean = out.binary("div.Tensor", sum, weight);
        self.bind(id, 0, mean);
        self.bind(id, 1, weight);
    }

    fn nll_loss_backward(&mut self, id: NodeId) {
        let mut args = self.args(id);
        let ty = self.graph.ty(self.graph.nodes[id].results().next().expect("one result")).clone();
        let schema = self.signature(id);
        let (Some(gradient), Some(weight)) = (self.operand(id, 0), self.operand(id, 6)) else {
            return self.copy(id);
        };
        let mut out = self.emitter(id);
        let share = out.binary("div.Tensor", gradient, weight);
        args[0] = Arg::Value(share);
        args[4] = Arg::Int(SUM);
        let result = out.op(&schema, args, ty);
        self.bind(id, 0, result);
    }
}

impl Emitter<'_> {
    /// Writes an operation with two results.
    fn pair(
        &mut self,
        schema: &str,
        args: Vec<Arg>,
        first: TensorType,
        second: TensorType,
    ) -> (ValueId, ValueId) {
        let node = self.graph.push(schema, args, vec![first.into(), second.into()]);
        let origin = self.origin;
        let node = &mut self.graph.nodes[node];
        (node.place, node.module, node.part, node.label) =
            (origin.place, origin.module, origin.part, origin.label);
        node.stage = origin.stage;
        let mut results = node.results();
        (results.next().expect("two results"), results.next().expect("two results"))
    }

    /// How many elements are not `ignored`, as a number of type `dtype`.
    fn count(&mut self, targets: ValueId, ignored: i64, dtype: Dtype) -> ValueId {
        let counted = self.compare("ne", targets, ignored);
        let ones = self.cast(counted, dtype);
        let dims: Vec<usize> = (0..self.graph.ty(targets).rank()).collect();
        self.reduce("sum", ones, &dims, false)
    }

    /// A constant with the elements of `ty` in the order in which they lie in memory; not initialised where there is no `fill`.
    fn filled(&mut self, ty: &TensorType, fill: Option<Arg>) -> ValueId {
        let order = ir::memory_order(&ty.strides);
        let shape: Vec<i64> = order.iter().map(|dim| ty.shape[*dim]).collect();
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(position, dim)| back[*dim] = position);
        let made = TensorType { device: ty.device, ..TensorType::contiguous(ty.dtype, &shape[..]) };
        let options = [Arg::Dtype(ty.dtype), Arg::None, Arg::Device(ty.device), Arg::None];
        let constant = match fill {
            Some(fill) => self.op(FULL, [vec![Arg::Ints(shape), fill], options.to_vec()].concat(), made),
            None => {
                self.op(EMPTY, [vec![Arg::Ints(shape)], options.to_vec(), vec![Arg::None]].concat(), made)
            }
        };
        self.permute(constant, &back)
    }
}
