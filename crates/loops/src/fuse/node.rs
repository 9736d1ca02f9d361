//! One operation of a graph on its way into a kernel.

use aten::Formula;
use ir::{Arg, DeviceKind, Dtype, Graph, Node, NodeId, Return, Schema, TensorType, ValueId};
use rustc_hash::FxHashMap;

use super::{
    convex::Positions,
    eager::{self, Rounding},
    formula::{self, FILLED, JOINED, Made},
    frame::{Dims, Frame, PIECES},
    views::{Cut, View, cut, cut_of},
};
use crate::{Access, Builder, Element, Kernel, Value};

/// The most points of a row whose positions are told apart in `f32`.
const LONGEST_COUNTED: i64 = 1 << 24;

/// The element type of a kernel's operand.
fn element(dtype: Dtype, kind: DeviceKind) -> Option<Element> {
    match dtype {
        Dtype::F32 => Some(Element::F32),
        Dtype::Bf16 => Some(Element::Bf16),
        // Machine code of processors has no instructions for it here.
        Dtype::F16 if !kind.is_cpu() => Some(Element::F16),
        Dtype::Bool => Some(Element::Bool),
        Dtype::I64 => Some(Element::I64),
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

/// The formula of an operation that can be part of a kernel, or why it cannot.
pub(super) fn lowerable(positions: &Positions<'_>, id: NodeId) -> Result<Formula, String> {
    let graph = positions.graph;
    let formula = aten::row(graph.op_name(id)).and_then(|row| row.formula).ok_or("no formula")?;
    let node = &graph.nodes[id];
    let formula = match positions.rounding {
        Rounding::AtStores => formula,
        Rounding::AsEager => eager::formula(graph, id, formula)?,
    };
    if node.operands().chain(node.results()).any(|value| positions.sizes.has(value)) {
        return Err("a size of run time".into());
    }
    let domain = domain_of(graph, id, formula).ok_or("no result")?;
    let frame = Frame::of(&[domain], &cuts(graph, id, formula)).ok_or("another shape")?;
    KernelMaker::new(positions, frame).node(id, formula).map(|()| formula)
}

/// Where an operation cuts rows that it joins or fills.
pub(super) fn cuts(graph: &Graph, id: NodeId, formula: Formula) -> Vec<i64> {
    let node = &graph.nodes[id];
    let row = |value: ValueId| graph.ty(value).shape.last().copied().unwrap_or(1);
    match formula.text {
        JOINED => node.operands().map(row).filter(|size| *size > 0).collect(),
        FILLED => {
            let cut = node.results().next().and_then(|made| cut_of(graph, node, made));
            cut.map_or(Vec::new(), |cut| vec![cut.start, cut.size])
        }
        _ => Vec::new(),
    }
}

/// What a kernel has of a tensor of the graph.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Known {
    /// Its elements by point, or by row: one value, or one for each piece.
    values: Vec<Value>,
    /// How it lies in the domain.
    dims: Dims,
    /// What the kernel does not have at once.
    is_sum: bool,
    /// Whether an operation of the kernel makes it, or it is a view of such.
    is_made: bool,
}

/// Puts operations into a kernel.
pub(super) struct KernelMaker<'a> {
    pub(super) builder: Builder,
    graph: &'a Graph,
    positions: &'a Positions<'a>,
    frame: Frame,
    known: FxHashMap<ValueId, Known>,
    /// Tensors that the kernel reads, in the order of its operands.
    reads: Vec<ValueId>,
}

impl<'a> KernelMaker<'a> {
    pub(super) fn new(positions: &'a Positions<'a>, frame: Frame) -> Self {
        let (builder, known, reads) = (Builder::default(), FxHashMap::default(), Vec::new());
        Self { builder, graph: positions.graph, positions, frame, known, reads }
    }

    /// Adds an operation; fails with the reason.
    pub(super) fn node(&mut self, id: NodeId, formula: Formula) -> Result<(), String> {
        let node = &self.graph.nodes[id];
        let schema = Schema::parse(&self.graph.ops[node.op].schema).ok_or("no schema")?;
        let own = domain_of(self.graph, id, formula).ok_or("no result")?;
        let dims = self.dims_of(node, own)?;
        let pieces = self.frame.pieces(own, &dims);
        match formula.text {
            JOINED => return self.joined(node, &schema, own, dims),
            FILLED => return self.filled(node, &schema, own, dims),
            _ => {}
        }
        let results = results(node)?;
        let mut made: Vec<Vec<Made>> = Vec::new();
        for piece in 0..pieces as usize {
            let mut body =
                Body { node, schema: schema.clone(), own, dims: &dims, piece, pieces, maker: self };
            made.push(formula::results(formula.text, &mut body)?);
        }
        if made.iter().any(|made| made.len() != results.len()) {
            return Err("several results".to_owned());
        }
        // A cast that is asked for rounds; what lies between operations of one kernel does so only as in eager code.
        let rounds = self.positions.rounding == Rounding::AsEager
            || aten::row(self.graph.op_name(id)).is_some_and(|row| row.copies);
        for (position, result) in results.into_iter().enumerate() {
            if let Some(result) = result {
                let made: Vec<Made> = made.iter().map(|made| made[position]).collect();
                self.result(result, &made, own, &dims, rounds)?;
            }
        }
        Ok(())
    }

    /// How the domain of an operation lies in the kernel's: as what it takes of the kernel does, and otherwise in order.
    fn dims_of(&mut self, node: &Node, own: &[i64]) -> Result<Dims, String> {
        let mut found: Vec<Option<Vec<usize>>> = vec![None; own.len()];
        for value in node.operands() {
            let Some(known) = self.look(value) else { continue };
            let shape = &self.graph.ty(value).shape;
            let Some(ahead) = own.len().checked_sub(shape.len()) else { continue };
            for (dim, lies) in known.dims.iter().enumerate().filter(|(_, lies)| !lies.is_empty()) {
                let of = &mut found[ahead + dim];
                if shape[dim] == own[ahead + dim] && of.as_ref().is_none_or(|of| of == lies) {
                    *of = Some(lies.clone());
                } else if shape[dim] == own[ahead + dim] {
                    return Err("operands in another order".to_owned());
                }
            }
        }
        let in_order = self.frame.in_order(own);
        let dims = found.into_iter().enumerate().map(|(dim, found)| {
            found.or_else(|| {
                in_order.as_ref().map(|dims| dims[dim].clone()).or((own[dim] == 1).then(Vec::new))
            })
        });
        let dims: Dims = dims.collect::<Option<_>>().ok_or("another shape")?;
        if self.frame.is_whole(&dims) { Ok(dims) } else { Err("another shape".to_owned()) }
    }

    fn result(
        &mut self,
        result: ValueId,
        made: &[Made],
        own: &[i64],
        dims: &Dims,
        rounds: bool,
    ) -> Result<(), String> {
        let ty = self.graph.ty(result);
        let element = written(ty, self.positions.kind)?;
        let (last, outer) = own.split_last().map_or((1, own), |(last, outer)| (*last, outer));
        let row = dims.last().cloned().unwrap_or_default();
        let is_sum = matches!(made.first(), Some(Made::OfRows(_)));
        let mut values: Vec<Value> =
            made.iter().map(|(Made::Value(value) | Made::OfRows(value))| *value).collect();
        let lies = if is_sum {
            if ty.elements() == 1 {
                (values.len() == 1).then(|| vec![Vec::new(); ty.rank()])
            } else {
                let is_row = ty.shape.last() == Some(&last) && ty.elements() as i64 == last;
                let is_whole = values.len() == 1 || row.first() == Some(&PIECES);
                (is_row && is_whole).then(|| {
                    let mut lies = vec![Vec::new(); ty.rank()];
                    lies[ty.rank() - 1] = row;
                    lies
                })
            }
        } else if *ty.shape == *own {
            Some(dims.clone())
        } else if ty.shape.split_last() == Some((&1, outer)) {
            let mut lies = dims.clone();
            lies.last_mut().into_iter().for_each(Vec::clear);
            Some(lies)
        } else {
            (*ty.shape == *outer).then(|| dims[..outer.len()].to_vec())
        };
        let dims = lies.ok_or("a result of another shape")?;
        if rounds {
            for value in &mut values {
                *value = self.builder.rounded(element, *value);
            }
        }
        self.known.insert(result, Known { values, dims, is_sum, is_made: true });
        Ok(())
    }

    /// The pieces of several tensors side by side.
    fn joined(&mut self, node: &Node, schema: &Schema<'_>, own: &[i64], dims: Dims) -> Result<(), String> {
        let result = node.results().next().ok_or("no result")?;
        let rank = own.len() as i64;
        let along = schema.parameters.iter().zip(&node.args).find(|(parameter, _)| parameter.name == "dim");
        let Some((_, Arg::Int(dim))) = along else { return Err("dimensions that are not known".to_owned()) };
        let dim = (if *dim < 0 { dim + rank } else { *dim }) as usize;
        let mut values = Vec::new();
        for value in node.operands() {
            let shape = &self.graph.ty(value).shape;
            if shape.contains(&0) {
                continue;
            }
            if shape.len() != own.len() || dims[dim].first() != Some(&PIECES) && shape[dim] != own[dim] {
                return Err("joined along another dimension than the last".to_owned());
            }
            let mut lies = dims.clone();
            if lies[dim].first() == Some(&PIECES) {
                let cut = Cut { dim, start: 0, size: shape[dim] };
                lies = self.frame.cut(own, &dims, cut).ok_or("joined where no piece ends")?.0;
            }
            values.extend(self.values(value, shape, &lies)?);
        }
        if values.len() != self.frame.pieces(own, &dims) as usize {
            return Err("joined where no piece ends".to_owned());
        }
        self.made(result, values, dims)
    }

    /// A tensor as some pieces, and 0 as all others.
    fn filled(&mut self, node: &Node, schema: &Schema<'_>, own: &[i64], dims: Dims) -> Result<(), String> {
        let result = node.results().next().ok_or("no result")?;
        let from = node.operands().next().ok_or("no operand")?;
        let cut = cut(schema, node, own).ok_or("a step between elements")?;
        let (lies, pieces) = self.frame.cut(own, &dims, cut).ok_or("filled where no piece ends")?;
        let zero = self.builder.constant(0.0);
        let mut values = vec![zero; self.frame.pieces(own, &dims) as usize];
        let given = self.values(from, &self.graph.ty(from).shape, &lies)?;
        if given.len() != pieces.len() {
            return Err("filled where no piece ends".to_owned());
        }
        values[pieces].copy_from_slice(&given);
        self.made(result, values, dims)
    }

    fn made(&mut self, result: ValueId, values: Vec<Value>, dims: Dims) -> Result<(), String> {
        written(self.graph.ty(result), self.positions.kind)?;
        self.known.insert(result, Known { values, dims, is_sum: false, is_made: true });
        Ok(())
    }

    /// What the kernel has of a tensor, perhaps as a view of another.
    fn look(&mut self, value: ValueId) -> Option<Known> {
        if let Some(known) = self.known.get(&value) {
            return Some(known.clone());
        }
        let View { of, cut } = self.positions.view(value)?;
        let from = self.look(of)?;
        let (source, ty) = (self.graph.ty(of), self.graph.ty(value));
        let found = if let Some(cut) = cut {
            let (dims, pieces) = self.frame.cut(&source.shape, &from.dims, cut)?;
            let one = from.values.len() == 1;
            let values = if one { from.values.clone() } else { from.values[pieces].to_vec() };
            Known { values, dims, ..from }
        } else {
            let source = (&source.shape[..], &source.strides[..], &from.dims);
            Known { dims: self.frame.viewed(source, (&ty.shape, &ty.strides))?, ..from }
        };
        self.known.insert(value, found.clone());
        Some(found)
    }

    /// The values of a tensor in an operation over `own`, whose dimensions lie as `dims` says: one, or one for each piece.
    fn values(&mut self, value: ValueId, own: &[i64], dims: &Dims) -> Result<Vec<Value>, String> {
        let ty = self.graph.ty(value);
        let element = supported(ty, self.positions.kind)?;
        let shape = &ty.shape;
        let ahead =
            own.len().checked_sub(shape.len()).ok_or("a tensor that is not broadcast to the result")?;
        if shape.iter().zip(&own[ahead..]).any(|(size, own)| size != own && *size != 1) {
            return Err("a tensor that is not broadcast to the result".to_owned());
        }
        if let Some(known) = self.look(value) {
            if known.is_sum {
                return Err("a sum that is needed at once".to_owned());
            }
            let fits =
                known.dims.iter().zip(&dims[ahead..]).all(|(lies, own)| lies.is_empty() || lies == own);
            if fits {
                return Ok(known.values);
            }
        }
        if self.is_made(value) {
            return Err("operands in another order".to_owned());
        }
        let lies = &dims[ahead..].to_vec();
        let (strides, between) = self.frame.strides(lies, &ty.strides, |dim| shape[dim] != 1);
        if element == Element::I64 && strides.last() != Some(&0) {
            return Err(format!("a tensor of {}", ty.dtype));
        }
        let own: Dims = lies
            .iter()
            .zip(shape)
            .map(|(lies, size)| if *size == 1 { Vec::new() } else { lies.clone() })
            .collect();
        let pieces = self.frame.pieces(shape, &own);
        let between = u32::try_from(between).ok().filter(|_| pieces > 1 || between == 0);
        let between = between.ok_or("pieces that lie too far apart")?;
        let operand = self.builder.operand(Access::Read, element, strides);
        self.reads.push(value);
        let values: Vec<Value> =
            (0..pieces as u32).map(|piece| self.builder.load_behind(operand, piece * between)).collect();
        self.known.insert(value, Known { values: values.clone(), dims: own, is_sum: false, is_made: false });
        Ok(values)
    }

    /// Whether an operation of the kernel makes a tensor, or what it is a view of.
    fn is_made(&self, value: ValueId) -> bool {
        let is_made = |value| self.known.get(&value).is_some_and(|known| known.is_made);
        is_made(value) || self.positions.viewed(value).any(|view| is_made(view.of))
    }

    /// Writes the result of an operation that has been added; fails with the reason.
    pub(super) fn write(&mut self, value: ValueId) -> Result<(), String> {
        let ty = self.graph.ty(value);
        let element = supported(ty, self.positions.kind)?;
        let Known { values, dims, is_sum, .. } = self.known[&value].clone();
        let (strides, between) = self.frame.strides(&dims, &ty.strides, |dim| ty.shape[dim] != 1);
        let between = u32::try_from(between).map_err(|_| "pieces that lie too far apart")?;
        let operand =
            self.builder.operand(if is_sum { Access::Add } else { Access::Write }, element, strides);
        let pieces = self.frame.pieces(&ty.shape, &dims) as usize;
        for piece in 0..pieces {
            // What is the same for all pieces has one value.
            let value = *values.get(piece).or(values.first()).ok_or("no value")?;
            self.builder.store_behind(operand, piece as u32 * between, value);
        }
        Ok(())
    }

    /// The kernel of what has been added and written.
    pub(super) fn finish(self) -> (Kernel, Vec<ValueId>) {
        (self.builder.finish(self.frame.sizes), self.reads)
    }
}

/// The element type of a tensor on a kind of device.
fn supported(ty: &TensorType, kind: DeviceKind) -> Result<Element, String> {
    if ty.device.kind != kind {
        return Err(format!("a tensor on {}", ty.device));
    }
    element(ty.dtype, kind).ok_or_else(|| format!("a tensor of {}", ty.dtype))
}

/// The element type of a result.
fn written(ty: &TensorType, kind: DeviceKind) -> Result<Element, String> {
    let element = supported(ty, kind)?;
    if element.is_written() { Ok(element) } else { Err(format!("a result of {}", ty.dtype)) }
}

/// One operation while it is added to a kernel: its arguments by their names, and what values are made with.
pub(super) struct Body<'a, 'b> {
    node: &'b Node,
    schema: Schema<'b>,
    /// The shape that it runs over.
    own: &'b [i64],
    dims: &'b Dims,
    /// Which piece is computed.
    piece: usize,
    pieces: i64,
    pub(super) maker: &'b mut KernelMaker<'a>,
}

impl<'b> Body<'_, 'b> {
    fn arg(&self, name: &str) -> Result<&'b Arg, String> {
        let position = self.schema.parameters.iter().position(|parameter| parameter.name == name);
        position.map(|position| &self.node.args[position]).ok_or_else(|| format!("no argument `{name}`"))
    }

    /// An argument that is a tensor or a number.
    pub(super) fn argument(&mut self, name: &str) -> Result<Value, String> {
        if let Arg::Value(value) = self.arg(name)? {
            return self.tensor(*value);
        }
        let number = self.scalar(name)?;
        Ok(self.maker.builder.constant(number as f32))
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

    /// The type of the first result.
    fn dtype(&self) -> Option<Dtype> {
        self.node.results().next().map(|result| self.maker.graph.ty(result).dtype)
    }

    /// A value in the type of the first result.
    pub(super) fn rounded(&mut self, value: Value) -> Value {
        let element = self.dtype().and_then(|dtype| element(dtype, self.maker.positions.kind));
        element.map_or(value, |element| self.maker.builder.rounded(element, value))
    }

    /// The same where kernels round as eager code does.
    pub(super) fn rounded_as_eager(&mut self, value: Value) -> Value {
        if self.maker.positions.rounding == Rounding::AsEager { self.rounded(value) } else { value }
    }

    /// An argument that is a factor, which in 16 bits changes no more than the sign.
    pub(super) fn factor(&mut self, name: &str) -> Result<Value, String> {
        let number = self.scalar(name)?;
        if self.dtype() != Some(Dtype::F32) && ![1.0, -1.0].contains(&number) {
            return Err(format!("the factor {number}, which PyTorch rounds in two ways"));
        }
        Ok(self.maker.builder.constant(number as f32))
    }

    /// Whether a power may be computed by products and roots.
    pub(super) fn raises_as_eager(&self, exponent: f64) -> bool {
        self.maker.positions.rounding == Rounding::AtStores
            || self.dtype().is_some_and(|dtype| eager::raises(exponent, dtype))
    }

    /// An argument that is a string.
    pub(super) fn text(&self, name: &str) -> Result<&'b str, String> {
        match self.arg(name)? {
            Arg::Str(text) => Ok(text),
            _ => Err(format!("`{name}` is no string")),
        }
    }

    fn tensor(&mut self, value: ValueId) -> Result<Value, String> {
        let values = self.maker.values(value, self.own, self.dims)?;
        self.piece_of(&values)
    }

    fn piece_of(&self, values: &[Value]) -> Result<Value, String> {
        match values.len() {
            1 => Ok(values[0]),
            count if count == self.pieces as usize => Ok(values[self.piece]),
            _ => Err("pieces of another size".to_owned()),
        }
    }

    /// An argument without the last dimension: it has one number for each row.
    pub(super) fn of_row(&mut self, name: &str) -> Result<Value, String> {
        let (Arg::Value(value), outer) = (self.arg(name)?, self.own.len().saturating_sub(1)) else {
            return Err(format!("`{name}` is no tensor"));
        };
        let dims = self.dims[..outer].to_vec();
        let values = self.maker.values(*value, &self.own[..outer], &dims)?;
        self.piece_of(&values)
    }

    /// The position in a row. It is a number that is exact.
    pub(super) fn column(&mut self) -> Result<Value, String> {
        self.must_have_rows()?;
        if self.row_length() > LONGEST_COUNTED {
            return Err("rows that are too long".to_owned());
        }
        Ok(self.maker.builder.column())
    }

    /// An argument that is a whole number.
    pub(super) fn integer(&self, name: &str) -> Result<i64, String> {
        match self.arg(name)? {
            Arg::Int(number) => Ok(*number),
            _ => Err(format!("`{name}` is no whole number")),
        }
    }

    /// Fails unless a row of the operation is one of the kernel, in one piece.
    fn must_have_rows(&self) -> Result<(), String> {
        let frame = &self.maker.frame;
        let is_row = self.dims.last().is_some_and(|dim| *dim == [frame.row()]);
        if is_row || frame.unit() == 1 { Ok(()) } else { Err("another shape".to_owned()) }
    }

    /// Whether an argument is there.
    pub(super) fn is_given(&self, name: &str) -> Result<bool, String> {
        Ok(!matches!(self.arg(name)?, Arg::None))
    }

    /// How many points a row has.
    pub(super) fn row_length(&self) -> i64 {
        self.own.last().copied().unwrap_or(1)
    }

    /// Fails unless an argument names the last dimension: by its number, or as the only size of a norm.
    pub(super) fn must_be_the_row(&self, name: &str) -> Result<(), String> {
        let is_row = match self.arg(name)? {
            Arg::Ints(sizes) if name == "normalized_shape" => sizes.len() == 1,
            _ => self.reduced_dims(Some(name))? == (true, false),
        };
        if is_row { self.must_have_rows() } else { Err("other dimensions than the last".to_owned()) }
    }

    /// Whether an argument with dimensions has that of the row, and whether it has all others. Fails where it has some of them.
    pub(super) fn reduced_dims(&self, name: Option<&str>) -> Result<(bool, bool), String> {
        let rank = self.own.len() as i64;
        let dims = match name.map(|name| self.arg(name)).transpose()? {
            Some(Arg::Int(dim)) => vec![*dim],
            Some(Arg::Ints(dims)) => dims.clone(),
            Some(Arg::None) | None => Vec::new(),
            Some(_) => return Err("dimensions that are not known".to_owned()),
        };
        let has = |dim: i64| dims.is_empty() || dims.contains(&dim) || dims.contains(&(dim - rank));
        let (row, others) = (rank > 0 && has(rank - 1), (0..rank - 1).filter(|dim| has(*dim)).count() as i64);
        if row {
            self.must_have_rows()?;
        }
        // Rows are added up of what has a number for each of their points.
        if others > 0 && !self.maker.frame.has_row(self.dims) {
            return Err("another shape".to_owned());
        }
        match others {
            0 if row => Ok((true, false)),
            others if others > 0 && others == rank - 1 => Ok((row, true)),
            _ => Err("other dimensions than the last".to_owned()),
        }
    }

    /// How many elements go into a number: of a row, of each column, or all.
    pub(super) fn elements_of(&self, row: bool, rows: bool) -> i64 {
        let (last, others) =
            self.own.split_last().map_or((1, 1), |(last, others)| (*last, others.iter().product()));
        (if row { last } else { 1 }) * (if rows { others } else { 1 })
    }
}
