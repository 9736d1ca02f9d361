"""Which of its kernels for scaled dot-product attention CUDA takes, where tensors of the processor stand for its own.

As PyTorch documents it at ``torch.nn.functional.scaled_dot_product_attention`` and writes it in its ``transformers/cuda/sdp_utils.cpp``,
for GPUs of compute capability 8.0 and later: flash attention where it can be, else the memory-efficient kernel, else the operations one by
one. Shapes: query ``[batch, heads, queries, features]``, key and value ``[batch, heads', keys, features]``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_aten = torch.ops.aten
#: Kernels read 16 bytes at a time.
_ALIGNMENT = 16
#: The padding of masks, in numbers.
_MASK_ALIGNMENT = 16


def on_cuda(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention by the kernel that CUDA chooses."""
    operands = (query, key, value)
    if _fits_both(operands) and not (is_causal and attn_mask is not None):
        if attn_mask is None and _fits_flash(operands, causal=is_causal, grouped=enable_gqa):
            return _flash(operands, dropout_p, is_causal, scale)
        if _fits_efficient(operands, attn_mask):
            return _efficient(operands, attn_mask, dropout_p, is_causal, scale)
    with sdpa_kernel(SDPBackend.MATH):
        return _aten.scaled_dot_product_attention.default.decompose(
            *operands, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def _fits_both(operands: tuple[torch.Tensor, ...]) -> bool:
    """Whether types and shapes of query, key and value are such as either kernel needs."""
    query, key, value = operands
    return (
        all(one.dim() == 4 and one.dtype == query.dtype and one.shape[0] == query.shape[0] for one in operands)
        and query.shape[2] > 0
        and key.shape[2] > 0
        and query.shape[3] == key.shape[3]
        and key.shape[:3] == value.shape[:3]
    )


def _fits_flash(operands: tuple[torch.Tensor, ...], *, causal: bool, grouped: bool) -> bool:
    query, key, value = operands
    heads = query.shape[1] % key.shape[1] == 0 if grouped else query.shape[1] == key.shape[1]
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and query.dtype in (torch.float16, torch.bfloat16)
        and heads
        and value.shape[3] == query.shape[3] <= 256
        and not (causal and query.shape[2] != key.shape[2])
        and all(one.stride(-1) == 1 or one.shape[-1] == 1 for one in operands)
    )


def _fits_efficient(operands: tuple[torch.Tensor, ...], mask: torch.Tensor | None) -> bool:
    query, key, value = operands
    aligned = _ALIGNMENT // query.element_size()
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and query.shape[1] == key.shape[1]
        and query.shape[3] > 0
        and value.shape[3] > 0
        and query.shape[3] % aligned == 0
        and value.shape[3] % aligned == 0
        and all(one.stride(-1) == 1 for one in (*operands, *(() if mask is None else (mask,))))
        and all(one.storage_offset() % aligned == 0 for one in operands)
    )


def _flash(
    operands: tuple[torch.Tensor, ...],
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Flash attention, its features padded to a multiple of 8."""
    features = operands[0].shape[-1]
    padded = [F.pad(one, (0, -features % 8)) if features % 8 else one for one in operands]
    scale = 1.0 / math.sqrt(features) if scale is None else scale
    made = _aten._scaled_dot_product_flash_attention(*padded, dropout, causal, False, scale=scale)[0]
    return made[..., :features] if features % 8 else made


def _efficient(
    operands: tuple[torch.Tensor, ...],
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    trained = torch.is_grad_enabled() and any(one.requires_grad for one in operands)
    bias = None if mask is None else _bias(mask, operands[0], operands[1])
    return _aten._scaled_dot_product_efficient_attention(*operands, bias, trained, dropout, causal, scale=scale)[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What is added to the scores, in their shape, and aligned as the kernel needs it."""
    if mask.dtype == torch.bool:
        zero = torch.scalar_tensor(0.0, dtype=query.dtype, device=mask.device)
        mask = torch.where(mask.logical_not(), -math.inf, zero)
    mask = mask.expand(*query.shape[:3], key.shape[2])
    if key.shape[2] % _MASK_ALIGNMENT:
        return F.pad(mask, (0, -key.shape[2] % _MASK_ALIGNMENT))[..., : key.shape[2]]
    return mask if all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:3]) else mask.contiguous()
