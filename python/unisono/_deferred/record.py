"""The operations that initialise tensors, as they were called, on memory that has numbers instead of addresses."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree

from unisono._agreement import fingerprint


@dataclass(frozen=True)
class View:
    """A tensor: a part of recorded memory."""

    memory: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int

    def of(self, storage: torch.UntypedStorage) -> torch.Tensor:
        """The tensor on real memory."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)


@dataclass(frozen=True)
class Given:
    """A tensor with values that an operation was called with, and how often it had been written then."""

    tensor: torch.Tensor
    version: int


@dataclass(frozen=True)
class Operation:
    """One call of an ATen operation.

    Attributes:
        func: the operation.
        args: its positional arguments, with a :class:`View` or :class:`Given` for each tensor.
        kwargs: its named arguments, likewise.
        results: what it returned: a view for each tensor, in order.
        reads: the memory whose values it needs.
        writes: the memory whose values it changes.
        fills: the memory of which it writes every byte without reading any.
        is_random: whether it draws from PyTorch's generator.
        place: ``file:line`` of the user's call.
    """

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[View, ...]
    reads: frozenset[int]
    writes: frozenset[int]
    fills: frozenset[int]
    is_random: bool
    place: str | None

    def touched(self) -> frozenset[int]:
        """All memory that it reads or writes."""
        return self.reads | self.writes

    def text(self) -> str:
        """The same text on every rank that builds the same model."""
        return f"{self.func} {pytree.tree_map(_shown, (self.args, self.kwargs))} -> {self.results}"


class Record:
    """What has been done to the tensors of a model since PyTorch's generators were in a state.

    Attributes:
        start: the states of PyTorch's generators before the first operation, by the kind of device.
        operations: the operations, in order.
        drawn: a number of operations, and the states of the generators when these have drawn their random numbers.
        left: the states that the generators were left in, which no seed gives; none where there is nothing to draw.
        end: the states behind all random numbers, once they have been drawn.
    """

    def __init__(self, start: dict[str, torch.Tensor]) -> None:
        """Starts without any operation."""
        self.start = start
        self.left: dict[str, torch.Tensor] | None = None
        self.end: dict[str, torch.Tensor] | None = None
        self.operations: list[Operation] = []
        self.drawn: tuple[int, dict[str, torch.Tensor]] = (0, start)
        self._numbers: dict[int, int] = {}
        #: A tensor of each memory, held so that no other one gets the same address.
        self._memory: list[torch.Tensor] = []
        self._devices: list[torch.device] = []
        #: The user's own tensors, as far as operations were called with them.
        self._seen: dict[int, dict[int, torch.Tensor]] = {}
        self._counted: dict[int, list[tuple[torch.Tensor, int]]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        """Whether the memory that a tensor has is recorded."""
        return self.number(tensor) is not None

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of the memory that a tensor has, if it is recorded."""
        return self._numbers.get(tensor.untyped_storage()._cdata) if tensor.is_meta else None

    def add(self, tensor: torch.Tensor, device: torch.device) -> int:
        """The number of the memory of a tensor on `meta` that is to be on a device."""
        number = self._numbers.setdefault(tensor.untyped_storage()._cdata, len(self._memory))
        if number == len(self._memory):
            self._memory.append(tensor)
            self._devices.append(device)
        return number

    def view(self, tensor: torch.Tensor) -> View:
        """A tensor of recorded memory."""
        number = self._numbers[tensor.untyped_storage()._cdata]
        return View(number, tensor.dtype, tensor.size(), tensor.stride(), int(tensor.storage_offset()))

    def bytes(self, memory: int) -> int:
        """The size of recorded memory."""
        return self._memory[memory].untyped_storage().nbytes()

    def device(self, memory: int) -> torch.device:
        """Where recorded memory is to be."""
        return self._devices[memory]

    def see(self, tensor: torch.Tensor) -> None:
        """Takes note of a tensor that the user has."""
        self._seen.setdefault(self.view(tensor).memory, {})[id(tensor)] = tensor

    def close(self) -> None:
        """Takes the tensors as they are: they are not to be written from now on."""
        # An alias counts what is written into a tensor, without being one that the user has.
        self._memory = [one.detach() for one in self._memory]
        for memory, seen in self._seen.items():
            aliases = [one.detach() for one in seen.values()]
            self._counted[memory] = [(one, one._version) for one in aliases]
        self._seen = {}

    def is_in_use(self) -> bool:
        """Whether a tensor that it knows is anywhere."""

        def uses(tensor: torch.Tensor) -> int:
            return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]

        # Its own tensor, what it is asked by, and the aliases.
        return any(uses(one) > 2 + len(self._counted.get(number, ())) for number, one in enumerate(self._memory))

    def was_written(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor was written after :meth:`close`, as far as that can be seen."""
        return any(one._version != version for one, version in self._counted.get(self.view(tensor).memory, ()))

    def fingerprint(self) -> str:
        """A hash of the operations and of the values that they were given."""
        return hashlib.blake2b("\n".join(one.text() for one in self.operations).encode(), digest_size=16).hexdigest()


def _shown(argument: Any) -> str:
    """An argument as a text that does not depend on the rank."""
    if isinstance(argument, Given):
        given = argument.tensor
        return f"{given.dtype} {list(given.shape)} {fingerprint(given, sampled=False):x}"
    # Each rank has a device of its own.
    return argument.type if isinstance(argument, torch.device) else repr(argument)
