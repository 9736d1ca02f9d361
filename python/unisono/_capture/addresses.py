"""Where tensors lie in memory, for code that tells them apart by that while a step is traced: nothing lies anywhere then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.places import user_line
from unisono.errors import StepError

#: What is no memory's address, by which what follows is aligned as PyTorch aligns memory.
_ABOVE = 6


class Addresses:
    """Answers where tensors are: those of the user's where they are outside of the trace, others somewhere else."""

    def __init__(self, own: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Takes what is traced with what has its values."""
        self._own = {_memory(traced)._cdata: values for traced, values in own if _lies_somewhere(traced, values)}

    def answer(self, func: Any, *tensors: torch.Tensor) -> Any:
        """What one of :data:`ASKING` gives."""
        return _QUESTIONS[func](self, *tensors)

    def of(self, tensor: torch.Tensor) -> Memory:
        """The memory of a tensor without data."""
        memory = _memory(tensor)
        own = self._own.get(memory._cdata)
        if own is None:
            return Memory(memory._cdata << _ABOVE, memory._cdata, memory.nbytes(), tensor.device)
        theirs = _memory(own)
        return Memory(theirs.data_ptr(), theirs._cdata, theirs.nbytes(), own.device)


class Memory:
    """Stands for the memory of a tensor."""

    def __init__(self, address: int, number: int, size: int, device: torch.device) -> None:
        self._address, self._cdata, self._size, self.device = address, number, size, device

    def data_ptr(self) -> int:
        """Where it begins."""
        return self._address

    def nbytes(self) -> int:
        """How many bytes it has."""
        return self._size

    size = __len__ = nbytes

    def untyped(self) -> Memory:
        """Itself."""
        return self

    @property
    def _untyped_storage(self) -> Memory:
        return self

    def __eq__(self, other: object) -> bool:
        """Whether both are the same memory."""
        return isinstance(other, Memory) and other._cdata == self._cdata

    def __hash__(self) -> int:
        """A number of the memory's own."""
        return hash(self._cdata)

    def __getattr__(self, name: str) -> Any:
        """Nothing else, as there is none."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise StepError(
            f"the step goes on with the memory of a tensor (`untyped_storage().{name}`)",
            code="U0119",
            place=user_line(),
            cause="its Python code runs once, while the step is captured, on tensors without data",
            hint="use operations on the tensor itself (`t.copy_(..)`, `t.detach()`)",
        )


def _memory(tensor: torch.Tensor) -> torch.UntypedStorage:
    return torch._C.TensorBase.untyped_storage(tensor)


def _lies_somewhere(traced: torch.Tensor, values: torch.Tensor) -> bool:
    strided = traced.layout == torch.strided and values.layout == torch.strided
    return strided and isinstance(traced, FakeTensor) and not isinstance(values, FakeTensor)


def _address(addresses: Addresses, tensor: torch.Tensor) -> int:
    return addresses.of(tensor).data_ptr() + int(tensor.storage_offset()) * tensor.element_size()


def _is_set_to(_: Addresses, tensor: torch.Tensor, other: torch.Tensor) -> bool:
    def where(one: torch.Tensor) -> Any:
        return _memory(one)._cdata, one.storage_offset(), one.shape, one.stride()

    return where(tensor) == where(other)


_QUESTIONS = {
    torch.Tensor.data_ptr: _address,
    torch.Tensor.untyped_storage: Addresses.of,
    torch.Tensor.storage: Addresses.of,
    torch.Tensor._typed_storage: Addresses.of,
    torch.Tensor.is_set_to: _is_set_to,
}
#: The functions that ask where a tensor is.
ASKING = frozenset(_QUESTIONS)
