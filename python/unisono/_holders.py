"""Where the user has the tensors of state, and whether they are still there: a step goes on with those that it was captured with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from unisono import _native
from unisono._capture.inputs import StepInput
from unisono._placements import Layout
from unisono.errors import StepError


class Holders:
    """The entries of modules and optimizers that hold tensors of state, and the memory that a step shares with them."""

    def __init__(
        self,
        model: nn.Module | None,
        optimizers: Sequence[Optimizer],
        state: Sequence[tuple[StepInput, Layout, torch.Tensor]],
    ) -> None:
        """Takes them as they are, and the state as it is bound: inputs, layouts and this rank's parts."""
        names = {id(item.tensor): item.name for item, _, _ in state if not item.paths}
        held = (
            [part for module in model.modules() for part in (module._parameters, module._buffers)]
            if model is not None
            else []
        )
        held += [values for optimizer in optimizers for values in optimizer.state.values()]
        held += [module._modules for module in model.modules()] if model is not None else []
        entries = [
            (holder, key, value)
            for holder in held
            for key, value in holder.items()
            if isinstance(value, torch.Tensor | nn.Module)
        ]
        self._entries, self._watched = entries, _native.Entries(entries)
        self._names = names
        with torch._C.DisableTorchFunctionSubclass():  # what is given up already has no values, but an address
            self._shared = [
                (position, item)
                for position, (item, _, part) in enumerate(state)
                if item.cls != "constant" and part.data_ptr() == item.tensor.data_ptr()
            ]
        self._tensors = [item.tensor for _, item in self._shared]
        self._pointers = [tensor.data_ptr() for tensor in self._tensors]
        self._kinds = [(tensor.shape, tensor.dtype) for tensor in self._tensors]

    def require(self) -> None:
        """Refuses a step when a tensor of state is no longer where it was."""
        other = self._watched.first_other()
        if other is not None:
            _, key, tensor = self._entries[other]
            raise StepError(
                f"`{self._names.get(id(tensor), key)}` is another {'module' if isinstance(tensor, nn.Module) else 'tensor'}",
                code="U0122",
                cause="the step goes on with the one that was there when it was captured",
                hint="write into it (`t.copy_(..)` under `torch.no_grad()`), or call `sync` and then `parallelize` again",
            )

    def all_there(self) -> bool:
        """Whether every entry still holds its tensor."""
        return self._watched.first_other() is None

    def moved(self) -> dict[int, torch.Tensor]:
        """Tensors whose memory the user has replaced (``p.data = ..``), by their position in the state; refuses other types."""
        now = [tensor.data_ptr() for tensor in self._tensors]
        if now == self._pointers:
            return {}
        for (_, item), tensor, (shape, dtype) in zip(self._shared, self._tensors, self._kinds, strict=True):
            if (tensor.shape, tensor.dtype) != (shape, dtype):
                raise StepError(
                    f"`{item.name}` is {tensor.dtype} of shape {list(tensor.shape)}",
                    code="U0122",
                    cause=f"it was {dtype} of shape {list(shape)} when the step was captured",
                    hint="keep its shape and type, or call `sync` and then `parallelize` again",
                )
        before, self._pointers = self._pointers, now
        changed = [index for index, pointer in enumerate(now) if pointer != before[index]]
        return {self._shared[index][0]: self._tensors[index].detach() for index in changed}
