"""Matching in the middle of a step: what SciPy's ``linear_sum_assignment`` gives for costs that are being traced is an operation.

Losses of detectors match predictions to targets so. How many pairs there are follows from the shape of the costs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unisono import _assignment as _assignment  # the operation

_NAME = "linear_sum_assignment"


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Lets it be an operation wherever a module that is loaded has it under its name."""
    real = getattr(sys.modules.get("scipy.optimize"), _NAME, None)
    with contextlib.ExitStack() as stack:
        if real is not None:
            for module in [*sys.modules.values()]:
                if getattr(module, "__dict__", {}).get(_NAME) is real:
                    stack.enter_context(mock.patch.dict(vars(module), {_NAME: _instead(real)}))
        yield


def _instead(real: Any) -> Any:
    def linear_sum_assignment(cost_matrix: Any, maximize: bool = False) -> Any:
        if not isinstance(cost_matrix, FakeTensor):
            return real(cost_matrix, maximize)
        if cost_matrix.dim() != 2:
            raise ValueError(f"expected a matrix (2-D array), got a {cost_matrix.dim()} array")
        return torch.ops.unisono.assignment(cost_matrix.detach(), bool(maximize))

    return linear_sum_assignment
