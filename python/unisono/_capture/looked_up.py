"""Places in tensors that the step computes: ``x[:, best]``, ``queue[:, p : p + n] = keys`` with numbers that nobody knows beforehand.

What is there is looked up, which copies it, where PyTorch gives a view. A step that writes into the copy must put it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.known import follows_from_constants
from unisono._capture.number import Number
from unisono._capture.places import user_line
from unisono.errors import StepError


@dataclass(frozen=True)
class Span:
    """As many places along a dimension as are known, from one on that is a tensor without dimensions."""

    start: torch.Tensor
    length: int

    def places(self, device: torch.device) -> torch.Tensor:
        """The places, ``[length]``."""
        return self.start.to(device, torch.int64) + torch.arange(self.length, device=device)


def span_of(part: Any, tensor_of: Callable[[Number], Any]) -> Any:
    """A slice ``[p : p + n]`` as a span, with ``tensor_of`` of its beginning; anything else as it is."""
    if (
        not isinstance(part, slice)
        or part.step is not None
        or type(part.start) is not Number
        or type(part.stop) is not Number
    ):
        return part
    kind, *operands = part.stop.expression
    lengths = [one[1] for one in operands if one != part.start.expression] if kind == "add" else []
    is_known = len(lengths) == 1 and part.start.expression in operands and ["constant", lengths[0]] in operands
    if not is_known or type(lengths[0]) is not int or lengths[0] < 0:
        return part
    start = tensor_of(part.start)
    return Span(start, lengths[0]) if isinstance(start, torch.Tensor) else part


def is_a_place(index: Any) -> bool:
    """Whether an index has whole numbers in tensors without dimensions, or spans, beside slices and Python's numbers alone."""
    parts = parts_of(index)
    return any(map(_is_computed, parts)) and all(
        isinstance(one, slice) or type(one) is int or _is_computed(one) for one in parts
    )


def parts_of(index: Any) -> tuple[Any, ...]:
    """What an index says of one dimension after the other."""
    return index if isinstance(index, tuple) else (index,)


def _is_computed(one: Any) -> bool:
    if type(one) is Span:
        return True
    whole = type(one) is FakeTensor and one.dim() == 0 and one.dtype != torch.bool
    return whole and not (one.is_floating_point() or one.is_complex()) and not follows_from_constants(one)


def looked_up(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """What is at a place: PyTorch would read the numbers."""
    tensor, computed = _within(tensor, index)
    for dim, one in computed:
        tensor = tensor.index_select(dim, _places(one, tensor, dim))
    return tensor.squeeze([dim for dim, one in computed if type(one) is not Span])


def put(tensor: torch.Tensor, index: Any, value: Any) -> None:
    """Writes a number, or a tensor that is broadcast, to a place."""
    tensor, computed = _within(tensor, index)
    sizes = dict(enumerate(tensor.shape)) | {dim: one.length for dim, one in computed if type(one) is Span}
    numbers = [dim for dim, one in computed if type(one) is not Span]
    new = torch.as_tensor(value, device=tensor.device).to(tensor.dtype)
    new = new.expand([size for dim, size in sizes.items() if dim not in numbers])
    for dim in numbers:
        new = new.unsqueeze(dim)
    _put(tensor, computed, new)


def _put(tensor: torch.Tensor, computed: Sequence[tuple[int, Any]], new: torch.Tensor) -> None:
    (dim, one), *others = computed
    places = _places(one, tensor, dim)
    if others:
        part = tensor.index_select(dim, places)
        _put(part, others, new)
        new = part
    tensor.index_copy_(dim, places, new)


def _within(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[tuple[int, Any]]]:
    """The part of a tensor, as a view, that an index leaves with all of the dimensions in which it has places, and these."""
    parts = parts_of(index)
    view = tuple(slice(None) if _is_computed(one) else one for one in parts)
    dims = [one for one in parts if type(one) is not int]
    return tensor[view], [(dim, one) for dim, one in enumerate(dims) if _is_computed(one)]


def _places(one: Any, tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """The places along a dimension, ``[places]``; a number that is less than zero counts from behind."""
    if type(one) is Span:
        return one.places(tensor.device)
    number = one.to(torch.int64)
    return torch.where(number < 0, number + tensor.shape[dim], number).reshape(1).to(tensor.device)


class LookedUp:
    """What a step has looked up where PyTorch gives a view: it must not write into it, but to put it back at once (``x[i] += 1``)."""

    def __init__(self) -> None:
        """Starts with nothing looked up."""
        #: By its memory: what was looked up, in which tensor and at which index.
        self._found: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}
        self._written: dict[int, str | None] = {}

    def note(self, made: torch.Tensor, tensor: torch.Tensor, index: Any) -> None:
        """Notes what was looked up, by the index as the step has it."""
        self._found[_memory(made)] = made, tensor, index

    def note_written(self, args: Sequence[Any], written: Sequence[int]) -> None:
        """Notes which of it an operation writes into; ``written`` are the positions of the arguments that it changes."""
        if not self._found:
            return
        for position in written:
            one = args[position] if position < len(args) else None
            for tensor in one if isinstance(one, list | tuple) else [one]:
                if isinstance(tensor, torch.Tensor) and _memory(tensor) in self._found:
                    self._written.setdefault(_memory(tensor), user_line())

    def note_put_back(self, tensor: torch.Tensor, index: Any, value: Any) -> None:
        """Notes what the step puts where."""
        key = _memory(value) if isinstance(value, torch.Tensor) else None
        if key in self._written and self._found[key][1] is tensor and self._found[key][2] is index:
            del self._written[key]

    def require_put_back(self) -> None:
        """Refuses a step that has written into what it has looked up."""
        for place in self._written.values():
            raise StepError(
                "the step writes in place into a part of a tensor at a place that it computes",
                code="U0101",
                place=place,
                cause="the place is not known while the step is captured, so that the part is a copy, and the tensor would stay as it was",
                hint="assign to the part: `x[i] = value`, `x[i] += value`",
            )


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
