"""Iterators that a step goes on with (``next(self.batches)``): the step's code runs once, and so would they."""

from __future__ import annotations

import builtins
import contextlib
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any
from unittest import mock

from unisono._capture.places import user_line
from unisono.errors import StepError

_next = builtins.next


@contextlib.contextmanager
def refused(functions: Iterable[types.FunctionType], held: Collection[int]) -> Iterator[None]:
    """Refuses ``next`` of an iterator that is held outside of the step.

    Args:
        functions: those that the step can reach.
        held: the ``id`` of each object that it can reach.
    """

    def following(iterator: Any, *default: Any) -> Any:
        if id(iterator) in held:
            raise _goes_on(iterator)
        return _next(iterator, *default)

    if not any(_names(function.__code__) for function in functions):
        yield
        return
    with mock.patch.object(builtins, "next", following):
        yield


def _names(code: types.CodeType) -> bool:
    return "next" in code.co_names or any(_names(one) for one in code.co_consts if isinstance(one, types.CodeType))


def _goes_on(iterator: Any) -> StepError:
    return StepError(
        f"the step takes the next item of a {type(iterator).__name__} that it keeps from step to step",
        code="U0117",
        place=user_line(),
        cause="its Python code runs once, when it is captured: every later step would have the same item",
        hint="call `next` in the loop outside, and pass what it gives as an argument of the step",
    )
