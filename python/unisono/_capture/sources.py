"""What clocks and generators of random numbers give to a step's code, followed through a trace as what the step changes is."""

from __future__ import annotations

import contextlib
import functools
import random
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol
from unittest import mock

import torch.fx

from unisono._capture.doubts import live_functions
from unisono._capture.followed import Uses
from unisono._capture.named import standing
from unisono._capture.paths import Walk, is_library
from unisono._capture.side_effects import A_CLOCK

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
CLOCK, _RANDOM, _NUMPY = -1, -2, -3
NAMES = {CLOCK: A_CLOCK, _RANDOM: "`random`", _NUMPY: "`numpy.random`"}


class Clocks(Protocol):
    """Who notes how clocks are read."""

    def clock(self, name: str, kind: type, operations: int) -> Any:
        """What stands for what a clock says behind so many operations."""
        ...


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


@contextlib.contextmanager
def read_anew(reads: Clocks, functions: Iterable[Any], graph: torch.fx.Graph) -> Iterator[None]:
    """Lets what the user's code gets from clocks be what they say when a step begins or when it is over.

    Args:
        reads: notes what is read.
        functions: those that the step can reach.
        graph: what is recorded.
    """

    def reading(real: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            if is_library(sys._getframe(1).f_code.co_filename):
                return real()
            return reads.clock(real.__name__, type(real()), len(graph.nodes))

        return read

    instead = {id(real): (real, reading(real)) for real in (getattr(time, name) for name in _clocks())}
    with contextlib.ExitStack() as stack:
        for real, read in instead.values():
            stack.enter_context(mock.patch.object(time, real.__name__, read))
        stack.enter_context(standing(functions, instead))
        yield


def _clocks() -> list[str]:
    return [name for name in _CLOCKS if hasattr(time, name)]


def _all(uses: Uses) -> Iterator[tuple[Any, Any]]:
    for module, names in _modules():
        source = {"time": CLOCK, "random": _RANDOM}.get(module.__name__, _NUMPY)
        for name in names:
            real = getattr(module, name)
            yield real, _following(real, uses, source)


def _modules() -> Iterator[tuple[types.ModuleType, list[str]]]:
    """The modules, and their functions that give something else each time."""
    yield time, _clocks()
    numpy = sys.modules.get("numpy")
    for module in (random, *((numpy.random,) if numpy is not None else ())):
        names = (name for name in module.__all__ if name not in _OF_STATES and callable(getattr(module, name)))
        yield module, [name for name in names if not isinstance(getattr(module, name), type)]


def _following(real: Callable[..., Any], uses: Uses, source: int) -> Callable[..., Any]:
    def follow(made: Any) -> Any:
        return uses.given(made, source)

    @functools.wraps(real)
    def give(*arguments: Any, **named: Any) -> Any:
        made = real(*arguments, **named)
        return made if is_library(sys._getframe(1).f_code.co_filename) else follow(made)

    # Whoever stands in front of it (:mod:`direct`) follows what it gives too.
    vars(give)["follow"] = follow
    return give
