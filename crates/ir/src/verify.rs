//! The verifier: the invariants of a graph, each checked where it can be named.
//!
//! It trusts nothing but Rust's types, so that it can stand behind every reader and after every pass.

use base::{Code, Diagnostic, PrimaryMap, Result, SecondaryMap};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Arg, Graph, Node, NodeId, Op, OpId, PartId, Return, Schema, SchemaType, TensorType, ValueDef, ValueId,
};

/// The most dimensions that a tensor has; PyTorch's own limit.
pub const MAX_DIMS: usize = 64;

/// Checks every invariant of `graph`:
/// - all ids are in range, and a value and its definition name each other;
/// - the parts of the program are contiguous ranges of its order, in theirs;
/// - operators have a name that occurs once and a schema; a node has the arguments and returns of its schema;
/// - types have as many strides as sizes, none negative, and a size in bytes that fits 63 bits;
/// - each node is at most once in `order`, and uses come after definitions;
/// - input names are unique; an input is updated at most once, by a value of its own type and shape;
/// - returned and updating values are inputs or are made by nodes in `order`.
///
/// Fails with [`Code::BAD_GRAPH`] at the node's place in the user's code.
pub fn verify(graph: &Graph) -> Result<()> {
    let schemas = operators(graph)?;
    let mut made = SecondaryMap::with_default(false);
    for (id, node) in graph.nodes.iter() {
        node_data(graph, &schemas, node)
            .and_then(|()| results(graph, id, &mut made))
            .map_err(|fault| at_node(graph, id, &fault))?;
    }
    values(graph, &made)?;
    inputs(graph)?;
    let defined = order(graph)?;
    ends(graph, &defined)
}

fn bad(fault: impl Into<String>) -> Box<Diagnostic> {
    Diagnostic::new(Code::BAD_GRAPH, fault)
}

/// A fault of node `id`, with whatever of it is in range.
fn at_node(graph: &Graph, id: NodeId, fault: &str) -> Box<Diagnostic> {
    let node = &graph.nodes[id];
    let name = graph.ops.get(node.op).map_or("an unknown operator", |op| &op.name);
    let diagnostic = bad(format!("{id} ({name}): {fault}"));
    match node.place.and_then(|place| graph.places.get(place)) {
        Some(place) => diagnostic.at(place.clone()),
        None => diagnostic,
    }
}

/// The schemas of all operators.
fn operators(graph: &Graph) -> Result<PrimaryMap<OpId, Schema<'_>>> {
    let mut names = FxHashSet::default();
    let mut schemas = PrimaryMap::with_capacity(graph.ops.len());
    for (id, op) in graph.ops.iter() {
        if !names.insert(op.name.as_str()) {
            return Err(bad(format!("{id}: the operator {} is in the table twice", op.name)));
        }
        schemas.push(operator(op).map_err(|fault| bad(format!("{id}: {fault}")))?);
    }
    Ok(schemas)
}

fn operator(op: &Op) -> Result<Schema<'_>, String> {
    let Op { name, schema, rule } = op;
    let letter = |c: char| c.is_ascii_alphanumeric() || "_:.".contains(c);
    if !name.contains("::") || !name.chars().all(letter) {
        return Err(format!("{name:?} is no operator's name, such as `aten::add.Tensor`"));
    }
    if schema.chars().any(char::is_control) || schema.trim() != schema {
        return Err(format!("the schema of {name} has line breaks or blanks around it"));
    }
    if rule.iter().flat_map(|rule| rule.chars()).any(|c| c == '"' || c.is_control()) {
        return Err(format!("the rule of {name} has quotes or line breaks"));
    }
    Schema::parse(schema).ok_or_else(|| format!("the schema of {name} cannot be parsed: {schema}"))
}

/// Checks all types, and that every value is an input or a result of what it says; `made` are the results of nodes.
fn values(graph: &Graph, made: &SecondaryMap<ValueId, bool>) -> Result<()> {
    for (id, value) in graph.values.iter() {
        check_type(&value.ty).map_err(|fault| bad(format!("{id}: {fault}")))?;
        let defined = match value.def {
            ValueDef::Input(input) => graph.inputs.get(input).is_some_and(|input| input.value == id),
            ValueDef::Result(..) => made[id],
        };
        if !defined {
            return Err(bad(format!("{id}: its definition, {:?}, does not make it", value.def)));
        }
    }
    Ok(())
}

/// What is wrong with a type, in a few words.
pub(crate) fn check_type(ty: &TensorType) -> Result<(), String> {
    check_shape(&ty.shape)?;
    if ty.strides.len() != ty.shape.len() {
        return Err(format!("{} strides for {} dimensions", ty.strides.len(), ty.shape.len()));
    }
    let extent = ty.shape.iter().zip(&ty.strides).try_fold(1_i64, |extent, (size, stride)| {
        let reach = (size.max(&1) - 1).checked_mul(*stride)?;
        extent.checked_add(reach).filter(|_| *stride >= 0)
    });
    match extent.and_then(|extent| extent.checked_mul(16)) {
        Some(_) => Ok(()),
        None => Err(format!("strides {:?} are negative or too large", ty.strides)),
    }
}

/// What is wrong with sizes; behind this check, products of sizes in bytes do not overflow.
pub(crate) fn check_shape(shape: &[i64]) -> Result<(), String> {
    const LARGEST_ELEMENT: i64 = 16;
    if shape.len() > MAX_DIMS {
        return Err(format!("{} dimensions, and at most {MAX_DIMS} are possible", shape.len()));
    }
    let product = shape
        .iter()
        .try_fold(LARGEST_ELEMENT, |product, size| product.checked_mul(*size.max(&1)).filter(|_| *size >= 0));
    product.map(drop).ok_or_else(|| format!("sizes {shape:?} are negative or too large"))
}

fn inputs(graph: &Graph) -> Result<()> {
    let mut names = FxHashMap::default();
    for (id, input) in graph.inputs.iter() {
        if let Some(other) = names.insert(input.name.as_str(), id) {
            return Err(bad(format!("{other} and {id} have the same name, {:?}", input.name)));
        }
        match graph.values.get(input.value).map(|value| value.def) {
            Some(ValueDef::Input(defined)) if defined == id => {}
            _ => return Err(bad(format!("{id}: {} is not the value of this input", input.value))),
        }
    }
    Ok(())
}

/// Checks all of a node but its position in the program.
fn node_data(graph: &Graph, schemas: &PrimaryMap<OpId, Schema<'_>>, node: &Node) -> Result<(), String> {
    let schema = schemas.get(node.op).ok_or_else(|| format!("{} is not in the table", node.op))?;
    let in_range = node.place.is_none_or(|id| graph.places.get(id).is_some())
        && node.module.is_none_or(|id| graph.modules.get(id).is_some())
        && node.label.is_none_or(|id| graph.labels.get(id).is_some())
        && graph.parts.get(node.part).is_some();
    if !in_range {
        return Err("its place, module, label or part is not in the table".into());
    }
    if node.args.len() != schema.parameters.len() {
        return Err(format!("{} arguments, and its schema has {}", node.args.len(), schema.parameters.len()));
    }
    for (arg, parameter) in node.args.iter().zip(&schema.parameters) {
        argument(graph, arg).map_err(|fault| format!("argument `{}`: {fault}", parameter.name))?;
    }
    if node.returns.len() != schema.returns.len() {
        return Err(format!("{} returns, and its schema has {}", node.returns.len(), schema.returns.len()));
    }
    if let Some(position) = (0..node.returns.len()).find(|i| !fits(&node.returns[*i], &schema.returns[*i])) {
        return Err(format!("return {position} is not what its schema says"));
    }
    Ok(())
}

fn argument(graph: &Graph, arg: &Arg) -> Result<(), String> {
    if let Some(value) = arg.values().find(|value| graph.values.get(*value).is_none()) {
        return Err(format!("{value} is not in the table"));
    }
    match arg {
        Arg::Layout(word) | Arg::MemoryFormat(word)
            if word.is_empty() || !word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') =>
        {
            Err(format!("{word:?} is no name of a layout or memory format"))
        }
        _ => Ok(()),
    }
}

fn fits(returned: &Return, ty: &SchemaType<'_>) -> bool {
    match returned {
        Return::None => true,
        Return::Value(_) => ty.is_tensor() && !ty.list,
        Return::Values(_) => ty.is_tensor() && ty.list,
    }
}

/// Checks that the results of a node name it as their definition, and marks them in `made`.
fn results(graph: &Graph, id: NodeId, made: &mut SecondaryMap<ValueId, bool>) -> Result<(), String> {
    for (position, result) in graph.nodes[id].results().enumerate() {
        if graph.values.get(result).map(|value| value.def) != Some(ValueDef::Result(id, position as u32)) {
            return Err(format!("its result {position}, {result}, has another definition"));
        }
        made[result] = true;
    }
    Ok(())
}

/// Checks the program and says which values it defines.
fn order(graph: &Graph) -> Result<SecondaryMap<ValueId, bool>> {
    let mut defined = SecondaryMap::with_default(false);
    let mut placed: SecondaryMap<NodeId, bool> = SecondaryMap::with_default(false);
    graph.inputs.values().for_each(|input| defined[input.value] = true);
    let mut part = PartId(0);
    for id in &graph.order {
        let Some(node) = graph.nodes.get(*id) else {
            return Err(bad(format!("{id} is in the program but not in the table")));
        };
        if std::mem::replace(&mut placed[*id], true) {
            return Err(at_node(graph, *id, "it is in the program twice"));
        }
        if let Some(operand) = node.operands().find(|operand| !defined[*operand]) {
            return Err(at_node(graph, *id, &format!("{operand} is used before it is defined")));
        }
        if node.part < part {
            let fault = format!("it stands in {} of the program, behind nodes of {part}", node.part);
            return Err(at_node(graph, *id, &fault));
        }
        part = node.part;
        node.results().for_each(|result| defined[result] = true);
    }
    Ok(defined)
}

fn ends(graph: &Graph, defined: &SecondaryMap<ValueId, bool>) -> Result<()> {
    if let Some(value) = graph.returns.iter().find(|value| !defined[**value]) {
        return Err(bad(format!("{value} is returned, but the program does not make it")));
    }
    let mut updated = FxHashSet::default();
    for (input, value) in &graph.updates {
        let Some(old) = graph.inputs.get(*input) else {
            return Err(bad(format!("{input} is updated but is not in the table")));
        };
        if !updated.insert(*input) {
            return Err(bad(format!("{:?} is updated twice", old.name)));
        }
        if !defined[*value] {
            return Err(bad(format!(
                "{:?} is updated to {value}, which the program does not make",
                old.name
            )));
        }
        let (was, is) = (graph.ty(old.value), graph.ty(*value));
        if (was.dtype, &was.shape) != (is.dtype, &is.shape) {
            let sizes = |ty: &TensorType| format!("{}{:?}", ty.dtype, ty.shape);
            let change = format!("{:?} of {} is updated to {}", old.name, sizes(was), sizes(is));
            return Err(bad(change));
        }
    }
    Ok(())
}
