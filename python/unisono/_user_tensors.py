"""The user's own tensors while a step keeps their values in parts: NaN in place of stale numbers, and no memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer

from unisono.errors import StepError

_MARK = "_unisono_holds"


class UserTensor:
    """A parameter, buffer or optimizer state of the user's whose values a step keeps in parts."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Takes the tensor as it is; nothing happens to it yet."""
        self.tensor = tensor
        self._size, self._stride, self._offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self._storage: StorageWeakRef | None = None
        self._version = tensor._version

    @property
    def was_written(self) -> bool:
        """Whether somebody has written into it, a checkpoint say, since it was taken or restored."""
        return self.tensor._version != self._version

    def give_up(self) -> None:
        """Leaves NaN in it. Its memory is free then, unless another tensor of the user's has it too.

        A tensor that is a part of a larger one, or that cannot say NaN, stays as it is.
        """
        own = self.tensor.untyped_storage().nbytes() == self.tensor.numel() * self.tensor.element_size()
        if self._storage is None and own and self.tensor.is_floating_point():
            self._storage = StorageWeakRef(self.tensor.untyped_storage())
            nothing = torch.full((), torch.nan, dtype=self.tensor.dtype, device=self.tensor.device)
            self.tensor.data = nothing.expand(self._size)
            setattr(self.tensor, _MARK, True)

    def restore(self, values: torch.Tensor) -> None:
        """Puts values into it: where it was in memory if another tensor has kept that, else where memory is free."""
        if self._storage is not None:
            kept = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
            empty = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device)
            self.tensor.data = (
                torch.empty_strided(self._size, self._stride, dtype=empty.dtype, device=empty.device)
                if kept is None
                else empty.set_(kept, self._offset, self._size, self._stride)
            )
            self._storage = None
            delattr(self.tensor, _MARK)
        self.tensor.copy_(values)
        self._version = self.tensor._version


def refuse_use(module: nn.Module, arguments: tuple[object, ...]) -> None:
    """A hook before the forward pass of a model whose values a step keeps."""
    raise StepError(
        f"{type(module).__name__} is called while a step keeps its values in parts",
        code="U0124",
        cause="each rank has the memory of its part only, and the model's own tensors hold NaN",
        hint="call `sync()` of the step first, on every rank",
    )


def require_values(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> None:
    """Refuses a model or optimizers whose values another step keeps."""
    tensors = [] if model is None else [*model.named_parameters(), *model.named_buffers()]
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    kept = ((f"the optimizer's {key}", value) for state in states for key, value in state.items())
    for name, tensor in (*tensors, *kept):
        if hasattr(tensor, _MARK):
            raise StepError(
                f"the values of {name} are kept in parts by another step",
                code="U0124",
                cause="`parallelize` was called before with the same model, and its step has run",
                hint="call `sync()` of that step first, on every rank",
            )
