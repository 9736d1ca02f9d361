"""Errors of operations in functions that `torch.compile` has made: they are what a caller of eager PyTorch would catch, too."""

from __future__ import annotations

import functools
import re

import torch

from unisono.errors import UnisonoError

#: An operation refused its operands, or found no memory for its results.
_CODES = ("U0310", "U0315")
_INDEX = re.compile(r"\bindex\b.*\bout of (range|bounds)\b|\bdimension out of range\b", re.IGNORECASE | re.DOTALL)


def as_in_eager(error: UnisonoError) -> UnisonoError:
    """The same error, of a class that is also the one of eager PyTorch's error, as far as its words tell that."""
    if error.code not in _CODES:
        return error
    made = _of_both(type(error), _class_of(error))
    return made(error.message, code=error.code, place=error.place, cause=error.cause, hint=error.hint)


def _class_of(error: UnisonoError) -> type[Exception]:
    if _INDEX.search(error.cause or ""):
        return IndexError
    return torch.linalg.LinAlgError if "_linalg_check_errors" in error.message else RuntimeError  # pyright: ignore[reportPrivateImportUsage]


@functools.cache
def _of_both(own: type[UnisonoError], eager: type[Exception]) -> type[UnisonoError]:
    return type(own.__name__, (own, eager), {"__module__": own.__module__, "__doc__": own.__doc__})
