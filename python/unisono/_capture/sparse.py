"""Gradients that eager PyTorch has sparse (``nn.Embedding(sparse=True)``) are dense in a captured step, where that makes no difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.optim import SGD, Adagrad, Optimizer, SparseAdam
from torch.overrides import TorchFunctionMode

from unisono._capture.places import user_line, warn_user
from unisono.errors import CaptureNotice, UnsupportedError

#: Functions that make sparse gradients: the positions of the weight and of ``sparse``.
_MAKERS: dict[Any, tuple[int, int]] = {
    F.embedding: (1, 6),
    F.embedding_bag: (1, 7),
    torch.embedding: (0, 4),
}


class DenseGradients(TorchFunctionMode):
    """Lets functions that make sparse gradients make dense ones."""

    def __init__(self, optimizers: Sequence[Optimizer], told: set[str]) -> None:
        """Takes the optimizers, whose parameters are traced ones already, and the places of which the user has been told."""
        super().__init__()
        groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
        self._owners = {id(one): (optimizer, group) for optimizer, group in groups for one in group["params"]}
        self._told = told

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function."""
        kwargs = kwargs or {}
        if func not in _MAKERS:
            return func(*args, **kwargs)
        weight, sparse = _MAKERS[func]
        if not (kwargs.get("sparse") or (len(args) > sparse and args[sparse])):
            return func(*args, **kwargs)
        self._require_equal(kwargs["weight"] if "weight" in kwargs else args[weight])
        self._tell()
        if len(args) > sparse:
            return func(*args[:sparse], False, *args[sparse + 1 :], **kwargs)
        return func(*args, **{**kwargs, "sparse": False})

    def _require_equal(self, weight: Any) -> None:
        """Refuses a parameter whose optimizer does something else with a sparse gradient than with a dense one."""
        optimizer, group = self._owners.get(id(weight), (None, {}))
        if optimizer is None or isinstance(optimizer, SparseAdam):  # which is refused by itself
            return
        name = type(optimizer).__name__
        decay = group.get("weight_decay", 0)
        if type(optimizer) not in (SGD, Adagrad):
            why = f"{name} does not do with a sparse gradient what it does with a dense one; SGD and Adagrad do"
        elif isinstance(decay, torch.Tensor) or decay:
            why = f"PyTorch refuses weight decay with sparse gradients, and {name} has one"
        else:
            return
        raise UnsupportedError(
            "the step makes a sparse gradient of an embedding",
            code="U0113",
            place=user_line(),
            cause=f"a captured step has it dense, because the size of a sparse one depends on data; {why}",
            hint="make the gradient dense: `nn.Embedding(.., sparse=False)`",
        )

    def _tell(self) -> None:
        place = user_line() or ""
        if place not in self._told:
            self._told.add(place)
            warn_user(
                "a gradient that is sparse in eager PyTorch is dense in the captured step: the same numbers, in the memory of all rows",
                CaptureNotice,
            )
