"""Attention as CUDA's kernels do it, on processors: what they return, by the formulas.

Shapes: query ``[batch, heads, queries, features]``, key and value ``[batch, heads', keys, features]``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


def _scores(q, k, bias, causal, scale):
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[2:], dtype=torch.bool).tril().logical_not(), -math.inf)
    return scores


def _grouped(q, *others):
    """Keys and values with as many heads as queries have."""
    return [one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in others]


def _forward(q, k, v, bias, causal, scale):
    k, v = _grouped(q, k, v)
    scores = _scores(q, k, bias, causal, scale)
    return scores.softmax(-1) @ v, scores.logsumexp(-1).float()


def _backward(gradient, q, k, v, bias, out, logsumexp, causal, scale):
    """The gradients of queries, keys, values and scores."""
    heads = k.shape[1]
    wide_k, wide_v = _grouped(q, k, v)
    weights = (_scores(q, wide_k, bias, causal, scale) - logsumexp[:, :, : q.shape[2], None]).exp()
    of_scores = weights * (gradient @ wide_v.transpose(2, 3) - (gradient * out).sum(-1, keepdim=True))
    factor = q.shape[-1] ** -0.5 if scale is None else scale

    def summed(wide):
        return wide.unflatten(1, (heads, -1)).sum(2)

    of_k, of_v = of_scores.transpose(2, 3) @ q * factor, weights.transpose(2, 3) @ gradient
    return of_scores @ wide_k * factor, summed(of_k), summed(of_v), of_scores


def _flash(q, k, v, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, logsumexp = _forward(q, k, v, None, is_causal, scale)
    state = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return out, logsumexp, None, None, q.shape[2], k.shape[2], *state, torch.empty(0, dtype=q.dtype)


def _flash_backward(
    gradient, q, k, v, out, logsumexp, _, __, max_q, max_k, dropout_p, is_causal, seed, offset, *, scale=None
):
    return _backward(gradient, q, k, v, None, out, logsumexp, is_causal, scale)[:3]


def _random_state():
    return torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)


def _efficient(q, k, v, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, *, scale=None):
    out, logsumexp = _forward(q, k, v, attn_bias, is_causal, scale)
    return out, F.pad(logsumexp, (0, -logsumexp.shape[-1] % 32)), *_random_state()


def _efficient_backward(
    gradient, q, k, v, bias, out, logsumexp, seed, offset, dropout_p, wanted, is_causal=False, *, scale=None
):
    made = _backward(gradient, q, k, v, bias, out, logsumexp, is_causal, scale)
    return tuple(one if is_wanted else None for one, is_wanted in zip(made, wanted, strict=True))


def _cudnn(
    q, k, v, attn_bias, compute_log_sumexp, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None
):
    out, logsumexp = _forward(q, k, v, attn_bias, is_causal, scale)
    return out, logsumexp[..., None], None, None, q.shape[2], k.shape[2], *_random_state(), None


def _cudnn_backward(
    gradient, q, k, v, out, logsumexp, seed, offset, bias, _, __, max_q, max_k, dropout_p, is_causal, *, scale=None
):
    return _backward(gradient, q, k, v, bias, out, logsumexp[..., 0], is_causal, scale)[:3]


def _overrideable(q, k, v, attn_bias=None, dropout_p=0.0, is_causal=False, return_debug_mask=False, *, scale=None):
    out, logsumexp = _forward(q, k, v, attn_bias, is_causal, scale)
    return out, logsumexp, None, None, q.shape[2], k.shape[2], *_random_state(), None


def _overrideable_backward(
    gradient,
    q,
    k,
    v,
    bias,
    wanted,
    out,
    logsumexp,
    _,
    __,
    max_q,
    max_k,
    dropout_p,
    is_causal,
    seed,
    offset,
    *,
    scale=None,
):
    made = _backward(gradient, q, k, v, bias, out, logsumexp, is_causal, scale)
    return tuple(one if is_wanted else None for one, is_wanted in zip(made, wanted, strict=True))


def register() -> torch.library.Library:
    """Registers them for processors; the result keeps them."""
    library = torch.library.Library("aten", "IMPL")
    for kind, forward, backward in (
        ("flash_attention", _flash, _flash_backward),
        ("efficient_attention", _efficient, _efficient_backward),
        ("cudnn_attention", _cudnn, _cudnn_backward),
        ("fused_attention_overrideable", _overrideable, _overrideable_backward),
    ):
        library.impl(f"_scaled_dot_product_{kind}", forward, "CPU")
        library.impl(f"_scaled_dot_product_{kind}_backward", backward, "CPU")
    return library
