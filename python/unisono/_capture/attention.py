"""Which of its kernels for scaled dot-product attention CUDA takes, where tensors of the processor stand for its own.

As PyTorch documents it at ``torch.nn.functional.scaled_dot_product_attention`` and writes it in its ``transformers/cuda/sdp_utils.cpp``: on
Hopper and Blackwell that of cuDNN, from compute capability 8.0 on flash attention where it can be, else the memory-efficient kernel, else
the operations one by one. What depends on the release of PyTorch is that of the one that captures.

Shapes: query ``[batch, heads, queries, features]``, key and value ``[batch, heads', keys, features]``.
"""

from __future__ import annotations

import functools
import math
import os

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_aten = torch.ops.aten
_HALF = (torch.float16, torch.bfloat16)
#: Flash attention, and products in ``bfloat16``, are there from this compute capability on.
_LEAST = (8, 0)
#: PyTorch prefers attention of later releases of cuDNN than this one.
_PREFERRED_CUDNN = 91500
#: Kernels read 16 bytes at a time.
_ALIGNMENT = 16
#: The padding of masks, in numbers.
_MASK_ALIGNMENT = 16


def on_cuda(
    capability: tuple[int, int] | None,
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
    """Attention by the kernel that CUDA chooses on a GPU of a compute capability; where that is not known, of 8.0."""
    operands = (query, key, value)
    if _fits_all(operands) and not (is_causal and attn_mask is not None):
        if _prefers_cudnn(capability) and _fits_cudnn(operands, capability, dropout_p, grouped=enable_gqa):
            return _cudnn(operands, attn_mask, dropout_p, is_causal, scale)
        wide = _refuses_wide(operands, capability, dropout_p)
        if attn_mask is None and not wide and _fits_flash(operands, capability, causal=is_causal, grouped=enable_gqa):
            return _flash(operands, dropout_p, is_causal, scale)
        if _fits_efficient(operands, attn_mask, capability):
            return _efficient(operands, attn_mask, dropout_p, is_causal, scale)
    with sdpa_kernel(SDPBackend.MATH):
        return _aten.scaled_dot_product_attention.default.decompose(
            *operands, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )


def _prefers_cudnn(capability: tuple[int, int] | None) -> bool:
    """Whether cuDNN's kernel comes first: on Hopper and the Blackwell of data centres, with a cuDNN that is new enough."""
    order = list(torch._C._get_sdp_priority_order())
    if order.index(SDPBackend.CUDNN_ATTENTION.value) < order.index(SDPBackend.FLASH_ATTENTION.value):
        return True
    if capability is None or capability[0] not in (9, 10) or os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") == "1":
        return False
    cuda, minors = torch.version.cuda, (0, 3)
    if cuda is not None and int(cuda.partition(".")[0]) < 13 and capability[1] not in minors:
        return False
    return _cudnn_version() > _PREFERRED_CUDNN


@functools.cache
def _cudnn_version() -> int:
    """The cuDNN of this PyTorch; where it is built without, one that is new enough."""
    if not torch.backends.cuda.is_built():
        return _PREFERRED_CUDNN + 1
    return torch.backends.cudnn.version() or 0


def _grouped_alike(operands: tuple[torch.Tensor, ...], grouped: bool) -> bool:
    query, key, _ = operands
    return query.shape[1] % key.shape[1] == 0 if grouped else query.shape[1] == key.shape[1]


def _fits_cudnn(
    operands: tuple[torch.Tensor, ...], capability: tuple[int, int] | None, dropout: float, *, grouped: bool
) -> bool:
    query, key, value = operands
    features, widest = (query.shape[3], value.shape[3]), 128
    is_hopper_or_later = capability is not None and (capability == (9, 0) or capability[0] == 10)
    fits = max(features) <= widest or (is_hopper_or_later and features == (192, 128))
    return (
        torch.backends.cuda.cudnn_sdp_enabled()
        and not (
            torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
        )
        and query.dtype in _HALF
        and (dropout * 16.0).is_integer()
        and all(one.stride(-1) == 1 or one.shape[-1] == 1 for one in operands)
        and _grouped_alike(operands, grouped)
        and fits
        and all(one % 8 == 0 for one in features)
        and key.shape[2] != 1
        and not (dropout and query.shape[2] == 1)
    )


def _refuses_wide(operands: tuple[torch.Tensor, ...], capability: tuple[int, int] | None, dropout: float) -> bool:
    """Whether flash attention has no backward for so many features, on GPUs with little shared memory."""
    if capability is None or not ((8, 6) <= capability <= (8, 9) or (12, 0) <= capability <= (12, 1)):
        return False
    features = operands[0].shape[3]
    return _is_trained(operands) and features > 192 and (dropout > 0.0 or features <= 224)


def _is_trained(operands: tuple[torch.Tensor, ...]) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in operands)


def _fits_all(operands: tuple[torch.Tensor, ...]) -> bool:
    """Whether types and shapes of query, key and value are such as each kernel needs."""
    query, key, value = operands
    return (
        all(one.dim() == 4 and one.dtype == query.dtype and one.shape[0] == query.shape[0] for one in operands)
        and query.shape[2] > 0
        and key.shape[2] > 0
        and query.shape[3] == key.shape[3]
        and key.shape[:3] == value.shape[:3]
    )


def _fits_flash(
    operands: tuple[torch.Tensor, ...], capability: tuple[int, int] | None, *, causal: bool, grouped: bool
) -> bool:
    query, key, value = operands
    return (
        torch.backends.cuda.flash_sdp_enabled()
        and (capability or _LEAST) >= _LEAST
        and query.dtype in _HALF
        and _grouped_alike(operands, grouped)
        and value.shape[3] == query.shape[3] <= 256
        and not (causal and query.shape[2] != key.shape[2])
        and all(one.stride(-1) == 1 or one.shape[-1] == 1 for one in operands)
    )


def _fits_efficient(
    operands: tuple[torch.Tensor, ...], mask: torch.Tensor | None, capability: tuple[int, int] | None
) -> bool:
    query, key, value = operands
    aligned = _ALIGNMENT // query.element_size()
    is_early = (capability or _LEAST) < _LEAST
    return (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and query.dtype in (torch.float16, torch.float32, *(() if is_early else (torch.bfloat16,)))
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
    bias = None if mask is None else _bias(mask, operands[0], operands[1])
    trained = _is_trained(operands)
    return _aten._scaled_dot_product_efficient_attention(*operands, bias, trained, dropout, causal, scale=scale)[0]


def _cudnn(
    operands: tuple[torch.Tensor, ...],
    mask: torch.Tensor | None,
    dropout: float,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    bias, trained = None if mask is None else _added(mask, operands[0]), _is_trained(operands)
    return _aten._scaled_dot_product_cudnn_attention(*operands, bias, trained, dropout, causal, False, scale=scale)[0]


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """What is added to the scores, in their shape, and aligned as the kernel needs it."""
    mask = _added(mask, query).expand(*query.shape[:3], key.shape[2])
    if key.shape[2] % _MASK_ALIGNMENT:
        return F.pad(mask, (0, -key.shape[2] % _MASK_ALIGNMENT))[..., : key.shape[2]]
    return mask if all(stride % _MASK_ALIGNMENT == 0 for stride in mask.stride()[:3]) else mask.contiguous()


def _added(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """What is added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    zero = torch.scalar_tensor(0.0, dtype=query.dtype, device=mask.device)
    return torch.where(mask.logical_not(), -math.inf, zero)
