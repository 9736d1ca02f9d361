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

#[cfg(test)]
mod tests {
    use ir::{Graph, NodeId, Placement, Reduce};

    use crate::{Call, Seed, Slot, row_of};

    /// Where operands and results are when dimension `dim` of the first operand is sharded over 2 ranks by a registered rule.
    fn placements(rule: &str, dim: usize) -> Option<(Vec<Placement>, Vec<Placement>)> {
        let text = format!(
            r#"unisono graph 2

op mylib::op(Tensor x, float scale, Tensor? w) -> (Tensor, Tensor) rule "{rule}"
input v0: f32[4, 8, 6] = batch "batch.0"
input v1: f32[6, 2] = parameter "params.w"
(v2: f32[4, 8, 2], v3: f32[8]) = mylib::op(v0, 0.5, v1)
return v2, v3
"#
        );
        let graph = Graph::from_text("test", &text).expect("it is well formed");
        let call = Call::new(&graph, NodeId(0));
        let row = row_of(call.op()).expect("it has a rule");
        let seed = Seed { slot: Slot::Operand(0), dim, blocks: 1, chunk: 0 };
        let found = crate::seeded(row, &call, seed, 2)?;
        Some((found.operands.to_vec(), found.results.to_vec()))
    }

    #[test]
    fn a_registered_rule_shards_what_has_the_name_and_sums_what_lacks_it() {
        let (shard, whole) = (Placement::shard, Placement::Replicate);
        let rule = "b s _, _ d -> b s d, s";
        let sum = Placement::Partial(Reduce::Sum);
        assert_eq!(placements(rule, 0), Some((vec![shard(0), whole], vec![shard(0), sum])));
        assert_eq!(placements(rule, 1), Some((vec![shard(1), whole], vec![shard(1), shard(0)])));
        assert_eq!(placements(rule, 2), None);
    }

    #[test]
    fn a_rule_for_other_dimensions_shards_nothing() {
        assert_eq!(placements("b s -> b s, s", 0), None);
    }
}
