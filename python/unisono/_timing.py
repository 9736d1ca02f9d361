"""How long calls take that all ranks make."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from unisono import _devices
from unisono._ranks import Ranks

#: How often each thing is measured.
ROUNDS = 7

Key = TypeVar("Key")


def typical(
    ranks: Ranks, device: torch.device, runs: Mapping[Key, Callable[[], object]], calls: int
) -> dict[Key, float]:
    """The mean time of a call of each function while all ranks make it, in seconds: the median of rounds in which all take turns.

    A mean up to where the last rank is done, because ranks that share cores get them in turns: one rank's calls alone would be as
    fast as if no other disturbed them. A median, because a collective among processes has quick and slow moments that last for
    seconds, and the quickest is not what a step will meet; in turns, so that all meet the same moments.
    """
    taken = rounds(ranks, device, runs, dict.fromkeys(runs, calls), ROUNDS)
    return {key: statistics.median(times) for key, times in taken.items()}


def rounds(
    ranks: Ranks,
    device: torch.device,
    runs: Mapping[Key, Callable[[], object]],
    calls: Mapping[Key, int],
    count: int,
) -> dict[Key, list[float]]:
    """The mean time of a call of each function in each of `count` rounds, in seconds."""
    for run in runs.values():
        run()
    found: dict[Key, list[float]] = {key: [] for key in runs}
    for _ in range(count):
        for key, run in runs.items():
            found[key].append(together(ranks, device, run, calls[key]) / calls[key])
    return found


def together(ranks: Ranks, device: torch.device, run: Callable[[], object], calls: int) -> float:
    """The time of a number of calls on all ranks, in seconds, until their devices are done."""
    _devices.synchronise(device)
    ranks.meet()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    _devices.synchronise(device)
    if ranks.count > 1:
        alone = time.perf_counter()
        ranks.meet()
        # What the last barrier takes when nobody waits in it is not of the calls.
        return max(alone - start, time.perf_counter() - start - _barrier(ranks))
    return time.perf_counter() - start


@functools.cache
def _barrier(ranks: Ranks) -> float:
    """The time of a barrier that everybody has come to, in seconds."""
    ranks.meet()
    start = time.perf_counter()
    for _ in range(10):
        ranks.meet()
    return (time.perf_counter() - start) / 10
