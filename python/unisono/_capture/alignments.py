"""CTC loss in a step: operations of one type for lengths that are tensors and for numbers, for targets that are padded and for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from unisono import _alignments as _alignments  # the operations

_aten = torch.ops.aten


#: PyTorch's functions of CTC loss.
FUNCTIONS = (F.ctc_loss, torch.ctc_loss)
_ARGUMENTS = ("log_probs", "targets", "input_lengths", "target_lengths", "blank", "reduction", "zero_infinity")


def by_tensors(function: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """CTC loss by lengths that are tensors, and targets that are padded where their lengths are numbers."""
    given = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
    targets, lengths = given["targets"], given["target_lengths"]
    for name in ("input_lengths", "target_lengths"):
        if not isinstance(given[name], torch.Tensor):
            given[name] = torch.tensor([*given[name]], dtype=torch.int64, device=targets.device)
    if targets.dim() == 1 and not isinstance(lengths, torch.Tensor):
        width = max(1, *lengths)
        given["targets"] = torch.ops.unisono.padded_targets(targets, given["target_lengths"], width)
    return function(**given)


def likelihoods(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    lengths: torch.Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What stands for PyTorch's operation: one of padded targets, whose results have sizes that are known."""
    targets, frames, lengths = _padded(log_probs, targets, frames, lengths)
    return torch.ops.unisono.ctc_loss(log_probs, targets, frames, lengths, blank, zero_infinity)


def gradient(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    frames: torch.Tensor,
    lengths: torch.Tensor,
    *others: Any,
) -> torch.Tensor:
    """The same of PyTorch's operation for the gradient of frames."""
    targets, frames, lengths = _padded(log_probs, targets, frames, lengths)
    return _aten._ctc_loss_backward.Tensor(grad, log_probs, targets, frames, lengths, *others)


def _padded(
    log_probs: torch.Tensor, targets: torch.Tensor, frames: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Targets, ``[batch, width]``; how many frames samples have, ``[batch]``, and how many labels, ``[batch]``."""
    frames, lengths = frames.reshape(-1), lengths.reshape(-1)
    if targets.dim() == 1:
        # A target with more labels than there are frames has no alignment, however many more.
        width = max(1, min(len(targets), log_probs.shape[0] + 1))
        targets = torch.ops.unisono.padded_targets(targets, lengths, width)
        lengths = lengths.clamp(max=width)
    return targets, frames, lengths


def _gradients(_grad: torch.Tensor, log_probs: torch.Tensor, *_others: Any) -> torch.Tensor:
    return log_probs.new_empty(log_probs.shape)


#: What operations give on tensors without data, in the place of what PyTorch says: that it depends on data.
SHAPES: dict[torch._ops.OpOverload, Callable[..., Any]] = {_aten._ctc_loss_backward.Tensor: _gradients}


def to_the_left(targets: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What a mask selects of each row of ``[batch, targets]``, from the left on, and zeros."""
    batch, width = targets.shape
    column = torch.where(mask, mask.cumsum(1) - 1, width)
    return targets.new_zeros(batch, width + 1).scatter(1, column, targets)[:, :width].contiguous()
