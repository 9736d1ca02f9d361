//! Writing nodes into the graph of a rank.

use ir::{Arg, Dims, Dtype, Graph, LabelId, ModuleId, Node, PartId, PlaceId, TensorType, ValueDef, ValueId};

use crate::{
    layout::reshaped,
    local::{filled_strides, filled_type},
};

/// The schema of a tensor filled with a number.
pub const FULL: &str = "aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";

/// The schema of a tensor whose elements may be anything.
pub const EMPTY: &str = "aten::empty.memory_format(SymInt[] size, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None) -> Tensor";

/// The schema of complex numbers of their real and imaginary parts.
pub const VIEW_AS_COMPLEX: &str = "aten::view_as_complex(Tensor(a) self) -> Tensor(a)";

/// The numbers of dimensions of images and volumes, which PyTorch may take for ones with channels last and keep so.
const IMAGES: std::ops::RangeInclusive<usize> = 4..=5;

/// Where new nodes come from.
#[derive(Clone, Copy, Default)]
pub struct Origin {
    /// Place in the user's code.
    pub place: Option<PlaceId>,
    /// Module.
    pub module: Option<ModuleId>,
    /// Part of the program.
    pub part: PartId,
    /// What caused them.
    pub label: Option<LabelId>,
    /// The pipeline stage that they run on.
    pub stage: Option<u32>,
}

impl Origin {
    /// That of a node.
    pub const fn of(node: &Node) -> Self {
        Self { place: node.place, module: node.module, part: node.part, label: node.label, stage: node.stage }
    }
}

/// Which nodes the first rank's graph has where that depends on the sizes of shards. Other ranks, whose shards may be smaller, have the same
/// nodes, so that all graphs are alike.
#[derive(Default)]
pub struct Script {
    decisions: Vec<bool>,
    /// The decision that comes next; none while decisions are written down.
    next: Option<usize>,
}

impl Script {
    /// The same decisions, for a graph that follows them.
    pub fn followed(self) -> Self {
        Self { next: Some(0), ..self }
    }

    fn decide(&mut self, own: bool) -> bool {
        match &mut self.next {
            None => {
                self.decisions.push(own);
                own
            }
            Some(next) => {
                *next += 1;
                self.decisions.get(*next - 1).copied().unwrap_or(own)
            }
        }
    }
}

/// Writes nodes, all of one origin, at the end of a graph.
pub struct Emitter<'a> {
    /// The graph.
    pub graph: &'a mut Graph,
    /// The origin of what is written.
    pub origin: Origin,
    /// What the graphs of all ranks have in common; none for a graph of which there is one.
    pub script: Option<&'a mut Script>,
}

impl<'a> Emitter<'a> {
    /// One for a graph of which there is one.
    pub const fn new(graph: &'a mut Graph, origin: Origin) -> Self {
        Self { graph, origin, script: None }
    }

    /// Whether to do something that depends on sizes: on the first rank what `own` says, on the others what was done on the first.
    pub fn decide(&mut self, own: bool) -> bool {
        self.script.as_mut().map_or(own, |script| script.decide(own))
    }

    /// Whether a value is another one in another shape.
    pub fn is_view(&self, value: ValueId) -> bool {
        let ValueDef::Result(node, _) = self.graph.values[value].def else { return false };
        aten::is_view(self.graph, node)
    }

    /// Writes an operation with one result.
    pub fn op(&mut self, schema: &str, args: Vec<Arg>, ty: TensorType) -> ValueId {
        let node = self.graph.nodes.next_id();
        let value = self.graph.push_value(schema, args, ty);
        let node = &mut self.graph.nodes[node];
        node.place = self.origin.place;
        node.module = self.origin.module;
        node.part = self.origin.part;
        node.label = self.origin.label;
        node.stage = self.origin.stage;
        value
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> TensorType {
        self.graph.ty(value).clone()
    }

    fn contiguous(&self, like: ValueId, shape: &[i64]) -> TensorType {
        let ty = self.graph.ty(like);
        TensorType { device: ty.device, ..TensorType::contiguous(ty.dtype, Dims::from_slice(shape)) }
    }

    /// A view of a contiguous value in another shape.
    pub fn view(&mut self, value: ValueId, shape: &[i64]) -> ValueId {
        let is_there = self.graph.ty(value).shape.as_slice() == shape;
        if self.decide(is_there) {
            debug_assert!(is_there, "a view on this rank only");
            return value;
        }
        let ty = self.contiguous(value, shape);
        self.op(
            "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
            vec![Arg::Value(value), Arg::Ints(shape.to_vec())],
            ty,
        )
    }

    /// The same value with the strides that a view gives dimensions of size 1. Permutations and collectives leave others there, and where a
    /// dimension repeats, these decide in which order results lie in memory.
    pub fn with_usual_strides(&mut self, value: ValueId) -> ValueId {
        let ty = self.ty(value);
        let usual = reshaped(&ty, &ty.shape).unwrap_or_else(|| ty.strides.clone());
        if !self.decide(usual != ty.strides) {
            return value;
        }
        self.op(
            "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)",
            vec![Arg::Value(value), Arg::Ints(ty.shape.to_vec())],
            TensorType { strides: usual, ..ty },
        )
    }

    /// Reorders dimensions: result dimension `i` is dimension `order[i]`.
    pub fn permute(&mut self, value: ValueId, order: &[usize]) -> ValueId {
        if self.decide(order.iter().copied().eq(0..order.len())) {
            debug_assert!(order.iter().copied().eq(0..order.len()), "a permutation on this rank only");
            return value;
        }
        let old = self.ty(value);
        let ty = TensorType {
            shape: order.iter().map(|dim| old.shape[*dim]).collect(),
            strides: order.iter().map(|dim| old.strides[*dim]).collect(),
            ..old
        };
        let dims = order.iter().map(|dim| *dim as i64).collect();
        self.op(
            "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)",
            vec![Arg::Value(value), Arg::Ints(dims)],
            ty,
        )
    }

    /// The same value in row-major order, copied if it is not.
    pub fn in_order(&mut self, value: ValueId) -> ValueId {
        let is_contiguous = self.graph.ty(value).is_contiguous();
        if self.decide(is_contiguous) {
            debug_assert!(is_contiguous, "a copy on this rank only: {}", self.graph.ty(value));
            return value;
        }
        self.copied(value)
    }

    /// A copy of the value in row-major order.
    fn copied(&mut self, value: ValueId) -> ValueId {
        let shape = self.graph.ty(value).shape.clone();
        let ty = self.contiguous(value, &shape);
        let format = Arg::MemoryFormat("contiguous".into());
        self.op(
            "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor",
            vec![Arg::Value(value), format],
            ty,
        )
    }

    /// The same value in row-major order, copied if it is not, or would not be on another rank, which has one of `sizes` along a dimension.
    pub fn in_order_everywhere(&mut self, value: ValueId, dim: usize, sizes: &[i64]) -> ValueId {
        let ty = self.ty(value);
        let is_contiguous = |size: &i64| {
            let mut other = ty.clone();
            other.shape[dim] = *size;
            other.is_contiguous()
        };
        if sizes.iter().all(is_contiguous) { value } else { self.copied(value) }
    }

    /// The real and imaginary parts of a contiguous complex value, in a last dimension.
    pub fn real_pairs(&mut self, value: ValueId) -> ValueId {
        let ty = self.ty(value);
        let resolved =
            self.op("aten::resolve_conj(Tensor(a) self) -> Tensor(a)", vec![Arg::Value(value)], ty.clone());
        let schema = "aten::view_as_real(Tensor(a) self) -> Tensor(a)";
        self.op(schema, vec![Arg::Value(resolved)], ty.real_pairs())
    }

    /// The same value copied so that its dimensions lie in memory in this order, outermost first.
    pub fn laid_out(&mut self, value: ValueId, order: &[usize]) -> ValueId {
        let turned = self.permute(value, order);
        let copied = self.in_order(turned);
        self.permute(copied, &ir::inverse(order))
    }

    /// The same value with the strides of a new tensor whose dimensions lie in memory in this order: along dimensions of one element too.
    pub fn laid_out_anew(&mut self, value: ValueId, order: &[usize]) -> ValueId {
        let turned = self.permute(value, order);
        let mut ordered = self.in_order(turned);
        if ordered == turned {
            let shape = self.graph.ty(turned).shape.clone();
            let row = self.view(turned, &[shape.iter().product()]);
            ordered = self.view(row, &shape);
        }
        self.permute(ordered, &ir::inverse(order))
    }

    /// A copy of the value whose dimensions lie in memory in this order.
    pub fn copied_in(&mut self, value: ValueId, order: &[usize]) -> ValueId {
        let turned = self.permute(value, order);
        let copied = self.copied(turned);
        self.permute(copied, &ir::inverse(order))
    }

    /// Elements `start..end` of a dimension.
    pub fn slice(&mut self, value: ValueId, dim: usize, start: i64, end: i64) -> ValueId {
        let mut ty = self.ty(value);
        ty.shape[dim] = end - start;
        let args = vec![Arg::Value(value), Arg::Int(dim as i64), Arg::Int(start), Arg::Int(end), Arg::Int(1)];
        self.op(
            "aten::slice.Tensor(Tensor(a) self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1) -> Tensor(a)",
            args,
            ty,
        )
    }

    /// The value with a dimension of size 1 more, at `dim`.
    pub fn unsqueezed(&mut self, value: ValueId, dim: usize) -> ValueId {
        let mut ty = self.ty(value);
        let stride = ty.shape.get(dim).map_or(1, |size| size * ty.strides[dim]);
        ty.shape.insert(dim, 1);
        ty.strides.insert(dim, stride);
        let args = vec![Arg::Value(value), Arg::Int(dim as i64)];
        self.op("aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)", args, ty)
    }

    /// Values of one shape one after the other along a new first dimension, in row-major order.
    pub fn stacked(&mut self, values: &[ValueId]) -> ValueId {
        let mut shape = self.ty(values[0]).shape;
        shape.insert(0, values.len() as i64);
        let ty = self.contiguous(values[0], &shape);
        let values = values.iter().copied().map(Some).collect();
        let args = vec![Arg::Values(values), Arg::Int(0)];
        self.op("aten::stack(Tensor[] tensors, int dim=0) -> Tensor", args, ty)
    }

    /// Two values of one shape one after the other along a dimension, in row-major order.
    pub fn joined(&mut self, first: ValueId, second: ValueId, dim: usize) -> ValueId {
        let (first, second) = (self.in_order(first), self.in_order(second));
        let mut shape = self.ty(first).shape;
        shape[dim] *= 2;
        let ty = self.contiguous(first, &shape);
        let args = vec![Arg::Values(vec![Some(first), Some(second)]), Arg::Int(dim as i64)];
        self.op("aten::cat(Tensor[] tensors, int dim=0) -> Tensor", args, ty)
    }

    /// `start + weight * (end - start)`; the weight is broadcast.
    pub fn lerp(&mut self, start: ValueId, end: ValueId, weight: ValueId) -> ValueId {
        let ty = self.graph.ty(start);
        let strides = filled_strides(&[ty, self.graph.ty(end), self.graph.ty(weight)], &ty.shape);
        let ty = TensorType { strides, ..ty.clone() };
        let args = [start, end, weight].map(Arg::Value).to_vec();
        self.op("aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", args, ty)
    }

    /// One element of a dimension, which is removed.
    pub fn select(&mut self, value: ValueId, dim: usize, index: i64) -> ValueId {
        let mut ty = self.ty(value);
        ty.shape.remove(dim);
        ty.strides.remove(dim);
        let args = vec![Arg::Value(value), Arg::Int(dim as i64), Arg::Int(index)];
        self.op("aten::select.int(Tensor(a) self, int dim, SymInt index) -> Tensor(a)", args, ty)
    }

    /// The value where `kept`, else zeros.
    pub fn kept_or_zeros(&mut self, value: ValueId, kept: bool) -> ValueId {
        self.kept_or(value, kept, Arg::Int(0))
    }

    /// The value where `kept`, else `number` everywhere. The nodes are the same either way, so that the graphs of all ranks are alike.
    pub fn kept_or(&mut self, value: ValueId, kept: bool, number: Arg) -> ValueId {
        let device = self.ty(value).device;
        let mask = TensorType { dtype: Dtype::Bool, shape: Dims::new(), strides: Dims::new(), device };
        let args = vec![
            Arg::Ints(Vec::new()),
            Arg::Bool(!kept),
            Arg::Dtype(Dtype::Bool),
            Arg::None,
            Arg::Device(device),
            Arg::None,
        ];
        let mask = self.op(FULL, args, mask);
        self.masked_fill(value, mask, number)
    }

    /// The value with `before` and `after` zeros around it along a dimension.
    pub fn pad(&mut self, value: ValueId, dim: usize, before: i64, after: i64) -> ValueId {
        let value = self.in_order(value);
        self.widened(value, dim, &[(before, after)])
    }

    /// The value with zeros before and behind it along dimensions from `first` on, in row-major order. Where nothing may be missing it has to
    /// be in that order already.
    pub fn widened(&mut self, value: ValueId, first: usize, around: &[(i64, i64)]) -> ValueId {
        let mut value = value;
        let mut ty = self.ty(value);
        let mut wide = ty.clone();
        while IMAGES.contains(&wide.rank()) {
            let last = Arg::Int(wide.rank() as i64);
            wide.shape.push(1);
            wide.strides.push(1);
            let schema = "aten::unsqueeze(Tensor(a) self, int dim) -> Tensor(a)";
            value = self.op(schema, vec![Arg::Value(value), last], wide.clone());
        }
        let mut pads = vec![0; 2 * (wide.rank() - first - around.len())];
        for (number, (before, after)) in around.iter().enumerate().rev() {
            pads.extend([*before, *after]);
            wide.shape[first + number] += before + after;
            ty.shape[first + number] += before + after;
        }
        let wide = TensorType { strides: ir::contiguous_strides(&wide.shape), ..wide };
        let args = vec![Arg::Value(value), Arg::Ints(pads), Arg::Int(0)];
        let schema = "aten::constant_pad_nd(Tensor self, SymInt[] pad, Scalar value=0) -> Tensor";
        let padded = self.op(schema, args, wide);
        self.view(padded, &ty.shape)
    }

    /// An operation on each element of a tensor that keeps their type.
    pub fn unary(&mut self, name: &str, value: ValueId) -> ValueId {
        let ty = filled_type(self.graph.ty(value));
        self.op(&format!("aten::{name}(Tensor self) -> Tensor"), vec![Arg::Value(value)], ty)
    }

    /// The type of an operation on each element of two tensors that broadcast, in the element type of `a`.
    fn broadcast_type(&self, a: ValueId, b: ValueId) -> TensorType {
        let (a, b) = (self.graph.ty(a), self.graph.ty(b));
        let shape = broadcast(&a.shape, &b.shape);
        TensorType { dtype: a.dtype, strides: filled_strides(&[a, b], &shape), shape, device: a.device }
    }

    /// `a op b` for two tensors that broadcast; `name` is `mul`, `div`, `maximum`, ... and the result has the type of `a` in the
    /// broadcast shape.
    pub fn binary(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.broadcast_type(a, b);
        self.op(
            &format!("aten::{name}(Tensor self, Tensor other) -> Tensor"),
            vec![Arg::Value(a), Arg::Value(b)],
            ty,
        )
    }

    /// `a + alpha * b`, or `a - alpha * b` for `name` "sub".
    pub fn sum(&mut self, name: &str, a: ValueId, b: ValueId) -> ValueId {
        let ty = self.broadcast_type(a, b);
        let schema = format!("aten::{name}.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor");
        self.op(&schema, vec![Arg::Value(a), Arg::Value(b), Arg::Int(1)], ty)
    }

    /// A tensor times a number.
    pub fn scaled(&mut self, value: ValueId, factor: f64) -> ValueId {
        let ty = filled_type(self.graph.ty(value));
        let args = vec![Arg::Value(value), Arg::Float(factor)];
        self.op("aten::mul.Scalar(Tensor self, Scalar other) -> Tensor", args, ty)
    }

    /// A tensor plus a number.
    pub fn shifted(&mut self, value: ValueId, addend: Arg) -> ValueId {
        let ty = filled_type(self.graph.ty(value));
        let args = vec![Arg::Value(value), addend, Arg::Int(1)];
        self.op("aten::add.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", args, ty)
    }

    /// The sum (or another reduction with the same arguments, such as "mean") over dimensions.
    pub fn reduce(&mut self, name: &str, value: ValueId, dims: &[usize], keep: bool) -> ValueId {
        let shape = reduced(&self.graph.ty(value).shape, dims, keep);
        let ty = self.contiguous(value, &shape);
        let dims = Arg::Ints(dims.iter().map(|dim| *dim as i64).collect());
        let name = if name == "sum" { "sum.dim_IntList" } else { "mean.dim" };
        let schema = format!(
            "aten::{name}(Tensor self, int[1]? dim, bool keepdim=False, *, ScalarType? dtype=None) -> Tensor"
        );
        self.op(&schema, vec![Arg::Value(value), dims, Arg::Bool(keep), Arg::None], ty)
    }

    /// The largest element along a dimension, which is kept with size 1.
    pub fn amax(&mut self, value: ValueId, dim: usize) -> ValueId {
        let shape = reduced(&self.graph.ty(value).shape, &[dim], true);
        let ty = self.contiguous(value, &shape);
        let args = vec![Arg::Value(value), Arg::Ints(vec![dim as i64]), Arg::Bool(true)];
        self.op("aten::amax(Tensor self, int[1] dim=[], bool keepdim=False) -> Tensor", args, ty)
    }

    /// A comparison with a number.
    pub fn compare(&mut self, name: &str, value: ValueId, number: i64) -> ValueId {
        let ty = TensorType { dtype: Dtype::Bool, ..filled_type(self.graph.ty(value)) };
        let args = vec![Arg::Value(value), Arg::Int(number)];
        self.op(&format!("aten::{name}.Scalar(Tensor self, Scalar other) -> Tensor"), args, ty)
    }

    /// `one` where `mask` is true, else `other`, which has the same type.
    pub fn chosen(&mut self, mask: ValueId, one: ValueId, other: ValueId) -> ValueId {
        let ty = filled_type(self.graph.ty(other));
        let args = vec![Arg::Value(mask), Arg::Value(one), Arg::Value(other)];
        self.op("aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor", args, ty)
    }

    /// The value as another element type.
    pub fn cast(&mut self, value: ValueId, dtype: Dtype) -> ValueId {
        let ty = TensorType { dtype, ..filled_type(self.graph.ty(value)) };
        let schema = "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor";
        let none = || Arg::None;
        let args =
            vec![Arg::Value(value), Arg::Dtype(dtype), none(), none(), none(), Arg::Bool(false), none()];
        self.op(schema, args, ty)
    }

    /// `value` with `number` where `mask` is true.
    pub fn masked_fill(&mut self, value: ValueId, mask: ValueId, number: Arg) -> ValueId {
        let shape = broadcast(&self.graph.ty(value).shape, &self.graph.ty(mask).shape);
        let ty = self.contiguous(value, &shape);
        let args = vec![Arg::Value(value), Arg::Value(mask), number];
        self.op("aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor", args, ty)
    }
}

/// The shape that two shapes broadcast to.
pub fn broadcast(a: &[i64], b: &[i64]) -> Dims {
    let rank = a.len().max(b.len());
    let size = |shape: &[i64], dim: usize| (dim + shape.len()).checked_sub(rank).map_or(1, |dim| shape[dim]);
    // A dimension of size 0 stays one.
    (0..rank).map(|dim| if size(a, dim) == 1 { size(b, dim) } else { size(a, dim) }).collect()
}

fn reduced(shape: &[i64], dims: &[usize], keep: bool) -> Dims {
    let kept = |(dim, size): (usize, &i64)| match dims.contains(&dim) {
        true if keep => Some(1),
        true => None,
        false => Some(*size),
    };
    shape.iter().enumerate().filter_map(kept).collect()
}
