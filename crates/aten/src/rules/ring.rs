//! Attention over a sequence that is sharded in queries, keys and values alike: keys and values go around the ranks. Shapes are those of
//! [`super::attention`].

use crate::{Call, FactorKind, Factors, Realise};

/// The sequence of `(query, key, value, dropout, is_causal, ..) -> (out, logsumexp, ..)`. Results of blocks are added up in the type of the logarithms.
pub fn forward(call: &Call<'_>) -> Option<Factors> {
    let (mut space, sequence) = around(call, 0, Realise::Ring)?;
    space.result(0, 2, sequence)?;
    space.result(1, 2, sequence)?;
    let sums_are_wide = call.result(1).dtype.bytes() >= call.result(0).dtype.bytes();
    sums_are_wide.then_some(space)
}

/// The sequence of its backward `(grad, query, key, value, out, logsumexp, ..) -> (dq, dk, dv)`.
pub fn backward(call: &Call<'_>) -> Option<Factors> {
    let (mut space, sequence) = around(call, 1, Realise::RingBackward)?;
    for operand in [0, 4, 5] {
        space.operand(operand, 2, sequence)?;
    }
    space.all_results(2, sequence)?;
    let sums_are_wide = call.operand(5).dtype.bytes() >= call.result(0).dtype.bytes();
    sums_are_wide.then_some(space)
}

/// The factor of positions, where queries and keys are positions of one sequence, nothing is dropped and no mask is added. Of causal
/// attention it counts pairs of positions: each rank works on two pieces of the sequence, of one size.
fn around(call: &Call<'_>, query: usize, realise: Realise) -> Option<(Factors, usize)> {
    let [key, value] = [query + 1, query + 2];
    let sizes = |dim: usize| [query, key, value].map(|operand| call.size(operand, dim));
    let [Some(sequence), keys, values] = sizes(2) else { return None };
    let [features @ Some(_), of_keys, of_values] = sizes(3) else { return None };
    let alike = [keys, values] == [Some(sequence); 2] && [of_keys, of_values] == [features; 2];
    let masked = call.argument("attn_mask").and_then(|mask| call.operand_of_arg(mask)).is_some();
    if !alike || masked || call.number(call.argument("dropout_p")?)? != 0.0 {
        return None;
    }
    let width = if call.flag(call.argument("is_causal")?)? { 2 } else { 1 };
    if sequence % width != 0 {
        return None;
    }
    let mut space = Factors::none(call);
    let factor = space.add_special(sequence / width, FactorKind::Parallel, realise);
    for operand in [query, key, value] {
        space.operand(operand, 2, factor)?;
    }
    Some((space, factor))
}
