//! Attention over a sequence that is sharded: in queries, keys and values alike, where keys and values go around the ranks, or, under a causal
//! mask, in queries alone. Shapes are those of [`super::attention`].

use ir::Reduce;

use crate::{Call, FactorKind, Factors, Realise};

/// The sequence of `(query, key, value, dropout, is_causal, ..) -> (out, logsumexp, ..)`. Results of blocks are added up in the type of the
/// logarithms.
pub fn forward(call: &Call<'_>) -> Option<Factors> {
    sequence(call, 0, FactorKind::Parallel, Realise::Ring, [&[0, 1, 2], &[0, 1]])
}

/// The sequence of its backward `(grad, query, key, value, out, logsumexp, ..) -> (dq, dk, dv)`.
pub fn backward(call: &Call<'_>) -> Option<Factors> {
    let all: [&[usize]; 2] = [&[0, 1, 2, 3, 4, 5], &[0, 1, 2]];
    sequence(call, 1, FactorKind::Parallel, Realise::RingBackward, all)
}

/// The queries of causal attention. Without a mask they are a factor of [`super::attention`].
pub fn forward_of_queries(call: &Call<'_>) -> Option<Factors> {
    if !is_causal(call)? {
        return None;
    }
    sequence(call, 0, FactorKind::Parallel, Realise::CausalQueries, [&[0], &[0, 1]])
}

/// The queries of its backward: gradients of keys and values are partial.
pub fn backward_of_queries(call: &Call<'_>) -> Option<Factors> {
    if !is_causal(call)? {
        return None;
    }
    let sum = FactorKind::Reduce(Reduce::Sum);
    sequence(call, 1, sum, Realise::CausalQueriesBackward, [&[0, 1, 4, 5], &[0]])
}

fn is_causal(call: &Call<'_>) -> Option<bool> {
    call.flag(call.argument("is_causal")?)
}

/// The factor of positions, which these operands and results have, where queries and keys are positions of one sequence, nothing is dropped
/// and no mask is added. Of causal attention it counts pairs of positions: each rank works on two pieces of the sequence, of one size.
fn sequence(
    call: &Call<'_>,
    query: usize,
    kind: FactorKind,
    realise: Realise,
    [operands, results]: [&[usize]; 2],
) -> Option<Factors> {
    let sizes = |dim: usize| [query, query + 1, query + 2].map(|operand| call.size(operand, dim));
    let [Some(positions), keys, values] = sizes(2) else { return None };
    let [features @ Some(_), of_keys, of_values] = sizes(3) else { return None };
    let alike = [keys, values] == [Some(positions); 2] && [of_keys, of_values] == [features; 2];
    let mask = call.argument("attn_mask").or_else(|| call.argument("attn_bias"));
    let masked = mask.and_then(|mask| call.operand_of_arg(mask)).is_some();
    let logarithms = if query == 0 { call.result(1) } else { call.operand(5) };
    let narrow = logarithms.dtype.bytes() < call.result(0).dtype.bytes();
    if !alike || masked || narrow || call.number(call.argument("dropout_p")?)? != 0.0 {
        return None;
    }
    let width = if is_causal(call)? { 2 } else { 1 };
    if positions % width != 0 {
        return None;
    }
    let mut space = Factors::none(call);
    let factor = space.add_special(positions / width, kind, realise);
    operands.iter().try_for_each(|operand| space.operand(*operand, 2, factor))?;
    results.iter().try_for_each(|result| space.result(*result, 2, factor))?;
    Some(space)
}
