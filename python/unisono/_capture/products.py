"""Products of groups of matrices, which libraries make by an operation of their own while code is compiled."""

from __future__ import annotations

from typing import Any

import torch
from torch._meta_registrations import meta_grouped_mm
from torch.overrides import TorchFunctionMode

#: Operations that are, of rows, matrices and offsets, what ``torch.nn.functional.grouped_mm`` is; for compilers that cannot have that.
_INSTEAD = {"transformers::grouped_mm_fallback"}
#: What PyTorch's kernels compute in, and the bytes to which they want rows aligned.
_TYPES, _ALIGNED = (torch.bfloat16, torch.float16, torch.float32), 16


class GroupedProducts(TorchFunctionMode):
    """Has PyTorch's own operation captured, which the same code takes where it is not compiled."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function, or what stands for it."""
        kwargs = kwargs or {}
        if _name(func) in _INSTEAD:
            rows, matrices, offsets = (*args, *kwargs.values())
            if _fits(rows) and _fits(matrices):
                return torch.ops.aten._grouped_mm(rows, matrices, offsets.to(torch.int32))
        return func(*args, **kwargs)


def _name(func: Any) -> str:
    if isinstance(func, torch._ops.OpOverloadPacket):
        return func._qualified_op_name
    return func.name() if isinstance(func, torch._ops.OpOverload) else ""


def _fits(operand: torch.Tensor) -> bool:
    rows = [size for size in operand.shape[-2:] if operand.dim() == 3] or [operand.shape[-1]]
    return operand.dtype in _TYPES and all(size * operand.element_size() % _ALIGNED == 0 for size in rows)


def shapes(
    one: torch.Tensor,
    other: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """What a product of groups is like. PyTorch's own shape function knows of 16 bits only, its kernels of 32 too."""
    if one.dtype == torch.bfloat16:
        return meta_grouped_mm(one, other, offs, bias, out_dtype)
    groups = [one.shape[0]] if one.dim() == 3 else [] if offs is None else [offs.shape[0]]
    sizes = [one.shape[-2], other.shape[-1]]
    return one.new_empty([*groups, *sizes] if one.dim() == other.dim() else sizes, dtype=out_dtype or one.dtype)
