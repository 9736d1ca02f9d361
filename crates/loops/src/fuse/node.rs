//! One operation of a graph on its way into a kernel.

use aten::Formula;
use ir::{Arg, Dtype, Graph, Node, NodeId, Return, Schema, TensorType, ValueId};
use rustc_hash::FxHashMap;

use super::formula;
use crate::{Access, Builder, Element, Unary, Value};

/// The element type of a kernel's operand.
fn element(dtype: Dtype) -> Option<Element> {
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
fn strides_in(ty: &TensorType, domain: &[i64]) -> Option<Vec<i64>> {
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

/// The formula of an operation that can be part of a kernel, or why it cannot.
pub(super) fn lowerable(graph: &Graph, id: NodeId) -> Result<Formula, String> {
    let formula = aten::row(graph.op_name(id)).and_then(|row| row.formula).ok_or("no formula")?;
    let mut builder = Builder::default();
    KernelMaker::new(&mut builder, graph).node(id, formula).map(|()| formula)
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
    pub(super) fn node(&mut self, id: NodeId, formula: Formula) -> Result<(), String> {
        let node = &self.graph.nodes[id];
        let result = result(node).ok_or("several results")?;
        let ty = self.graph.ty(result);
        let schema = Schema::parse(&self.graph.ops[node.op].schema).ok_or("no schema")?;
        let element = supported(ty)?;
        let mut body = Body {
            node,
            schema,
            domain: &ty.shape,
            graph: self.graph,
            builder: self.builder,
            values: &mut self.values,
            reads: &mut self.reads,
        };
        let mut value = formula::value(formula.text, &mut body)?;
        // A cast that is asked for rounds; what lies between operations of one kernel does not.
        let casts = aten::row(self.graph.op_name(id)).is_some_and(|row| row.copies);
        if casts && element == Element::Bf16 {
            value = self.builder.unary(Unary::RoundBf16, value);
        }
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
    if !ty.device.kind.is_cpu() {
        return Err(format!("a tensor on {}", ty.device));
    }
    element(ty.dtype).ok_or_else(|| format!("a tensor of {}", ty.dtype))
}

/// One operation while it is added to a kernel: its arguments by their names, and what values are made with.
pub(super) struct Body<'a> {
    node: &'a Node,
    schema: Schema<'a>,
    domain: &'a [i64],
    graph: &'a Graph,
    pub(super) builder: &'a mut Builder,
    values: &'a mut FxHashMap<ValueId, Value>,
    reads: &'a mut Vec<ValueId>,
}

impl<'a> Body<'a> {
    fn arg(&self, name: &str) -> Result<&'a Arg, String> {
        let position = self.schema.parameters.iter().position(|parameter| parameter.name == name);
        position.map(|position| &self.node.args[position]).ok_or_else(|| format!("no argument `{name}`"))
    }

    /// An argument that is a tensor or a number.
    pub(super) fn argument(&mut self, name: &str) -> Result<Value, String> {
        if let Arg::Value(value) = self.arg(name)? {
            return self.tensor(*value);
        }
        let number = self.scalar(name)?;
        Ok(self.builder.constant(number as f32))
    }

    /// An argument that is a number.
    pub(super) fn scalar(&self, name: &str) -> Result<f64, String> {
        match self.arg(name)? {
            Arg::Int(number) => Ok(*number as f64),
            Arg::Float(number) => Ok(*number),
            Arg::Bool(holds) => Ok(f64::from(u8::from(*holds))),
            _ => Err(format!("`{name}` is no number")),
        }
    }

    /// An argument that is a string.
    pub(super) fn text(&self, name: &str) -> Result<&'a str, String> {
        match self.arg(name)? {
            Arg::Str(text) => Ok(text),
            _ => Err(format!("`{name}` is no string")),
        }
    }

    fn tensor(&mut self, value: ValueId) -> Result<Value, String> {
        if let Some(known) = self.values.get(&value) {
            return Ok(*known);
        }
        let ty = self.graph.ty(value);
        let element = supported(ty)?;
        let strides = strides_in(ty, self.domain).ok_or("a tensor that is not broadcast to the result")?;
        let operand = self.builder.operand(Access::Read, element, strides);
        self.reads.push(value);
        let loaded = self.builder.load(operand);
        self.values.insert(value, loaded);
        Ok(loaded)
    }
}
