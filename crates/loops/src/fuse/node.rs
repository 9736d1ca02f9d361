//! One operation of a graph on its way into a kernel.

use aten::Formula;
use ir::{Arg, Dtype, Graph, Node, NodeId, Return, Schema, TensorType, ValueId};
use rustc_hash::FxHashMap;

use super::formula::{self, Made};
use crate::{Access, Builder, Element, Kernel, Unary, Value};

/// The element type of a kernel's operand.
fn element(dtype: Dtype) -> Option<Element> {
    match dtype {
        Dtype::F32 => Some(Element::F32),
        Dtype::Bf16 => Some(Element::Bf16),
        _ => None,
    }
}

/// The tensors that an operation makes; fails for lists of them.
fn results(node: &Node) -> Result<Vec<Option<ValueId>>, String> {
    let result = |made: &Return| match made {
        Return::Value(value) => Ok(Some(*value)),
        Return::None => Ok(None),
        Return::Values(_) => Err("a list of results".to_owned()),
    };
    node.returns.iter().map(result).collect()
}

/// The shape of the domain that an operation with a formula runs over: that of its result, or of what it reduces.
pub(super) fn domain_of(graph: &Graph, id: NodeId, formula: Formula) -> Option<&[i64]> {
    let node = &graph.nodes[id];
    let value =
        if formula::reduces(formula.text) { node.operands().next()? } else { node.results().next()? };
    Some(&graph.ty(value).shape)
}

/// The shape of one number for each row of a domain.
pub(super) fn rows_of(domain: &[i64]) -> Vec<i64> {
    let mut rows = domain.to_vec();
    rows.iter_mut().last().into_iter().for_each(|last| *last = 1);
    rows
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
    let domain = domain_of(graph, id, formula).ok_or("no result")?;
    KernelMaker::new(graph, domain).node(id, formula).map(|()| formula)
}

/// What a kernel has of a tensor of the graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// Its elements by point or by row; operations of the kernel may take it.
    Value(Value),
    /// One number for each row, without a dimension for the row.
    OfRow(Value),
    /// What becomes it when it is summed over all rows.
    Summed(Value),
}

/// Puts operations into a kernel.
pub(super) struct KernelMaker<'a> {
    builder: Builder,
    graph: &'a Graph,
    domain: &'a [i64],
    values: FxHashMap<ValueId, Known>,
    /// Tensors that the kernel reads, in the order of its operands.
    pub(super) reads: Vec<ValueId>,
}

impl<'a> KernelMaker<'a> {
    pub(super) fn new(graph: &'a Graph, domain: &'a [i64]) -> Self {
        Self { builder: Builder::default(), graph, domain, values: FxHashMap::default(), reads: Vec::new() }
    }

    /// Adds an operation; fails with the reason.
    pub(super) fn node(&mut self, id: NodeId, formula: Formula) -> Result<(), String> {
        let node = &self.graph.nodes[id];
        let schema = Schema::parse(&self.graph.ops[node.op].schema).ok_or("no schema")?;
        let own = domain_of(self.graph, id, formula).ok_or("no result")?;
        let of_rows = own != self.domain;
        if of_rows && (own != rows_of(self.domain) || formula::reduces(formula.text)) {
            return Err("another shape".to_owned());
        }
        let mut body = Body {
            node,
            schema,
            domain: own,
            of_rows,
            graph: self.graph,
            builder: &mut self.builder,
            values: &mut self.values,
            reads: &mut self.reads,
        };
        let made = formula::results(formula.text, &mut body)?;
        let results = results(node)?;
        if results.len() != made.len() {
            return Err("several results".to_owned());
        }
        // A cast that is asked for rounds; what lies between operations of one kernel does not.
        let casts = aten::row(self.graph.op_name(id)).is_some_and(|row| row.copies);
        for (result, made) in results.into_iter().zip(made) {
            if let Some(result) = result {
                self.result(result, made, casts)?;
            }
        }
        Ok(())
    }

    fn result(&mut self, result: ValueId, made: Made, casts: bool) -> Result<(), String> {
        let ty = self.graph.ty(result);
        let element = supported(ty)?;
        let last = self.domain.last().copied();
        let known = match made {
            Made::OfRows(value)
                if ty.elements() == 1
                    || ty.shape.last().copied() == last && Some(ty.elements() as i64) == last =>
            {
                Known::Summed(value)
            }
            Made::Value(mut value) if *ty.shape == *self.domain || *ty.shape == *rows_of(self.domain) => {
                if casts && element == Element::Bf16 {
                    value = self.builder.unary(Unary::RoundBf16, value);
                }
                Known::Value(value)
            }
            Made::Value(value) if Some(&*ty.shape) == self.domain.split_last().map(|(_, rows)| rows) => {
                Known::OfRow(value)
            }
            _ => return Err("a result of another shape".to_owned()),
        };
        self.values.insert(result, known);
        Ok(())
    }

    /// Writes the result of an operation that has been added.
    pub(super) fn write(&mut self, value: ValueId) {
        let ty = self.graph.ty(value);
        let element = element(ty.dtype).expect("results are of types that kernels write");
        let mut strides = ty.strides.to_vec();
        let (access, made) = match self.values[&value] {
            Known::Value(made) => {
                if *ty.shape != *self.domain {
                    strides.iter_mut().last().into_iter().for_each(|last| *last = 0);
                }
                (Access::Write, made)
            }
            Known::OfRow(made) => {
                strides.push(0);
                (Access::Write, made)
            }
            Known::Summed(made) => {
                let last = if ty.elements() == 1 { 0 } else { strides.last().copied().unwrap_or(0) };
                strides = vec![0; self.domain.len().saturating_sub(1)];
                strides.push(last);
                (Access::Add, made)
            }
        };
        let operand = self.builder.operand(access, element, strides);
        self.builder.store(operand, made);
    }

    /// The kernel of what has been added and written.
    pub(super) fn finish(self) -> (Kernel, Vec<ValueId>) {
        (self.builder.finish(self.domain.to_vec()), self.reads)
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
    /// Whether the last dimension of the domain stands for a row of the kernel's.
    of_rows: bool,
    graph: &'a Graph,
    pub(super) builder: &'a mut Builder,
    values: &'a mut FxHashMap<ValueId, Known>,
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
        let ty = self.graph.ty(value);
        let element = supported(ty)?;
        let mut strides =
            strides_in(ty, self.domain).ok_or("a tensor that is not broadcast to the result")?;
        match self.values.get(&value) {
            Some(Known::Value(known)) => return Ok(*known),
            Some(_) => return Err("a sum that is needed at once".to_owned()),
            None => {}
        }
        if self.of_rows {
            strides.iter_mut().last().into_iter().for_each(|last| *last = 0);
        }
        let operand = self.builder.operand(Access::Read, element, strides);
        self.reads.push(value);
        let loaded = self.builder.load(operand);
        self.values.insert(value, Known::Value(loaded));
        Ok(loaded)
    }

    /// Whether an argument is there.
    pub(super) fn is_given(&self, name: &str) -> Result<bool, String> {
        Ok(!matches!(self.arg(name)?, Arg::None))
    }

    /// How many points a row has.
    pub(super) fn row_length(&self) -> i64 {
        self.domain.last().copied().unwrap_or(1)
    }

    /// Fails unless an argument names the last dimension: by its number, or as the only size of a norm.
    pub(super) fn must_be_the_row(&self, name: &str) -> Result<(), String> {
        let is_row = match self.arg(name)? {
            Arg::Ints(sizes) if name == "normalized_shape" => sizes.len() == 1,
            _ => self.reduced_dims(Some(name))? == (true, false),
        };
        if is_row { Ok(()) } else { Err("other dimensions than the last".to_owned()) }
    }

    /// Whether an argument with dimensions has that of the row, and whether it has all others. Fails where it has some of them.
    pub(super) fn reduced_dims(&self, name: Option<&str>) -> Result<(bool, bool), String> {
        let rank = self.domain.len() as i64;
        let dims = match name.map(|name| self.arg(name)).transpose()? {
            Some(Arg::Int(dim)) => vec![*dim],
            Some(Arg::Ints(dims)) => dims.clone(),
            Some(Arg::None) | None => Vec::new(),
            Some(_) => return Err("dimensions that are not known".to_owned()),
        };
        let has = |dim: i64| dims.is_empty() || dims.contains(&dim) || dims.contains(&(dim - rank));
        let (row, others) = (rank > 0 && has(rank - 1), (0..rank - 1).filter(|dim| has(*dim)).count() as i64);
        match others {
            0 if row => Ok((true, false)),
            others if others > 0 && others == rank - 1 => Ok((row, true)),
            _ => Err("other dimensions than the last".to_owned()),
        }
    }

    /// How many elements go into a number: of a row, of each column, or all.
    pub(super) fn elements_of(&self, row: bool, rows: bool) -> i64 {
        let (last, others) =
            self.domain.split_last().map_or((1, 1), |(last, others)| (*last, others.iter().product()));
        (if row { last } else { 1 }) * (if rows { others } else { 1 })
    }
}
