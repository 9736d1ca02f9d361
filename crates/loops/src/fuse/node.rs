//! One operation of a graph on its way into a kernel.

use ir::{Arg, DeviceKind, Dtype, Graph, Node, NodeId, Return, TensorType, ValueId};
use rustc_hash::FxHashMap;

use super::lowerings::{Row, row};
use crate::{Access, Binary, Builder, Element, OperandId, Value};

/// The element type of a kernel's operand.
pub(super) fn element(dtype: Dtype) -> Option<Element> {
    match dtype {
        Dtype::F32 => Some(Element::F32),
        Dtype::Bf16 => Some(Element::Bf16),
        _ => None,
    }
}

/// The result of an operation that has one.
pub(super) fn result(node: &Node) -> Option<ValueId> {
    match node.returns.as_slice() {
        [Return::Value(value)] => Some(*value),
        _ => None,
    }
}

/// The strides of a tensor by dimension of a domain that it is broadcast to; none where it does not fit.
pub(super) fn strides_in(ty: &TensorType, domain: &[i64]) -> Option<Vec<i64>> {
    let ahead = domain.len().checked_sub(ty.rank())?;
    let dims = (0..domain.len()).map(|dim| {
        let Some(own) = dim.checked_sub(ahead) else { return Some(0) };
        match ty.shape[own] {
            size if size == domain[dim] => Some(ty.strides[own]),
            1 => Some(0),
            _ => None,
        }
    });
    dims.collect()
}

/// The row of an operation that can be part of a kernel, or why it cannot.
pub(super) fn lowerable(graph: &Graph, id: NodeId) -> Result<&'static Row, String> {
    let row = row(graph.op_name(id)).ok_or("no lowering")?;
    let mut builder = Builder::default();
    let mut kernel = KernelMaker::new(&mut builder, graph);
    kernel.node(id, row).map(|()| row)
}

/// Puts operations into a kernel.
pub(super) struct KernelMaker<'a> {
    builder: &'a mut Builder,
    graph: &'a Graph,
    values: FxHashMap<ValueId, Value>,
    /// Tensors that the kernel reads, in the order of its operands.
    pub(super) reads: Vec<ValueId>,
}

impl<'a> KernelMaker<'a> {
    pub(super) fn new(builder: &'a mut Builder, graph: &'a Graph) -> Self {
        Self { builder, graph, values: FxHashMap::default(), reads: Vec::new() }
    }

    /// Adds an operation; fails with the reason.
    pub(super) fn node(&mut self, id: NodeId, row: &Row) -> Result<(), String> {
        let node = &self.graph.nodes[id];
        let result = result(node).ok_or("several results")?;
        supported(self.graph.ty(result))?;
        let value = (row.lower)(&mut Body {
            node,
            result,
            builder: self.builder,
            kernel: Operands { graph: self.graph, values: &mut self.values, reads: &mut self.reads },
        })?;
        self.values.insert(result, value);
        Ok(())
    }

    /// Writes the result of an operation that has been added.
    pub(super) fn write(&mut self, value: ValueId) {
        let ty = self.graph.ty(value);
        let element = element(ty.dtype).expect("results are of types that kernels write");
        let operand = self.builder.operand(Access::Write, element, ty.strides.to_vec());
        self.builder.store(operand, self.values[&value]);
    }
}

fn supported(ty: &TensorType) -> Result<Element, String> {
    if ty.device.kind != DeviceKind::Cpu {
        return Err(format!("a tensor on {}", ty.device));
    }
    element(ty.dtype).ok_or_else(|| format!("a tensor of {}", ty.dtype))
}

struct Operands<'a> {
    graph: &'a Graph,
    values: &'a mut FxHashMap<ValueId, Value>,
    reads: &'a mut Vec<ValueId>,
}

/// One operation while it is added to a kernel: its arguments as values, and what they are made with.
pub(super) struct Body<'a> {
    node: &'a Node,
    result: ValueId,
    pub(super) builder: &'a mut Builder,
    kernel: Operands<'a>,
}

impl Body<'_> {
    /// An argument as it stands.
    pub(super) fn arg(&self, position: usize) -> Option<&Arg> {
        self.node.args.get(position)
    }

    /// The type of the result.
    pub(super) fn result(&self) -> &TensorType {
        self.kernel.graph.ty(self.result)
    }

    /// An argument that is a tensor or a number.
    pub(super) fn number(&mut self, position: usize) -> Result<Value, String> {
        if let Arg::Value(value) = self.node.args[position] {
            return self.tensor(value);
        }
        let number = self.scalar(position)?;
        Ok(self.constant(number as f32))
    }

    /// An argument that is a number.
    pub(super) fn scalar(&self, position: usize) -> Result<f64, String> {
        match self.node.args[position] {
            Arg::Int(number) => Ok(number as f64),
            Arg::Float(number) => Ok(number),
            Arg::Bool(holds) => Ok(f64::from(u8::from(holds))),
            _ => Err(format!("argument {position} is no number")),
        }
    }

    fn tensor(&mut self, value: ValueId) -> Result<Value, String> {
        if let Some(known) = self.kernel.values.get(&value) {
            return Ok(*known);
        }
        let ty = self.kernel.graph.ty(value);
        let element = supported(ty)?;
        let domain = &self.kernel.graph.ty(self.result).shape;
        let strides = strides_in(ty, domain).ok_or("a tensor that is not broadcast to the result")?;
        let operand: OperandId = self.builder.operand(Access::Read, element, strides);
        self.kernel.reads.push(value);
        let loaded = self.builder.load(operand);
        self.kernel.values.insert(value, loaded);
        Ok(loaded)
    }

    /// A number.
    pub(super) fn constant(&mut self, number: f32) -> Value {
        self.builder.constant(number)
    }

    /// `a * b`
    pub(super) fn mul(&mut self, a: Value, b: Value) -> Value {
        self.builder.binary(Binary::Mul, a, b)
    }

    /// `a + b`
    pub(super) fn add(&mut self, a: Value, b: Value) -> Value {
        self.builder.binary(Binary::Add, a, b)
    }

    /// `1 - a`
    pub(super) fn one_less(&mut self, a: Value) -> Value {
        let one = self.constant(1.0);
        self.builder.binary(Binary::Sub, one, a)
    }
}
