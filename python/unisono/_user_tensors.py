"""The user's own tensors while a step keeps their values sharded: no memory, and whoever reads or writes them is told why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from unisono._capture.places import user_line
from unisono.errors import StepError

#: What may be asked of a tensor whose values are elsewhere.
_ALLOWED = {
    *(
        getattr(torch.Tensor, name).__get__
        for name in ("shape", "dtype", "device", "layout", "ndim", "grad", "grad_fn", "requires_grad", "is_leaf", "_version")
    ),
    *(getattr(torch.Tensor, name).__get__ for name in ("is_cuda", "is_meta", "is_sparse", "is_quantized", "itemsize", "nbytes")),
    torch.Tensor.grad.__set__,  # type: ignore[attr-defined]
    torch.Tensor.grad.__delete__,  # type: ignore[attr-defined]
    torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    *(
        getattr(torch.Tensor, name)
        for name in ("size", "dim", "numel", "nelement", "element_size", "stride", "storage_offset", "is_contiguous")
    ),
    *(getattr(torch.Tensor, name) for name in ("is_floating_point", "is_complex", "requires_grad_", "untyped_storage", "__len__")),
    *(getattr(torch.Tensor, name) for name in ("register_hook", "register_post_accumulate_grad_hook", "get_device")),
    torch.is_floating_point,
    torch.is_complex,
    torch.numel,
}  # fmt: skip


#: Where values are, each with why no other tensor has them.
_SHARDED, _ON_HOST = "sharded", "on the host"
_CAUSES = {
    _SHARDED: "each rank has the memory of its shard only",
    _ON_HOST: "the step has them in memory of the host, and writes into that while it runs",
}


class _Elsewhere:
    """A tensor whose values a step keeps elsewhere."""

    _unisono_name: str
    _unisono_where: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answers what is known without values, and refuses everything else."""
        if func not in _ALLOWED:
            found = next((arg for arg in pytree.tree_iter((args, kwargs)) if isinstance(arg, _Elsewhere)), None)
            name, where = (found._unisono_name, found._unisono_where) if found is not None else ("a tensor", _SHARDED)
            raise _elsewhere(f"`{name}` is used", where)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, **_unused: Any) -> str:  # type: ignore[override]
        return f"<{self._unisono_name}: a step keeps its values {self._unisono_where} until `sync()`>"


class _TensorElsewhere(_Elsewhere, torch.Tensor):
    pass


class _ParameterElsewhere(_Elsewhere, nn.Parameter):
    pass


class _BufferElsewhere(_Elsewhere, nn.Buffer):
    pass


_CLASSES: dict[type, type] = {
    torch.Tensor: _TensorElsewhere,
    nn.Parameter: _ParameterElsewhere,
    nn.Buffer: _BufferElsewhere,
}


class UserTensor:
    """A parameter, buffer or optimizer state of the user's whose values a step keeps sharded, or on the host."""

    def __init__(self, tensor: torch.Tensor, name: str, *, on_host: bool = False) -> None:
        """Takes the tensor as it is; nothing happens to it yet."""
        self.tensor, self._name, self._class = tensor, name, type(tensor)
        self._where = _ON_HOST if on_host else _SHARDED
        self.size, self.stride, self._offset = tensor.size(), tensor.stride(), tensor.storage_offset()
        self._storage: StorageWeakRef | None = None
        self._lent = False
        self._version, self._pointer = tensor._version, tensor.data_ptr()

    @property
    def was_written(self) -> bool:
        """Whether somebody has written into it, a checkpoint say, since it was taken or restored."""
        return self.tensor._version != self._version or self.tensor.data_ptr() != self._pointer

    def give_up(self) -> None:
        """Refuses its use from now on. Its memory is free then, unless another tensor of the user's has it too.

        A tensor that is a part of a larger one, or that cannot say NaN, keeps its memory.
        """
        own = self.tensor.untyped_storage().nbytes() == self.tensor.numel() * self.tensor.element_size()
        if (self._storage is None or self._lent) and own and self.tensor.is_floating_point():
            self._storage = self._storage or StorageWeakRef(self.tensor.untyped_storage())
            self._lent = False
            nothing = torch.full((), torch.nan, dtype=self.tensor.dtype, device=self.tensor.device)
            self.tensor.data = nothing.expand(self.size)
        if self._class in _CLASSES:
            self.tensor._unisono_name = self._name  # type: ignore[attr-defined]
            self.tensor._unisono_where = self._where  # type: ignore[attr-defined]
            self.tensor.__class__ = _CLASSES[self._class]

    def in_order(self, values: torch.Tensor) -> torch.Tensor:
        """Values of its shape, in memory in the order that it has."""
        made = torch.empty_strided(self.size, self.stride, dtype=values.dtype, device=values.device)
        return values if values.stride() == self.stride else made.copy_(values)

    def lend(self) -> None:
        """Makes it an ordinary tensor of its sizes and strides again, whatever its memory holds, until it is given up again."""
        self.tensor.__class__ = self._class
        if self._storage is not None:
            self.tensor.data = torch.empty_strided(
                self.size, self.stride, dtype=self.tensor.dtype, device=self.tensor.device
            )
            self._lent = True

    def restore(self, values: torch.Tensor) -> None:
        """Puts values into it: where it was in memory if another tensor has kept that, else where memory is free."""
        self.tensor.__class__ = self._class
        if self._storage is not None:
            kept = torch.UntypedStorage._new_with_weak_ptr(self._storage.cdata)
            empty = torch.empty(0, dtype=self.tensor.dtype, device=self.tensor.device)
            self.tensor.data = (
                torch.empty_strided(self.size, self.stride, dtype=empty.dtype, device=empty.device)
                if kept is None
                else empty.set_(kept, self._offset, self.size, self.stride)
            )
            self._storage = None
        self.tensor.copy_(values)
        self._version, self._pointer = self.tensor._version, self.tensor.data_ptr()


def elsewhere(like: torch.Tensor, name: str) -> torch.Tensor:
    """A tensor that stands for one of the same shape and type whose values a step keeps sharded."""
    made = torch.full((), torch.nan if like.is_floating_point() else 0, dtype=like.dtype, device=like.device)
    made = made.expand(like.shape)
    made._unisono_name, made._unisono_where = name, _SHARDED  # type: ignore[attr-defined]
    made.__class__ = _TensorElsewhere
    return made


def close_doors(model: nn.Module) -> list[RemovableHandle]:
    """Refuses calls of a model whose values a step keeps, and what would load others, until the handles are removed."""

    def refuse_call(module: nn.Module, arguments: tuple[object, ...]) -> None:
        raise _elsewhere(f"{type(module).__name__} is called")

    def refuse_load(*_unused: Any) -> None:
        raise _elsewhere("a state is loaded into the model")

    loading = [part._register_load_state_dict_pre_hook(refuse_load) for part in model.modules()]
    return [model.register_forward_pre_hook(refuse_call), *loading]


def _elsewhere(what: str, where: str = _SHARDED) -> StepError:
    return StepError(
        f"{what} while a step keeps the values {where}",
        code="U0124",
        place=user_line(),
        cause=_CAUSES[where],
        hint="call `sync()` of the step first, on every rank; `step.save` and `step.state_dict` need none",
    )


def require_values(model: nn.Module | None, optimizers: Sequence[Optimizer]) -> None:
    """Refuses a model or optimizers whose values another step keeps."""
    tensors = [] if model is None else [*model.named_parameters(), *model.named_buffers()]
    states = (state for optimizer in optimizers for state in optimizer.state.values())
    kept = (
        (f"the optimizer's {key}", value) for state in states if isinstance(state, dict) for key, value in state.items()
    )
    for name, tensor in (*tensors, *kept):
        if isinstance(tensor, _Elsewhere):
            raise StepError(
                f"the values of {name} are kept {tensor._unisono_where} by another step",
                code="U0124",
                cause="`parallelize` was called before with the same model, and its step has run",
                hint="call `sync()` of that step first, on every rank",
            )
