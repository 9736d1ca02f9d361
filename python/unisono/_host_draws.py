"""Numbers that functions of NumPy and Python draw on the host: an operation that calls such a function.

It gives what the function gives, and the state of its generator behind it.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

_LIBRARY = torch.library.Library("unisono", "FRAGMENT")
_LIBRARY.define("draw_on_host(Tensor state, str call, Tensor[] operands) -> (Tensor, Tensor)")

#: How many 32-bit numbers a Mersenne twister has.
_WORDS = 624


@dataclass(frozen=True)
class NumberIn:
    """An argument that is the number in a tensor without dimensions."""

    tensor: torch.Tensor


class Source(Protocol):
    """A generator that all of a process draws from. Its state is ``[627]`` ``int64``: of a Mersenne twister its words and its position,
    whether there is a number that it has drawn ahead, and the bits of that.
    """

    device: torch.device

    def get_state(self) -> torch.Tensor:
        """Its state."""
        ...

    def set_state(self, state: torch.Tensor) -> object:
        """Goes on from a state."""
        ...


class _OfPython:
    """The generator of `random`."""

    device = torch.device("cpu")

    def get_state(self) -> torch.Tensor:
        _, words, ahead = random.getstate()
        return _as_tensor([*words], ahead)

    def set_state(self, state: torch.Tensor) -> None:
        words, ahead = _from_tensor(state)
        random.setstate((3, tuple(words), ahead))


class _OfNumPy:
    """The generator that the functions of `numpy.random` draw from."""

    device = torch.device("cpu")

    def get_state(self) -> torch.Tensor:
        _, words, position, has_ahead, ahead = _numpy_random().get_state()
        return _as_tensor([*words.tolist(), position], ahead if has_ahead else None)

    def set_state(self, state: torch.Tensor) -> None:
        words, ahead = _from_tensor(state)
        drawn_ahead = (0, 0.0) if ahead is None else (1, ahead)
        _numpy_random().set_state(("MT19937", words[:_WORDS], words[_WORDS], *drawn_ahead))


#: The generators, by the names of their modules.
SOURCES: Mapping[str, Source] = {"random": _OfPython(), "numpy.random": _OfNumPy()}


def _numpy_random() -> Any:
    import numpy

    return numpy.random


def is_known(name: str) -> bool:
    """Whether a generator is the Mersenne twister that it is unless somebody has put another in its place."""
    return name != "numpy.random" or _numpy_random().get_state(legacy=False)["bit_generator"] == "MT19937"


def _as_tensor(words: Sequence[int], ahead: float | None) -> torch.Tensor:
    (bits,) = struct.unpack("<q", struct.pack("<d", ahead or 0.0))
    return torch.tensor([*words, int(ahead is not None), bits], dtype=torch.int64)


def _from_tensor(state: torch.Tensor) -> tuple[list[int], float | None]:
    *words, has_ahead, bits = state.tolist()
    return words, struct.unpack("<d", struct.pack("<q", bits))[0] if has_ahead else None


def named(function: Callable[..., Any], module: str) -> str:
    """The name by which every rank finds a function."""
    return f"{module}:{function.__name__}"


def described(
    source: str, function: str, args: Sequence[Any], kwargs: Mapping[str, Any], made: Any
) -> tuple[str, list[torch.Tensor]] | None:
    """One call of a function as a text, and the tensors that it reads; ``None`` where an argument is neither plain nor one of these.

    Args:
        source: the generator that it draws from.
        function: its name, see :func:`named`.
        args: its positional arguments: plain ones, tensors, and :class:`NumberIn`.
        kwargs: its arguments by name.
        made: what it has given once, which says shape and type of what it gives.
    """
    operands: list[torch.Tensor] = []

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor | NumberIn):
            operands.append(value.tensor if isinstance(value, NumberIn) else value)
            return {"number" if isinstance(value, NumberIn) else "operand": len(operands) - 1}
        if type(value) in (list, tuple):
            return {type(value).__name__: [plain(one) for one in value]}
        if value is None or type(value) in (bool, int, float, str):
            return value
        raise TypeError

    try:
        given = [plain(one) for one in args], {key: plain(one) for key, one in kwargs.items()}
    except TypeError:
        return None
    like = _tensor_of(made)
    shape, dtype = [*like.shape], str(like.dtype).removeprefix("torch.")
    return json.dumps(
        {"source": source, "function": function, "given": given, "shape": shape, "dtype": dtype}
    ), operands


def _tensor_of(made: Any) -> torch.Tensor:
    """What a function has given, as a tensor: numbers of Python's in double precision, or as 64-bit integers."""
    if isinstance(made, bool | int | float):
        return torch.tensor(made, dtype=torch.float64 if isinstance(made, float) else None)
    return torch.as_tensor(made)


@contextlib.contextmanager
def left_alone(source: str) -> Iterator[None]:
    """Leaves a generator as it is."""
    generator = SOURCES[source]
    before = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(before)


@torch.library.impl(_LIBRARY, "draw_on_host", "CompositeExplicitAutograd")
def _draw_on_host(
    state: torch.Tensor, call: str, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    told = json.loads(call)
    tensors = [one.detach().to("cpu", copy=True) for one in operands]

    def value(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        if "operand" in one or "number" in one:
            return tensors[one["operand"]] if "operand" in one else tensors[one["number"]].item()
        ((kind, parts),) = one.items()
        return (list if kind == "list" else tuple)(value(part) for part in parts)

    args, kwargs = told["given"]
    module, _, name = told["function"].partition(":")
    function = getattr(sys.modules[module], name)
    with left_alone(told["source"]):
        generator = SOURCES[told["source"]]
        generator.set_state(state)
        made = _tensor_of(function(*map(value, args), **{key: value(one) for key, one in kwargs.items()}))
        after = generator.get_state()
    kind = getattr(torch, told["dtype"])
    if [*made.shape] != told["shape"] or made.dtype != kind:
        raise RuntimeError(
            f"`{name}` has drawn {made.dtype} of shape {[*made.shape]}, and {kind} of shape {told['shape']} when the step was captured"
        )
    return made.clone().contiguous(), after


@torch.library.register_fake("unisono::draw_on_host", lib=_LIBRARY)
def _types(state: torch.Tensor, call: str, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    del operands
    told = json.loads(call)
    return state.new_empty(told["shape"], dtype=getattr(torch, told["dtype"])), torch.empty_like(state)
