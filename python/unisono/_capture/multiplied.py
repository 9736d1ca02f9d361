"""Products of the entries of a tensor in a step, whose gradients PyTorch computes in one of two ways by whether there are zeros among them.

Where a gradient may be asked for, the product is one of halves, again and again, whose gradient is that of products of two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def of_halves(
    real: Callable[..., Any],
    x: torch.Tensor,
    dim: int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
    **others: Any,
) -> torch.Tensor:
    """What ``torch.prod`` gives, over a dimension or over all; ``real`` is called where no gradient can be asked for."""
    kind = dtype or x.dtype
    if others or not (torch.is_grad_enabled() and x.requires_grad and kind.is_floating_point):
        given = () if dim is None else (dim, keepdim)
        return real(x, *given, dtype=dtype, **others)
    made = x.to(kind)
    if dim is None or not x.dim():
        made, along = made.reshape(-1), 0
    else:
        along = dim % x.dim()
    while made.shape[along] > 1:
        half, rest = divmod(made.shape[along], 2)
        product = made.narrow(along, 0, half) * made.narrow(along, half, half)
        made = torch.cat([product, made.narrow(along, 2 * half, 1)], along) if rest else product
    if not made.shape[along]:
        return real(x, *(() if dim is None else (dim, keepdim)), dtype=dtype)
    return made if keepdim and dim is not None and x.dim() else made.squeeze(along)


#: PyTorch's functions that this stands for.
FUNCTIONS = (torch.prod, torch.Tensor.prod)
