//! Nodes that flatten, concatenate and split tensors.

use ir::{Arg, Dims, Dtype, NodeId, Patch, ReturnType, TensorType, ValueId, contiguous_strides};

const FULL: &str = "aten::full(SymInt[] size, Scalar fill_value, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None) -> Tensor";
const VIEW: &str = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
const PERMUTE: &str = "aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)";
const CLONE: &str = "aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor";
const CAST: &str = "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor";
const CAT: &str = "aten::cat(Tensor[] tensors, int dim=0) -> Tensor";
const STACK: &str = "aten::stack(Tensor[] tensors, int dim=0) -> Tensor";
const SPLIT: &str =
    "aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]";

/// Adds layout nodes to a patch, all with one source.
pub struct Layout<'p, 'g> {
    /// The patch that they belong to.
    pub patch: &'p mut Patch<'g>,
    /// The node whose position, place, module and part they take.
    pub source: NodeId,
}

impl Layout<'_, '_> {
    /// A tensor of a number; of integers and truth values, of zeros.
    pub fn full(&mut self, ty: TensorType, number: f64) -> ValueId {
        let number = match ty.dtype {
            Dtype::Bool => Arg::Bool(false),
            dtype if dtype.is_floating() => Arg::Float(number),
            _ => Arg::Int(0),
        };
        let shape = Arg::Ints(ty.shape.iter().copied().collect());
        let args = vec![shape, number, Arg::Dtype(ty.dtype), Arg::None, Arg::Device(ty.device), Arg::None];
        self.patch.push_value(self.source, FULL, args, ty)
    }

    /// The source's operation on another tensor, beside its further arguments.
    pub fn again(&mut self, operand: ValueId, ty: TensorType) -> ValueId {
        let graph = self.patch.base();
        let node = &graph.nodes[self.source];
        let args = std::iter::once(Arg::Value(operand)).chain(node.args[1..].iter().cloned()).collect();
        self.patch.push_value(self.source, &graph.ops[node.op].to_string(), args, ty)
    }

    /// A contiguous tensor in another shape.
    pub fn view(&mut self, value: ValueId, shape: &[i64]) -> ValueId {
        let old = self.patch.ty(value);
        if *old.shape == *shape {
            return value;
        }
        let ty = TensorType { shape: shape.into(), strides: contiguous_strides(shape), ..old.clone() };
        self.patch.push_value(self.source, VIEW, vec![Arg::Value(value), Arg::Ints(shape.to_vec())], ty)
    }

    /// The tensor with its dimensions in another order: dimension `i` of the result is `dims[i]` of `value`.
    pub fn permute(&mut self, value: ValueId, dims: &[usize]) -> ValueId {
        if dims.iter().copied().eq(0..dims.len()) {
            return value;
        }
        let old = self.patch.ty(value);
        let pick = |of: &Dims| dims.iter().map(|dim| of[*dim]).collect();
        let ty = TensorType { shape: pick(&old.shape), strides: pick(&old.strides), ..old.clone() };
        let order = Arg::Ints(dims.iter().map(|dim| *dim as i64).collect());
        self.patch.push_value(self.source, PERMUTE, vec![Arg::Value(value), order], ty)
    }

    /// The tensor in row-major order, copied where it is not.
    pub fn contiguous(&mut self, value: ValueId) -> ValueId {
        if self.patch.ty(value).is_contiguous() { value } else { self.copied(value) }
    }

    /// A copy in row-major order.
    pub fn copied(&mut self, value: ValueId) -> ValueId {
        let old = self.patch.ty(value);
        let ty = TensorType { strides: contiguous_strides(&old.shape), ..old.clone() };
        let args = vec![Arg::Value(value), Arg::MemoryFormat("contiguous".into())];
        self.patch.push_value(self.source, CLONE, args, ty)
    }

    /// The tensor with elements of another type, in the same order in memory; in row-major order where elements do not lie side by side.
    pub fn cast(&mut self, value: ValueId, dtype: Dtype) -> ValueId {
        let old = self.patch.ty(value);
        let (format, strides) = if old.is_dense() {
            (Arg::None, old.strides.clone())
        } else {
            (Arg::MemoryFormat("contiguous".into()), contiguous_strides(&old.shape))
        };
        let ty = TensorType { dtype, strides, ..old.clone() };
        let settings = [Arg::Dtype(dtype), Arg::None, Arg::None, Arg::None, Arg::Bool(false), format];
        let args = std::iter::once(Arg::Value(value)).chain(settings).collect();
        self.patch.push_value(self.source, CAST, args, ty)
    }

    /// Tensors concatenated along `dim`; their other dimensions are equal.
    pub fn cat(&mut self, values: &[ValueId], dim: usize) -> ValueId {
        let mut shape = self.patch.ty(values[0]).shape.clone();
        shape[dim] = values.iter().map(|value| self.patch.ty(*value).shape[dim]).sum();
        let ty =
            TensorType { strides: contiguous_strides(&shape), shape, ..self.patch.ty(values[0]).clone() };
        let list = Arg::Values(values.iter().copied().map(Some).collect());
        self.patch.push_value(self.source, CAT, vec![list, Arg::Int(dim as i64)], ty)
    }

    /// Tensors of one shape stacked along a new dimension `dim`.
    pub fn stack(&mut self, values: &[ValueId], dim: usize) -> ValueId {
        let mut shape = self.patch.ty(values[0]).shape.clone();
        shape.insert(dim, values.len() as i64);
        let ty =
            TensorType { strides: contiguous_strides(&shape), shape, ..self.patch.ty(values[0]).clone() };
        let list = Arg::Values(values.iter().copied().map(Some).collect());
        self.patch.push_value(self.source, STACK, vec![list, Arg::Int(dim as i64)], ty)
    }

    /// The pieces of `value` along `dim`, as views.
    pub fn split(&mut self, value: ValueId, sizes: &[i64], dim: usize) -> Vec<ValueId> {
        let full = self.patch.ty(value).clone();
        let types = sizes.iter().map(|size| {
            let mut shard = full.clone();
            shard.shape[dim] = *size;
            shard
        });
        let types = ReturnType::Tensors(types.collect());
        let args = vec![Arg::Value(value), Arg::Ints(sizes.to_vec()), Arg::Int(dim as i64)];
        let node = self.patch.push(self.source, SPLIT, args, vec![types]);
        self.patch.node(node).results().collect()
    }
}

/// The dimensions of a tensor from the slowest to the fastest in memory, where it fills its memory without gaps or overlaps.
pub fn memory_order(ty: &TensorType) -> Option<Vec<usize>> {
    ty.is_dense().then(|| ir::memory_order(&ty.strides))
}
