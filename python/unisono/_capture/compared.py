"""What is compared of a value that a step's code reads: whether it is another one now, where it may have been changed in place too."""

from __future__ import annotations

import array
import enum
import functools
import random
import sys
import types
from collections import deque
from typing import Any, NamedTuple

import torch

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
SEQUENCES = (list, tuple, deque)
#: Entries of a container, beyond which only how many there are is looked at.
MOST_ENTRIES = 1000
#: Bytes of an array, beyond which only which one it is is looked at.
_MOST_BYTES = 1 << 20
_PLAIN = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    enum.Enum,
    slice,
    range,
    torch.dtype,
    torch.device,
    types.BuiltinFunctionType,
)


class Array(NamedTuple):
    """What is compared of an array: of NumPy's, of Python's, of bytes."""

    kind: str
    shape: tuple[int, ...]
    held: Any


def is_one_value(value: Any) -> bool:
    """Whether what is :func:`seen` of something is the same as long as it is the same object, with the same code if it is a function."""
    return isinstance(value, (*_PLAIN, type, types.FunctionType, torch.nn.Module))


def seen(value: Any) -> Any:
    """What is compared: a number, the numbers of a container or array, a function's code, a class; of anything else (``...``) nothing."""
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, types.FunctionType | types.MethodType):
        return value.__code__ if isinstance(value, types.FunctionType) else seen(value.__func__)
    if isinstance(value, functools.partial):
        return seen(value.func), *map(seen, value.args), *((key, seen(one)) for key, one in value.keywords.items())
    if isinstance(value, type):
        return value
    return numbers_of(value) if isinstance(value, SEQUENCES) else _of_set_or_array(value)


def numbers_of(value: Any) -> Any:
    """The numbers of a list and of lists in it; ``...`` where there is anything else."""
    if not isinstance(value, SEQUENCES) or len(value) > MOST_ENTRIES:
        return ...
    numbers = tuple(one if isinstance(one, int | float | complex | str) else numbers_of(one) for one in value)
    return ... if ... in numbers else numbers


def is_array(value: Any) -> bool:
    """Whether something has numbers that may be changed in place and that no place has one by one."""
    return isinstance(value, bytearray | array.array) or hasattr(type(value), "__array__")


def is_generator(value: Any) -> bool:
    """Whether something draws random numbers: Python's or NumPy's."""
    numpy = sys.modules.get("numpy")
    of_numpy = (numpy.random.Generator, numpy.random.RandomState) if numpy is not None else ()
    return isinstance(value, (random.Random, *of_numpy))


def differ(was: Any, now: Any) -> bool:
    """Whether two things that were seen are not the same."""
    return was is not now and (type(was) is not type(now) or was != now)


def _of_set_or_array(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        plain = len(value) <= MOST_ENTRIES and all(isinstance(one, int | float | str) for one in value)
        return frozenset(value) if plain else ...
    if isinstance(value, bytearray | array.array):
        return Array(type(value).__name__, (len(value),), bytes(value)) if len(value) <= _MOST_BYTES // 8 else ...
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.ndarray | numpy.generic) or value.dtype.hasobject:
        return ...
    held = value.tobytes() if value.nbytes <= _MOST_BYTES else id(value)
    return Array(str(value.dtype), value.shape, held)
