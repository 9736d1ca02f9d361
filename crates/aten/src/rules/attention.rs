//! Scaled dot-product attention. Shapes: query `[batch, heads, queries, features]`, key and value `[batch, heads', keys, features]`.

use base::Flops;
use ir::Reduce;

use crate::{Call, FactorKind, Factors};

/// The positions of arguments that differ between the variants of attention.
struct Layout {
    query: usize,
    dropout: usize,
    /// `None` where positions are not sharded at all, because they are counted elsewhere: in arguments, or in padded results.
    causal: Option<usize>,
    mask: Option<usize>,
}

/// `_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale) -> (out, logsumexp)`.
pub fn forward(call: &Call<'_>) -> Option<Factors> {
    let layout = Layout { query: 0, dropout: 3, causal: Some(4), mask: Some(5) };
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
    let layout = Layout { query: 1, dropout: 6, causal: Some(7), mask: Some(8) };
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

/// `_scaled_dot_product_flash_attention(q, k, v, dropout, ..) -> (out, logsumexp, ..)`; what else it returns is of use with dropout only.
pub fn flash(call: &Call<'_>) -> Option<Factors> {
    by_heads(call, &Layout { query: 0, dropout: 3, causal: None, mask: None })
}

/// `_scaled_dot_product_efficient_attention(q, k, v, mask, compute_logsumexp, dropout, ..)` and `_scaled_dot_product_cudnn_attention`.
pub fn masked(call: &Call<'_>) -> Option<Factors> {
    by_heads(call, &Layout { query: 0, dropout: 5, causal: None, mask: Some(3) })
}

/// `_scaled_dot_product_fused_attention_overrideable(q, k, v, mask, dropout, ..)`, for which other backends bring a kernel.
pub fn overrideable(call: &Call<'_>) -> Option<Factors> {
    by_heads(call, &Layout { query: 0, dropout: 4, causal: None, mask: Some(3) })
}

/// Its backward `(grad, q, k, v, mask, wanted, out, logsumexp, .., dropout, ..) -> (dq, dk, dv, dmask)`.
pub fn overrideable_backward(call: &Call<'_>) -> Option<Factors> {
    by_heads_backward(call, &Layout { query: 1, dropout: 12, causal: None, mask: Some(4) }, [0, 6, 7])
}

fn by_heads(call: &Call<'_>, layout: &Layout) -> Option<Factors> {
    let mut space = Factors::none(call);
    let (batch, heads, _) = index_space(call, &mut space, layout, FactorKind::Parallel)?;
    for result in [0, 1] {
        space.result(result, 0, batch)?;
        space.result(result, 1, heads)?;
    }
    Some(space)
}

/// `_scaled_dot_product_flash_attention_backward(grad, q, k, v, out, logsumexp, .., dropout, ..) -> (dq, dk, dv)`.
pub fn flash_backward(call: &Call<'_>) -> Option<Factors> {
    by_heads_backward(call, &Layout { query: 1, dropout: 10, causal: None, mask: None }, [0, 4, 5])
}

/// `_scaled_dot_product_efficient_attention_backward(grad, q, k, v, mask, out, logsumexp, ..) -> (dq, dk, dv, dmask)`.
pub fn efficient_backward(call: &Call<'_>) -> Option<Factors> {
    by_heads_backward(call, &Layout { query: 1, dropout: 9, causal: None, mask: Some(4) }, [0, 5, 6])
}

/// `_scaled_dot_product_cudnn_attention_backward(grad, q, k, v, out, logsumexp, .., mask, ..) -> (dq, dk, dv)`.
pub fn cudnn_backward(call: &Call<'_>) -> Option<Factors> {
    by_heads_backward(call, &Layout { query: 1, dropout: 13, causal: None, mask: Some(8) }, [0, 4, 5])
}

/// A backward whose results are all in the shape of queries, keys, values and scores; `args` are the gradient, what came out, and
/// its logarithms.
fn by_heads_backward(call: &Call<'_>, layout: &Layout, args: [usize; 3]) -> Option<Factors> {
    let mut space = Factors::none(call);
    let (batch, heads, _) = index_space(call, &mut space, layout, FactorKind::Parallel)?;
    for operand in args.into_iter().filter_map(|arg| call.operand_of_arg(arg)) {
        space.operand(operand, 0, batch)?;
        space.operand(operand, 1, heads)?;
    }
    space.all_results(0, batch)?;
    space.all_results(1, heads)?;
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
    let shards_positions = layout.causal.is_some_and(|causal| call.flag(causal) != Some(true));
    let queries = shards_positions.then(|| space.add(queries, queries_kind));
    for operand in layout.query..layout.query + 3 {
        space.operand(operand, 0, batch)?;
        space.operand(operand, 1, heads)?;
    }
    if let Some(queries) = queries {
        space.operand(layout.query, 2, queries)?;
    }
    if let Some(mask) = layout.mask.and_then(|mask| call.operand_of_arg(mask)) {
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

/// So many products between those pairs of a query and a key that count.
fn products(call: &Call<'_>, query: usize, count: u64) -> Flops {
    let [queries, keys] = [query, query + 1].map(|operand| call.size(operand, 2).unwrap_or(0).max(0) as u64);
    let pairs = if call.argument("is_causal").and_then(|causal| call.flag(causal)) == Some(true) {
        // A query sees keys up to its own position; kernels leave out the rest.
        let seen = queries.min(keys);
        seen * (seen + 1) / 2 + (queries - seen) * keys
    } else {
        queries * keys
    };
    let elements = call.operand(query).elements();
    Flops(2 * count * (elements / queries.max(1)) * pairs)
}
