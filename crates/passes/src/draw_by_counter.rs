//! Random operations become draws at positions: what is drawn follows from a key, the number of the operation and the place of an element in
//! the global tensor, so that each rank can draw its own part.
//!
//! What says where an element is are tensors, one of positions along each dimension. They are sharded as all tensors are, and so whatever is done
//! with a dimension (shards of unequal sizes, blocks, two axes, micro-batches) is done with its positions.
//!
//! Where checkpointing runs a draw again in backward, a captured step copies what was drawn in forward: there it is drawn again, and not held.

use aten::{Draw, Parameter};
use base::{Code, Diagnostic, Result};
use ir::{Arg, Dims, Dtype, Graph, InputClass, NodeId, PartKind, Patch, Return, TensorType, ValueId};
use rustc_hash::FxHashMap;

use crate::{Pass, dropout::Dropout, facts::Facts, layout::Layout};

/// The name of the input that is the key: the seed, and the number of the step.
pub const KEY: &str = "rng.key";

const AT: &str = "unisono::random_at(Tensor key, Tensor[] index, int[] shape, int number, str distribution, float a, float b, int digits, ScalarType dtype) -> Tensor";
const ARANGE: &str = "aten::arange(Scalar end, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";
const SORT: &str =
    "aten::sort(Tensor self, int dim=-1, bool descending=False) -> (Tensor values, Tensor indices)";

/// How many numbers a word tells apart.
const WORDS: i64 = 1 << 32;

/// The same graph with an input for the key, which comes last.
pub fn with_key(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let device = graph.inputs.values().next().map(|input| graph.ty(input.value).device);
    let mut ty = TensorType::contiguous(Dtype::I64, Dims::from_slice(&[2]));
    ty.device = device.unwrap_or(ty.device);
    graph.input(InputClass::Hyper, KEY, ty);
    graph
}

/// Lets random operations draw by a counter. Refuses those that cannot.
pub struct DrawByCounter;

impl Pass for DrawByCounter {
    fn name(&self) -> &'static str {
        "draw_by_counter"
    }

    fn run<'g>(&self, graph: &'g Graph) -> Result<Patch<'g>> {
        let mut patch = Patch::new(graph);
        patch.label(self.name());
        let key = graph.inputs.values().find(|input| input.name == KEY).map(|input| input.value);
        let key = key.ok_or_else(|| Diagnostic::bug("a graph without a key is to draw by it"))?;
        let facts = Facts::new(graph);
        let draws = |id: &NodeId| facts.draws(&graph.nodes[*id]) && !Dropout::is_off(graph, *id);
        let random = graph.order.iter().copied().filter(draws);
        let copies = copies_in_backward(graph);
        for (number, id) in random.enumerate() {
            let number = number as i64;
            let mut draw = RandomOperation { graph, patch: &mut patch, key, id, at: id, number };
            draw.rewrite().ok_or_else(|| refusal(graph, id))?;
            patch.remove(id);
            for (copy, of) in copies.get(&id).into_iter().flatten() {
                let mut draw = RandomOperation { graph, patch: &mut patch, key, id, at: *copy, number };
                if let Some((drawn, again)) = draw.made().filter(|(drawn, _)| drawn == of) {
                    patch.replace_in(*copy, drawn, again);
                }
            }
        }
        Ok(patch)
    }
}

/// The operations of backward that copy a result of an operation of forward, by that operation, with the result.
fn copies_in_backward(graph: &Graph) -> FxHashMap<NodeId, Vec<(NodeId, ValueId)>> {
    let mut copies: FxHashMap<NodeId, Vec<(NodeId, ValueId)>> = FxHashMap::default();
    for id in graph.order.iter().filter(|id| graph.part_kind(**id) == PartKind::Backward) {
        let Some(row) = aten::row(graph.op_name(*id)) else { continue };
        let Some(copied) = row.copied.or(row.copies.then_some(0)) else { continue };
        let Some(Arg::Value(of)) = graph.nodes[*id].args.get(copied) else { continue };
        let is_same = graph.nodes[*id].results().all(|copy| graph.ty(copy).dtype == graph.ty(*of).dtype);
        let maker = graph.maker(*of).filter(|maker| graph.part_kind(*maker) == PartKind::Forward);
        if let Some(maker) = maker.filter(|_| is_same) {
            copies.entry(maker).or_default().push((*id, *of));
        }
    }
    copies
}

fn refusal(graph: &Graph, id: NodeId) -> Box<Diagnostic> {
    let what = format!("`{}` cannot draw by a counter", graph.op_name(id));
    let refused = Diagnostic::new(Code::NOT_BY_COUNTER, what)
        .because("which numbers it draws does not follow from the place of an element alone")
        .hint("use `rng=\"torch\"`, which draws as PyTorch does, replicated on every rank");
    match graph.place(id) {
        Some(place) => refused.at(place.clone()),
        None => refused,
    }
}

/// What a word becomes, as `random_at` has it: a distribution with its two parameters.
type Distribution = (&'static str, f64, f64);

/// One random operation.
struct RandomOperation<'a, 'g> {
    graph: &'g Graph,
    patch: &'a mut Patch<'g>,
    key: ValueId,
    id: NodeId,
    /// Where it is drawn: there, or where that is copied.
    at: NodeId,
    number: i64,
}

impl RandomOperation<'_, '_> {
    /// Replaces the results of the operation; none where it cannot draw by a counter.
    fn rewrite(&mut self) -> Option<()> {
        let (old, new) = self.made()?;
        match Dropout::of(self.graph, self.id) {
            Some(dropout) => dropout.replace(self.patch, new),
            None => self.patch.replace(old, new),
        }
        Some(())
    }

    /// What the operation draws, by the counter, with the result that it stands for: of a dropout, which may have none, its mask.
    fn made(&mut self) -> Option<(ValueId, ValueId)> {
        let draws = aten::row(self.graph.op_name(self.id))?.draws?;
        if draws == Draw::Dropout {
            return self.mask();
        }
        let (first, ty) = self.result(0)?;
        let new = match draws {
            Draw::From(name, [a, b]) => {
                let parameters = (self.parameter(a)?, self.parameter(b)?);
                self.drawn(&ty, (name, parameters.0, parameters.1))
            }
            Draw::Whole([low, high]) => self.whole(&ty, self.bound(low)?, self.bound(high)?)?,
            Draw::Below(arg) => self.less_than(&ty, self.value(arg)?),
            Draw::Normal => self.normal(&ty)?,
            Draw::LogNormal => {
                let normal = self.drawn(&ty, ("normal", self.float(1)?, self.float(2)?));
                self.push("aten::exp(Tensor self) -> Tensor", vec![Arg::Value(normal)], &ty)
            }
            Draw::Permutation => self.permutation(&ty)?,
            Draw::Dropout => return None,
        };
        Some((first, new))
    }

    /// Normal numbers with means and standard deviations of tensors.
    fn normal(&mut self, ty: &TensorType) -> Option<ValueId> {
        let spread = match (self.value(1), self.float(1)) {
            (Some(std), _) => {
                let unit = self.drawn(ty, ("normal", 0.0, 1.0));
                let args = vec![Arg::Value(unit), Arg::Value(std)];
                self.push("aten::mul.Tensor(Tensor self, Tensor other) -> Tensor", args, ty)
            }
            (None, std) => self.drawn(ty, ("normal", 0.0, std?)),
        };
        let (schema, mean) = match (self.value(0), self.float(0)) {
            (Some(mean), _) => {
                ("aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", Arg::Value(mean))
            }
            (None, mean) => {
                ("aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", Arg::Float(mean?))
            }
        };
        Some(self.push(schema, vec![Arg::Value(spread), mean, Arg::Int(1)], ty))
    }

    /// The mask of a dropout, with the result that it is, or the product where the step has no mask.
    fn mask(&mut self) -> Option<(ValueId, ValueId)> {
        let dropout = Dropout::of(self.graph, self.id)?;
        let (product, _) = self.result(0)?;
        let ty = match dropout.mask() {
            Some(mask) => self.graph.ty(mask).clone(),
            None => TensorType { dtype: Dtype::Bool, ..self.graph.ty(dropout.x).clone() },
        };
        let kept = self.drawn(&ty, ("bernoulli", dropout.kept(), 0.0));
        Some((dropout.mask().unwrap_or(product), kept))
    }

    /// The order of random numbers. Two of 2^32 are rarely equal.
    fn permutation(&mut self, ty: &TensorType) -> Option<ValueId> {
        let wide = TensorType { dtype: Dtype::I64, ..ty.clone() };
        let numbers = self.whole(&wide, 0, WORDS)?;
        let args = vec![Arg::Value(numbers), Arg::Int(-1), Arg::Bool(false)];
        let node = self.patch.push(self.at, SORT, args, vec![wide.clone().into(), wide.into()]);
        let order = self.patch.node(node).results().nth(1)?;
        Some(self.cast(order, ty.dtype))
    }

    /// 1 with the probabilities of a tensor, else 0.
    fn less_than(&mut self, ty: &TensorType, probabilities: ValueId) -> ValueId {
        let numbers = self.drawn(&TensorType { dtype: Dtype::F32, ..ty.clone() }, ("uniform", 0.0, 1.0));
        let truth = TensorType { dtype: Dtype::Bool, ..ty.clone() };
        let args = vec![Arg::Value(numbers), Arg::Value(probabilities)];
        let less = self.push("aten::lt.Tensor(Tensor self, Tensor other) -> Tensor", args, &truth);
        self.cast(less, ty.dtype)
    }

    fn whole(&mut self, ty: &TensorType, low: i64, high: i64) -> Option<ValueId> {
        // A larger number would not pass as a parameter.
        let exact = |bound: i64| bound.unsigned_abs() <= 1 << 53;
        let fits = exact(low) && exact(high) && (1..=WORDS).contains(&high.checked_sub(low)?);
        fits.then(|| self.drawn(ty, ("integers", low as f64, high as f64)))
    }

    /// What is drawn as a tensor of `ty`. Positions are those in its memory, row by row.
    fn drawn(&mut self, ty: &TensorType, (name, a, b): Distribution) -> ValueId {
        let order = ir::memory_order(&ty.strides);
        let shape: Dims = order.iter().map(|dim| ty.shape[*dim]).collect();
        let of = |dtype, shape: &[i64]| TensorType {
            device: ty.device,
            ..TensorType::contiguous(dtype, Dims::from_slice(shape))
        };
        let positions = shape.iter().map(|size| {
            let options = [Arg::Dtype(Dtype::I64), Arg::None, Arg::Device(ty.device), Arg::None];
            let args = [vec![Arg::Int(*size)], options.to_vec()].concat();
            Some(self.patch.push_value(self.at, ARANGE, args, of(Dtype::I64, &[*size])))
        });
        let positions = positions.collect();
        let (dtype, digits) = drawn_type(ty.dtype, name == "integers");
        let args = vec![
            Arg::Value(self.key),
            Arg::Values(positions),
            Arg::Ints(shape.to_vec()),
            Arg::Int(self.number),
            Arg::Str(name.to_owned()),
            Arg::Float(a),
            Arg::Float(b),
            Arg::Int(digits),
            Arg::Dtype(dtype),
        ];
        let made = self.push(AT, args, &of(dtype, &shape));
        let made = self.cast(made, ty.dtype);
        Layout { patch: self.patch, source: self.at }.permute(made, &ir::inverse(&order))
    }

    fn cast(&mut self, value: ValueId, dtype: Dtype) -> ValueId {
        if self.patch.ty(value).dtype == dtype {
            return value;
        }
        Layout { patch: self.patch, source: self.at }.cast(value, dtype)
    }

    fn push(&mut self, op: &str, args: Vec<Arg>, ty: &TensorType) -> ValueId {
        self.patch.push_value(self.at, op, args, ty.clone())
    }

    fn result(&self, position: usize) -> Option<(ValueId, TensorType)> {
        match self.graph.nodes[self.id].returns.get(position)? {
            Return::Value(value) => Some((*value, self.graph.ty(*value).clone())),
            _ => None,
        }
    }

    fn value(&self, arg: usize) -> Option<ValueId> {
        match self.graph.nodes[self.id].args.get(arg)? {
            Arg::Value(value) => Some(*value),
            _ => None,
        }
    }

    fn float(&self, arg: usize) -> Option<f64> {
        match self.graph.nodes[self.id].args.get(arg)? {
            Arg::Float(number) => Some(*number),
            Arg::Int(number) => Some(*number as f64),
            _ => None,
        }
    }

    fn parameter(&self, parameter: Parameter) -> Option<f64> {
        match parameter {
            Parameter::Is(number) => Some(number as f64),
            Parameter::At(arg) => self.float(arg),
        }
    }

    fn bound(&self, parameter: Parameter) -> Option<i64> {
        match parameter {
            Parameter::Is(number) => Some(number),
            Parameter::At(arg) => match self.graph.nodes[self.id].args.get(arg)? {
                Arg::Int(number) => Some(*number),
                _ => None,
            },
        }
    }
}

/// The element type that is drawn for one, and how many bits a number between 0 and 1 has, so that none rounds to 1.
const fn drawn_type(dtype: Dtype, whole: bool) -> (Dtype, i64) {
    match dtype {
        Dtype::Bf16 => (Dtype::Bf16, 8),
        Dtype::F16 => (Dtype::F32, 11),
        Dtype::F32 | Dtype::F64 => (Dtype::F32, 24),
        _ if whole => (Dtype::I64, 24),
        _ => (Dtype::F32, 24),
    }
}
