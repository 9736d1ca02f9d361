"""CTC loss as operations whose results have the sizes that they are said to have.

PyTorch's own makes its table of likelihoods as wide as the longest target is, which ranks that have other samples do not agree on, and
which nobody knows beforehand of lengths that are tensors.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, bool zero_infinity) "
    "-> (Tensor, Tensor)"
)
_LIBRARY.define("padded_targets(Tensor targets, Tensor lengths, int width) -> Tensor")


@torch.library.impl(_LIBRARY, "ctc_loss", "CompositeExplicitAutograd")
def _ctc_loss(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int,
    zero_infinity: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of ``[frames, batch, classes]`` and padded ``[batch, width]``: ``[batch]``, and ``[batch, frames, 2 width + 1]`` for backward."""
    loss, alpha = torch.ops.aten._ctc_loss.Tensor(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    return loss, F.pad(alpha, (0, 2 * targets.shape[1] + 1 - alpha.shape[2]))


@torch.library.register_fake("unisono::ctc_loss", lib=_LIBRARY)
def _types_of_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, *_others: object
) -> tuple[torch.Tensor, torch.Tensor]:
    frames, batch, _ = log_probs.shape
    return log_probs.new_empty(batch), log_probs.new_empty(batch, frames, 2 * targets.shape[1] + 1)


@torch.library.impl(_LIBRARY, "padded_targets", "CompositeExplicitAutograd")
def _padded_targets(targets: torch.Tensor, lengths: torch.Tensor, width: int) -> torch.Tensor:
    """Targets that lie one behind the other, as rows of ``[batch, width]``; of a longer one, as much as there is room for."""
    if int(lengths.sum()) != len(targets):
        raise RuntimeError(
            f"the lengths of targets have the sum {int(lengths.sum())}, and there are {len(targets)} targets"
        )
    padded = targets.new_zeros(len(lengths), width)
    for row, target in zip(padded, targets.split(lengths.tolist()), strict=True):
        row[: len(target)] = target[:width]
    return padded


@torch.library.register_fake("unisono::padded_targets", lib=_LIBRARY)
def _types_of_targets(targets: torch.Tensor, lengths: torch.Tensor, width: int) -> torch.Tensor:
    return targets.new_empty(len(lengths), width)
