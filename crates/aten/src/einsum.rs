//! Factor rules written like an einsum: `m k, k n -> m n`.
//!
//! Tensor arguments stand before the arrow in the order of the schema, present or not; results behind it. Names are factors; a factor
//! that no result has is summed. `x*` stands for all dimensions that are left, `_` for one that cannot be sharded.

use ir::Reduce;
use rustc_hash::FxHashMap;

use crate::{Call, FactorKind, Factors, factors::DimMap};

/// The iteration space that `text` describes for `call`, or `None` where the call does not fit it.
pub fn factors(text: &str, call: &Call<'_>) -> Option<Factors> {
    let (inputs, outputs) = text.split_once("->")?;
    let mut space = Factors::none(call);
    let mut names: FxHashMap<String, usize> = FxHashMap::default();
    let args = tensor_args(call);
    for (position, pattern) in inputs.split(',').enumerate() {
        if let Some(operand) = args.get(position).and_then(|arg| call.operand_of_arg(*arg)) {
            let shape = call.operand(operand).shape.clone();
            space.operands[operand] = map(&mut space, &mut names, pattern, &shape)?;
        }
    }
    for (position, pattern) in outputs.split(',').enumerate() {
        if let Some(result) = call.result_of_return(position) {
            let shape = call.result(result).shape.clone();
            space.results[result] = map(&mut space, &mut names, pattern, &shape)?;
        }
    }
    for number in 0..space.factors.len() {
        if !space.results.iter().all(|map| map.contains(&Some(number))) {
            space.factors[number].kind = FactorKind::Reduce(Reduce::Sum);
        }
    }
    Some(space)
}

/// The iteration space that the rule describes which the graph has for the operator of `call`.
pub fn registered(call: &Call<'_>) -> Option<Factors> {
    factors(call.op().rule.as_deref()?, call)
}

/// The arguments of the schema that are tensors, by position.
fn tensor_args(call: &Call<'_>) -> Vec<usize> {
    let schema = &call.graph.ops[call.node.op].schema;
    let mut args = vec![String::new()];
    let mut depth = 0;
    for letter in schema.chars() {
        depth += i32::from(matches!(letter, '(' | '[')) - i32::from(matches!(letter, ')' | ']'));
        match letter {
            _ if depth == 0 => break,
            ',' if depth == 1 => args.push(String::new()),
            '(' if depth == 1 => {}
            _ => args.last_mut().expect("never empty").push(letter),
        }
    }
    let args = args.iter().map(|arg| arg.trim()).filter(|arg| *arg != "*");
    args.enumerate().filter(|(_, arg)| arg.starts_with("Tensor")).map(|(position, _)| position).collect()
}

fn map(
    space: &mut Factors,
    names: &mut FxHashMap<String, usize>,
    pattern: &str,
    shape: &[i64],
) -> Option<DimMap> {
    let words: Vec<&str> = pattern.split_whitespace().collect();
    let starred = words.iter().any(|word| word.ends_with('*'));
    let rest = (shape.len() + usize::from(starred)).checked_sub(words.len())?;
    let mut dims = DimMap::new();
    for word in words {
        let repeated = word.strip_suffix('*');
        for index in 0..repeated.map_or(1, |_| rest) {
            let name = match repeated {
                Some(stem) if stem != "_" => format!("{stem}.{index}"),
                stem => stem.unwrap_or(word).to_owned(),
            };
            let size = shape[dims.len()];
            dims.push(factor(space, names, name, size));
        }
    }
    (dims.len() == shape.len()).then_some(dims)
}

/// The factor of a name; none for `_` and for a dimension of another size (a broadcast one).
fn factor(
    space: &mut Factors,
    names: &mut FxHashMap<String, usize>,
    name: String,
    size: i64,
) -> Option<usize> {
    if name == "_" {
        return None;
    }
    let number = *names.entry(name).or_insert_with(|| space.add(size, FactorKind::Parallel));
    (space.factors[number].size == size).then_some(number)
}
