"""What clocks and generators of random numbers give to a step's code, followed through a trace as what the step changes is."""

from __future__ import annotations

import contextlib
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from unisono._capture.doubts import live_functions
from unisono._capture.followed import Uses
from unisono._capture.named import standing
from unisono._capture.paths import Walk, is_library

_CLOCKS = (
    "time",
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
    "process_time",
    "thread_time",
)
#: What has no numbers to give: it makes generators, or keeps and takes their states.
_OF_STATES = ("Random", "SystemRandom", "seed", "getstate", "setstate", "get_state", "set_state", "default_rng", "test")
#: Numbers of sources that are no places, and what they are.
_CLOCK, _RANDOM, _NUMPY = -1, -2, -3
NAMES = {_CLOCK: "a clock", _RANDOM: "`random`", _NUMPY: "`numpy.random`"}


@contextlib.contextmanager
def followed(uses: Uses, walk: Walk) -> Iterator[None]:
    """Lets what the user's code gets from clocks, from `random` and from `numpy.random` be followed."""
    handed = {id(real): (real, given) for real, given in _all(uses)}
    with contextlib.ExitStack() as stack:
        for module, names in _modules():
            for name in names:
                stack.enter_context(mock.patch.object(module, name, handed[id(getattr(module, name))][1]))
        stack.enter_context(standing(live_functions(walk), handed))
        yield


def _all(uses: Uses) -> Iterator[tuple[Any, Any]]:
    for module, names in _modules():
        source = {"time": _CLOCK, "random": _RANDOM}.get(module.__name__, _NUMPY)
        for name in names:
            real = getattr(module, name)
            yield real, _following(real, uses, source)


def _modules() -> Iterator[tuple[types.ModuleType, list[str]]]:
    """The modules, and their functions that give something else each time."""
    yield time, [name for name in _CLOCKS if hasattr(time, name)]
    numpy = sys.modules.get("numpy")
    for module in (random, *((numpy.random,) if numpy is not None else ())):
        names = (name for name in module.__all__ if name not in _OF_STATES and callable(getattr(module, name)))
        yield module, [name for name in names if not isinstance(getattr(module, name), type)]


def _following(real: Callable[..., Any], uses: Uses, source: int) -> Callable[..., Any]:
    def give(*arguments: Any, **named: Any) -> Any:
        made = real(*arguments, **named)
        return made if is_library(sys._getframe(1).f_code.co_filename) else uses.given(made, source)

    return give
