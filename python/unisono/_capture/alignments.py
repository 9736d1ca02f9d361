"""CTC loss of sequences whose lengths are tensors: PyTorch's operation for these, with targets that are padded.

PyTorch says of that operation that its shapes depend on data. They do for targets that lie one behind the other: how long the longest is
is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException

_aten = torch.ops.aten


def _likelihoods(log_probs: torch.Tensor, targets: torch.Tensor, *_others: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Of ``[frames, batch, classes]`` and ``[batch, targets]``: ``[batch]`` and ``[batch, frames, 2 targets + 1]``."""
    if targets.dim() != 2:
        raise DynamicOutputShapeException(_aten._ctc_loss.Tensor)
    frames, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, frames, 2 * targets.shape[1] + 1)


def _gradients(_grad: torch.Tensor, log_probs: torch.Tensor, *_others: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape)


#: What operations give on tensors without data, in the place of what PyTorch says.
SHAPES: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    _aten._ctc_loss.Tensor: _likelihoods,
    _aten._ctc_loss_backward.Tensor: _gradients,
}


def to_the_left(targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What a mask selects of each row of ``[batch, targets]``, from the left on, and zeros."""
    batch, width = targets.shape
    column = torch.where(mask, mask.cumsum(1) - 1, width)
    return targets.new_zeros(batch, width + 1).scatter(1, column, targets)[:, :width].contiguous()
