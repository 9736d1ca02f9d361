"""The linear assignment problem as an operation: which rows of a matrix of costs go to which columns, computed by SciPy on the host."""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define("assignment(Tensor cost, bool maximize) -> (Tensor, Tensor)")


@torch.library.impl(_LIBRARY, "assignment", "CompositeExplicitAutograd")
def _assignment(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in ascending order, ``[min(m, n)]``, and their columns, of ``[m, n]`` costs."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(cost.detach().cpu().numpy(), maximize)
    return torch.as_tensor(rows, device=cost.device), torch.as_tensor(columns, device=cost.device)


@torch.library.register_fake("unisono::assignment", lib=_LIBRARY)
def _types(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    del maximize
    assigned = min(cost.shape)
    return cost.new_empty(assigned, dtype=torch.int64), cost.new_empty(assigned, dtype=torch.int64)
