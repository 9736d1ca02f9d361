//! Scaled dot-product attention. Shapes: query `[batch, heads, queries, features]`, key and value `[batch, heads', keys, features]`.

use base::Flops;
use ir::Reduce;

use crate::{Call, FactorKind, Factors};

/// The positions of arguments that differ between the variants of attention.
struct Layout {
    query: usize,
    dropout: usize,
    causal: usize,
    mask: usize,
}

/// `_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale) -> (out, logsumexp)`.
pub fn forward(call: &Call<'_>) -> Option<Factors> {
    let layout = Layout { query: 0, dropout: 3, causal: 4, mask: 5 };
    let mut space = Factors::none(call);
    let (batch, heads, queries) = index_space(call, &mut space, &layout, FactorKind::Parallel)?;
    space.all_results(0, batch)?;
    space.all_results(1, heads)?;
    if let Some(queries) = queries {
        space.all_results(2, queries)?;
    }
    Some(space)
}

/// Its backward `(grad, q, k, v, out, logsumexp, dropout, causal, mask, scale) -> (dq, dk, dv)`: sharded by queries, the gradients of
/// keys and values are partial.
pub fn backward(call: &Call<'_>) -> Option<Factors> {
    let layout = Layout { query: 1, dropout: 6, causal: 7, mask: 8 };
    let mut space = Factors::none(call);
    let (batch, heads, queries) = index_space(call, &mut space, &layout, FactorKind::Reduce(Reduce::Sum))?;
    for operand in [0, 4, 5] {
        space.operand(operand, 0, batch)?;
        space.operand(operand, 1, heads)?;
        if let Some(queries) = queries {
            space.operand(operand, 2, queries)?;
        }
    }
    space.all_results(0, batch)?;
    space.all_results(1, heads)?;
    if let Some(queries) = queries {
        space.result(0, 2, queries)?;
    }
    Some(space)
}

/// Adds the factors batch, heads and (where no causal mask counts positions) queries, and maps query, key, value and mask.
fn index_space(
    call: &Call<'_>,
    space: &mut Factors,
    layout: &Layout,
    queries_kind: FactorKind,
) -> Option<(usize, usize, Option<usize>)> {
    let sizes = |operand: usize| [0, 1, 2, 3].map(|dim| call.size(operand, dim));
    let [Some(batch), Some(query_heads), Some(queries), Some(_)] = sizes(layout.query) else { return None };
    let key_heads = call.size(layout.query + 1, 1)?;
    if call.number(layout.dropout)? != 0.0 {
        return None;
    }
    let batch = space.add(batch, FactorKind::Parallel);
    // With grouped queries the smaller number of heads decides what divides; a contiguous part of the heads of both goes together.
    let heads = space.add(query_heads.min(key_heads), FactorKind::Parallel);
    space.factors[heads].blocks = query_heads == key_heads;
    let whole_positions = call.flag(layout.causal) == Some(true);
    let queries = (!whole_positions).then(|| space.add(queries, queries_kind));
    for operand in layout.query..layout.query + 3 {
        space.operand(operand, 0, batch)?;
        space.operand(operand, 1, heads)?;
    }
    if let Some(queries) = queries {
        space.operand(layout.query, 2, queries)?;
    }
    if let Some(mask) = call.operand_of_arg(layout.mask) {
        let ty = call.operand(mask);
        let offset = 4_usize.checked_sub(ty.rank())?;
        for (dim, factor) in [(0_usize, Some(batch)), (1, Some(heads)), (2, queries)] {
            if let (Some(factor), Some(dim_of_mask)) = (factor, dim.checked_sub(offset))
                && call.size(mask, dim_of_mask) == call.size(layout.query, dim)
            {
                space.operand(mask, dim_of_mask, factor)?;
            }
        }
    }
    Some((batch, heads, queries))
}

/// Two products of queries and keys: scores and their sum over values.
pub fn forward_flops(call: &Call<'_>) -> Flops {
    products(call, 0, 2)
}

/// Five products: scores again, and the gradients of scores, queries, keys and values.
pub fn backward_flops(call: &Call<'_>) -> Flops {
    products(call, 1, 5)
}

fn products(call: &Call<'_>, query: usize, count: u64) -> Flops {
    let keys = call.size(query + 1, 2).unwrap_or(0).max(0) as u64;
    Flops(2 * count * call.operand(query).elements() * keys)
}
