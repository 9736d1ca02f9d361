"""Random values, and arguments made of them, to try operations out on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from unisono._capture.calls import CustomCall
from unisono._capture.types import TensorType

#: Calls with more elements than this are tried at smaller sizes.
_MOST_ELEMENTS = 1 << 20
#: The sizes that dimensions with names have then are multiples of this.
_SMALL = 12


class Untried(Exception):  # noqa: N818
    """No random values were found of which an operation computes numbers; it says why."""


def tried(call: CustomCall, names_of: Callable[[int, TensorType], list[str]]) -> tuple[list[Any], list[torch.Tensor]]:
    """Arguments of which an operation computes numbers, and these.

    Args:
        call: a call of it.
        names_of: for an operand, by its number, the names of its dimensions, ``_`` for one that keeps its size.

    Raises:
        Untried: none were found.
    """
    reason = "its results for random operands are not finite"
    for small, positive in _attempts(call):
        args = _arguments(call, names_of, small, positive)
        try:
            made = call.run(args)
        except Exception as error:  # whatever the user's code raises
            reason = f"it fails for random operands: {error}"
            continue
        if all(bool(one.isfinite().all()) for one in made):
            return args, made
    raise Untried(reason)


def _attempts(call: CustomCall) -> Iterator[tuple[bool, bool]]:
    """At which sizes, and whether with positive numbers only, a call is tried."""
    large = sum(math.prod(one.shape) for one in call.tensors()) > _MOST_ELEMENTS
    for small in [True, False] if large else [False]:
        yield small, False
        yield small, True


def _arguments(
    call: CustomCall, names_of: Callable[[int, TensorType], list[str]], small: bool, positive: bool
) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    sizes: dict[str, int] = {}
    made, number = [], 0
    for one in call.args:
        if not isinstance(one, TensorType):
            made.append(one)
            continue
        shape = [
            size
            if not small or name == "_" or size == 1
            else sizes.setdefault(name, min(size, _SMALL * (1 + len(sizes))))
            for name, size in zip(names_of(number, one), one.shape, strict=True)
        ]
        strides = None if small else one.strides
        made.append(random_values(shape, strides, one.dtype, generator, positive=positive).to(call.device))
        number += 1
    return made


def random_values(
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: torch.dtype,
    generator: torch.Generator,
    *,
    positive: bool,
) -> torch.Tensor:
    """A tensor of random values.

    They grow along every dimension, so that shards differ in what is made of all their elements, such as a mean. Whole numbers are 0 and 1,
    which may be indices.

    Args:
        shape: its sizes.
        strides: how it lies in memory, row-major by default.
        dtype: its element type.
        generator: what is drawn from.
        positive: whether numbers with a fraction are from 0.5 on.
    """
    if dtype.is_complex or dtype.is_floating_point:
        values = _rising(shape, torch.complex128 if dtype.is_complex else torch.float64, generator, positive)
    else:
        values = torch.randint(0, 2, tuple(shape), generator=generator)
    if strides is None or 0 in strides:
        return values.to(dtype)
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype).copy_(values)


def _rising(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator, positive: bool) -> torch.Tensor:
    draw = torch.rand if positive else torch.randn
    values = draw(tuple(shape), generator=generator, dtype=dtype) + (0.5 if positive else 0.0)
    for dim, size in enumerate(shape):
        values *= torch.linspace(1, 2, size, dtype=torch.float64).view([-1, *[1] * (len(shape) - dim - 1)])
    return values
