"""The updates of ``torch.optim.Adafactor`` and of Hugging Face's in tensor operations alone.

They read step counts and norms back as Python numbers and compare those. Here they stay 0-dim tensors of double precision, which
is the precision of Python's numbers. The algorithm is that of https://arxiv.org/abs/1804.04235 as ``torch.optim.Adafactor`` documents it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.optim import _adafactor


@contextmanager
def traceable() -> Iterator[None]:
    """Puts the update below in the place of PyTorch's, and the rate in that of Hugging Face's."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(_adafactor, "adafactor", adafactor))
        others = getattr(sys.modules.get("transformers.optimization"), "Adafactor", None)
        if others is not None:
            stack.enter_context(mock.patch.object(others, "_get_lr", staticmethod(_rate_of_others)))
        yield


def _rate_of_others(group: dict[str, Any], state: dict[str, Any]) -> Any:
    """The learning rate of a parameter as ``transformers.optimization.Adafactor`` documents it."""
    # A count may be what stands for a number, which `torch.tensor` takes.
    count = state["step"]
    rate, step = group["lr"], count.double() if isinstance(count, Tensor) else torch.tensor(count, dtype=torch.float64)
    if group["relative_step"]:
        rate = _at_most(1 / step.sqrt(), 1e-6 * step if group["warmup_init"] else 1e-2)
    return rate * _at_least(state["RMS"].double(), group["eps"][1]) if group["scale_parameter"] else rate


def adafactor(
    params: list[Tensor],
    grads: list[Tensor],
    row_vars: list[Tensor | None],
    col_vars: list[Tensor | None],
    variances: list[Tensor | None],
    state_steps: list[Tensor],
    *,
    eps1: float | None,
    maximize: bool,
    **settings: Any,
) -> None:
    """Updates the parameters of one group and their state in place; called as PyTorch's own function of this name is."""
    for param, given, row_var, col_var, variance, step in zip(
        params, grads, row_vars, col_vars, variances, state_steps, strict=True
    ):
        # The first parameter's type decides for all of them, as in PyTorch.
        eps1 = torch.finfo(param.dtype).eps if eps1 is None else eps1
        grad = -given if maximize else given
        step.add_(1)
        decay = step ** settings["beta2_decay"]
        if row_var is not None and col_var is not None:
            estimate = _factored(grad, row_var, col_var, decay, eps1)
        else:
            assert variance is not None, "a vector's variance is not factored"
            _lerp_(variance, grad * grad, decay)
            estimate = variance
        update = estimate.clamp(min=eps1 * eps1).rsqrt() * grad
        _apply_(param, update, step, **settings)


def _factored(grad: Tensor, row_var: Tensor, col_var: Tensor, decay: Tensor, eps1: float) -> Tensor:
    """The variances (``[.., m, n]``) of which ``row_var`` (``[.., m, 1]``) and ``col_var`` (``[.., 1, n]``) are kept."""
    for var, dim in ((row_var, -1), (col_var, -2)):
        _lerp_(var, torch.norm(grad, dim=dim, keepdim=True).square() / grad.size(dim), decay)
    return row_var @ col_var / row_var.mean(dim=-2, keepdim=True).clamp(min=eps1)


def _apply_(
    param: Tensor,
    update: Tensor,
    step: Tensor,
    *,
    lr: Tensor,
    d: float,
    eps2: float,
    weight_decay: float,
    foreach: bool | None = None,
    **_unused: Any,
) -> None:
    """Adds the update, of a size that goes with the parameter's, clipped at ``d``."""
    # PyTorch decays the weights after it has measured them.
    scale = _at_least(param.norm(2).double() / param.numel() ** 0.5, eps2)
    if weight_decay != 0:
        param.mul_(1 - lr * weight_decay)
    rate = _at_most(1 / step**0.5, lr)
    clipped = _at_least(update.norm(2).double() / (update.numel() ** 0.5 * d), 1.0)
    factor = -(scale * rate) / clipped
    if foreach:  # rounds the product, which shows in half precision
        param.add_(update * factor)
    else:
        param.add_(update, alpha=factor)  # type: ignore[arg-type]


def _lerp_(tensor: Tensor, end: Tensor, weight: Tensor) -> None:
    """``tensor.lerp_(end, weight)`` with a weight of double precision, as it is for a Python number."""
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    tensor.copy_(torch.lerp(tensor.to(wide), end.to(wide), weight.to(wide)))


def _at_least(value: Tensor, bound: float) -> Tensor:
    """Python's ``max(bound, value)``, which is the bound for what is not a number."""
    return torch.where(value > bound, value, bound)


def _at_most(value: Tensor, bound: Tensor | float) -> Tensor:
    """Python's ``min(bound, value)``."""
    return torch.where(value < bound, value, bound)
