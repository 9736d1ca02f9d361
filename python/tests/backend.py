"""Functions that ``torch.compile(.., backend="unisono")`` makes, for tests of them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from unisono.errors import CompileNotice


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Nothing is compiled yet, and what falls back to PyTorch fails."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", CompileNotice)
        yield


def compiled(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="unisono", **settings)
