"""``masked_scatter`` of whole rows, as models put what they have seen in the place of tokens: as a look-up of rows, which ranks can share.

Which element of the source a position takes follows from the whole mask. Of whole rows that is a number for each row, and what is looked up
can be sharded as embeddings are.
"""

from __future__ import annotations

import torch

#: The functions that are looked up so, and whether each writes into its tensor.
SCATTERS = {torch.masked_scatter: False, torch.Tensor.masked_scatter: False, torch.Tensor.masked_scatter_: True}


def scattered(tensor: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor | None:
    """What ``masked_scatter`` makes of ``[.., features]`` where a mask selects whole rows; ``None`` for other masks.

    A source with fewer rows than are selected is an error of the look-up, as it is one of ``masked_scatter``.
    """
    is_alike = tensor.dim() > 1 and mask.dim() == tensor.dim() and mask.shape[:-1] == tensor.shape[:-1]
    if not is_alike or mask.dtype != torch.bool or source.dtype != tensor.dtype or source.device != tensor.device:
        return None
    features = tensor.shape[-1]
    is_of_rows = features > 1 and (mask.shape[-1] == 1 or mask.stride(-1) == 0)
    if not is_of_rows or source.numel() == 0 or source.numel() % features:
        return None
    rows = mask[..., 0]
    number = (rows.flatten().cumsum(0) - 1).clamp(min=0).reshape(rows.shape)
    return torch.where(rows.unsqueeze(-1), torch.nn.functional.embedding(number, source.reshape(-1, features)), tensor)
