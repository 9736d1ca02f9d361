//! The check that stands before planning: every call fits its operation's row.
//!
//! The verifier of `ir` knows graphs, not operations. Behind this check the positions that rules count in are there, and hold what they
//! should.

use base::{Code, Diagnostic, Result};
use ir::{Arg, Graph, NodeId, Op, Parameter, Schema, SchemaType, ValueId};

use crate::{Call, Linear, Row, Rule, Strides, Work, factors::DimMap, row_of};

/// Checks that every node of a verified graph is a call that its operation's row knows. Operations without a row may be anything.
///
/// Fails with [`Code::BAD_CALL`] at the place in the user's code.
pub fn check(graph: &Graph) -> Result<()> {
    let mut rows = base::PrimaryMap::with_capacity(graph.ops.len());
    for op in graph.ops.values() {
        rows.push(row_of(op).map(|row| match row.rule {
            Rule::Registered => Ok(row),
            _ => schema(row, op).map(|()| row),
        }));
    }
    graph.order.iter().try_for_each(|id| {
        let node = &graph.nodes[*id];
        let Some(row): &Option<Result<&Row, String>> = &rows[node.op] else { return Ok(()) };
        let fits = row.clone().and_then(|row| call(graph, *id, row));
        fits.map_err(|fault| misfit(graph, *id, &fault))
    })
}

fn misfit(graph: &Graph, id: NodeId, fault: &str) -> Box<Diagnostic> {
    let diagnostic = Diagnostic::new(Code::BAD_CALL, format!("{id} ({}): {fault}", graph.op_name(id)));
    match graph.place(id) {
        Some(place) => diagnostic.at(place.clone()),
        None => diagnostic,
    }
}

/// Whether an operator has the arguments and returns that its row counts in; more may follow.
fn schema(row: &Row, op: &Op) -> Result<(), String> {
    let known = row.schema();
    let known = Schema::parse(&known).expect("the schemas of rows parse");
    let given = Schema::parse(&op.schema).ok_or("its schema cannot be parsed")?;
    let base = |ty: SchemaType<'_>| if ty.base == "SymInt" { "int".to_owned() } else { ty.base.to_owned() };
    let alike = |a: SchemaType<'_>, b: SchemaType<'_>| {
        base(a) == base(b) && a.list == b.list && a.optional == b.optional
    };
    let parameter = |(a, b): (&Parameter<'_>, &Parameter<'_>)| {
        a.name == b.name
            && (alike(a.ty, b.ty)
                || (may_be_undefined(a.ty) && alike(a.ty, SchemaType { optional: true, ..b.ty })))
    };
    let arguments = given.parameters.len() >= known.parameters.len()
        && known.parameters.iter().zip(&given.parameters).all(parameter);
    let returns = given.returns.len() == known.returns.len()
        && known.returns.iter().zip(&given.returns).all(|(a, b)| alike(*a, *b));
    if arguments && returns {
        return Ok(());
    }
    Err(format!("its schema is {}, and what is known of it is for {}", op.schema, row.schema()))
}

/// Whether a parameter of a row may be a tensor that is undefined: `Tensor?`, also where PyTorch's schema says `Tensor`.
fn may_be_undefined(ty: SchemaType<'_>) -> bool {
    ty.optional && ty.is_tensor() && !ty.list
}

/// What is wrong with a call of an operation whose schema is right, in a few words.
fn call(graph: &Graph, id: NodeId, row: &Row) -> Result<(), String> {
    let node = &graph.nodes[id];
    let schema = Schema::parse(&graph.ops[node.op].schema).ok_or("its schema cannot be parsed")?;
    let numbers = matches!(row.rule, Rule::Each | Rule::Unknown);
    for (position, (arg, parameter)) in node.args.iter().zip(&schema.parameters).enumerate() {
        let ty = parameter.ty;
        let undefined = || {
            let known = row.schema();
            let known = Schema::parse(&known).expect("the schemas of rows parse");
            *arg == Arg::None
                && known.parameters.get(position).is_some_and(|known| may_be_undefined(known.ty))
        };
        if !(fits(arg, ty) || (numbers && ty.is_tensor() && !ty.list && is_number(arg)) || undefined()) {
            let kind = format!("{}{}", ty.base, if ty.list { "[]" } else { "" });
            return Err(format!("argument `{}` is no {kind}", parameter.name));
        }
    }
    let call = Call::new(graph, id);
    if !matches!(row.rule, Rule::Registered) {
        dims(&call, row, &schema)?;
    }
    if matches!(row.work, Work::View) {
        view(&call, row)?;
    }
    match row.rule {
        Rule::Einsum(text) if crate::einsum::factors(text, &call).is_none() => {
            Err(format!("its tensors do not have the dimensions {text}"))
        }
        Rule::Registered if crate::einsum::registered(&call).is_none() => {
            let rule = call.op().rule.as_deref().unwrap_or_default();
            Err(format!("its tensors do not have the dimensions of its rule, {rule}"))
        }
        Rule::Each if crate::rules::pointwise::broadcast(&call).is_none() => {
            Err("its operands do not broadcast to its results".to_owned())
        }
        _ => Ok(()),
    }
}

/// Whether an argument is of the type of its parameter.
fn fits(arg: &Arg, ty: SchemaType<'_>) -> bool {
    let (base, one) = (ty.base, !ty.list);
    let integer = matches!(base, "int" | "SymInt");
    match arg {
        Arg::None => ty.optional || base == "Generator",
        Arg::Value(_) => ty.is_tensor() && one,
        Arg::Values(_) => ty.is_tensor() && ty.list,
        // A list of integers may be written as one that stands for all.
        Arg::Int(_) => {
            integer || (one && matches!(base, "float" | "Scalar" | "number" | "ScalarType" | "Layout"))
        }
        Arg::Float(_) => one && matches!(base, "float" | "Scalar" | "number"),
        Arg::Bool(_) => one && matches!(base, "bool" | "Scalar" | "number"),
        Arg::Ints(ints) => ty.list && (integer || matches!(base, "float" | "Scalar") || ints.is_empty()),
        Arg::Floats(_) => ty.list && matches!(base, "float" | "Scalar"),
        Arg::Bools(_) => ty.list && base == "bool",
        Arg::Str(_) => one && base == "str",
        Arg::Strs(_) => ty.list && base == "str",
        Arg::Dtype(_) => base == "ScalarType",
        Arg::Layout(_) => base == "Layout",
        Arg::MemoryFormat(_) => base == "MemoryFormat",
        Arg::Device(_) => base == "Device",
    }
}

/// Checks that a view has the shape that it makes of its operand.
fn view(call: &Call<'_>, row: &Row) -> Result<(), String> {
    let fault = || "its result is not of the shape that the view makes of its operand".to_owned();
    let keeps_all = matches!(row.linear, Linear::Stacked);
    let elements = call.operands.first().map(|value| call.graph.ty(*value).elements());
    let first = call.results.first().map(|value| call.graph.ty(*value).elements());
    if elements.is_none() || (keeps_all && first != elements) {
        return Err(fault());
    }
    if row.strides == Strides::Permuted {
        let rank = call.operand(0).rank();
        let mut dims = call.named_dims(1, rank);
        dims.sort_unstable();
        if !dims.into_iter().eq(0..rank) || call.result(0).rank() != rank {
            return Err(fault());
        }
    }
    let Rule::Factors(factors) = row.rule else { return Ok(()) };
    let Some(space) = factors(call) else {
        return if call.operand(0).rank() == 0 { Ok(()) } else { Err(fault()) };
    };
    let fits = |maps: &[DimMap], values: &[ValueId]| {
        maps.iter().zip(values).all(|(map, value)| {
            let shape = &call.graph.ty(*value).shape;
            let mut dims = map.iter().zip(shape);
            dims.all(|(factor, size)| factor.is_none_or(|number| space.factors[number].size == *size))
        })
    };
    let fits = fits(&space.operands, &call.operands) && fits(&space.results, &call.results);
    fits.then_some(()).ok_or_else(fault)
}

const fn is_number(arg: &Arg) -> bool {
    matches!(arg, Arg::Int(_) | Arg::Float(_) | Arg::Bool(_))
}

/// Checks that the dimensions that arguments name are there.
fn dims(call: &Call<'_>, row: &Row, schema: &Schema<'_>) -> Result<(), String> {
    let first = if row.dims_of_result { call.results.first() } else { call.operands.first() };
    let Some(rank) = first.map(|value| call.graph.ty(*value).rank().max(1) as i64) else { return Ok(()) };
    for (position, parameter) in schema.parameters.iter().enumerate() {
        if !matches!(parameter.name, "dim" | "dim0" | "dim1" | "dims") {
            continue;
        }
        let named = call.ints(position).unwrap_or_default();
        if let Some(dim) = named.iter().find(|dim| !(-rank..rank).contains(*dim)) {
            return Err(format!("argument `{}` is {dim}, and the tensor has rank {rank}", parameter.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str) -> String {
        let graph =
            Graph::from_text("test", &format!("unisono graph 2\n\n{text}\nplace p0 \"train.py\":12:5\n"));
        check(&graph.unwrap()).map_or_else(|fault| fault.to_string(), |()| String::new())
    }

    #[test]
    fn a_call_that_fits_its_row_passes() {
        let text = r#"op aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor
op aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
input v0: f32[8, 4] = parameter "params.w"
input v1: i64[2] = batch "batch.0"
v2: f32[2, 4] = aten::embedding(v0, v1, -1, false, false) @p0
v3: f32[2, 4] = aten::add.Tensor(v2, 1.5, 1) @p0
return v3
"#;
        assert_eq!(fault(text), "");
    }

    #[test]
    fn a_schema_that_is_not_the_row_s_is_refused_at_the_user_s_line() {
        let text = r#"op aten::embedding(Tensor weight) -> Tensor
input v0: f32[8, 4] = parameter "params.w"
v1: f32[2, 4] = aten::embedding(v0) @p0
return v1
"#;
        let fault = fault(text);
        assert!(fault.contains("its schema is (Tensor weight) -> Tensor"), "{fault}");
        assert!(fault.contains("train.py:12"), "{fault}");
    }

    #[test]
    fn a_batch_norm_with_a_short_schema_is_refused() {
        let text = r#"op aten::_native_batch_norm_legit_functional(Tensor input) -> Tensor
input v0: f32[8, 4] = parameter "params.w"
v1: f32[8, 4] = aten::_native_batch_norm_legit_functional(v0) @p0
return v1
"#;
        assert!(fault(text).contains("its schema is (Tensor input) -> Tensor"), "{}", fault(text));
    }

    #[test]
    fn a_view_of_another_shape_than_it_makes_is_refused() {
        let text = r#"op aten::permute(Tensor(a) self, int[] dims) -> Tensor(a)
input v0: f32[8, 4] = parameter "params.w"
v1: f32[8, 4] = aten::permute(v0, [1]) @p0
return v1
"#;
        assert!(fault(text).contains("not of the shape that the view makes"), "{}", fault(text));
    }

    #[test]
    fn dimensions_that_are_not_there_are_refused() {
        let text = r#"op aten::transpose.int(Tensor(a) self, int dim0, int dim1) -> Tensor(a)
input v0: f32[8, 4] = parameter "params.w"
v1: f32[4, 8] = aten::transpose.int(v0, 9, 0) @p0
return v1
"#;
        assert!(fault(text).contains("argument `dim0` is 9, and the tensor has rank 2"), "{}", fault(text));
    }

    #[test]
    fn a_registered_rule_for_other_dimensions_than_a_call_has_is_refused() {
        let called = |rule: &str| {
            fault(&format!(
                r#"op mylib::norm(Tensor x, int dim) -> Tensor rule "{rule}"
input v0: f32[4, 8] = parameter "params.w"
v1: f32[4] = mylib::norm(v0, 7) @p0
return v1
"#
            ))
        };
        assert_eq!(called("b _ -> b"), "");
        let fault = called("b s _ -> b");
        assert!(fault.contains("its tensors do not have the dimensions of its rule, b s _ -> b"), "{fault}");
        assert!(fault.contains("train.py:12"), "{fault}");
    }

    #[test]
    fn a_number_stands_for_a_tensor_only_where_elements_are_by_themselves() {
        let text = r#"op aten::mm(Tensor self, Tensor mat2) -> Tensor
input v0: f32[4, 4] = parameter "params.w"
v1: f32[4, 4] = aten::mm(v0, 2) @p0
return v1
"#;
        assert!(fault(text).contains("argument `mat2` is no Tensor"), "{}", fault(text));
    }

    #[test]
    fn operands_of_other_ranks_than_a_product_s_are_refused() {
        let text = r#"op aten::mm(Tensor self, Tensor mat2) -> Tensor
input v0: f32[4, 4, 2] = parameter "params.w"
v1: f32[4, 4] = aten::mm(v0, v0) @p0
return v1
"#;
        assert!(fault(text).contains("do not have the dimensions m k, k n -> m n"), "{}", fault(text));
    }
}
