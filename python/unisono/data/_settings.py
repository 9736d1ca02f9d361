"""Keyword arguments as the native settings."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from unisono.data._cost import Cost, SequenceParallel
from unisono.data._json import to_json
from unisono.errors import ConfigurationError


def world(ranks: int | None, rank: int | None) -> tuple[int, int]:
    """The number of ranks and this rank, from torch.distributed where they are not given."""
    if ranks is None or rank is None:
        import torch.distributed as dist

        ready = dist.is_available() and dist.is_initialized()
        ranks = (dist.get_world_size() if ready else 1) if ranks is None else ranks
        rank = (dist.get_rank() if ready else 0) if rank is None else rank
    return ranks, rank


def problem_settings(
    *, ranks: int, cost: Cost | Sequence[Cost], sequence_parallel: SequenceParallel | None, **others: Any
) -> str:
    """A problem without lengths, as JSON."""
    costs = cost.settings() if isinstance(cost, Cost) else [one.settings() for one in cost]
    parallel = sequence_parallel.settings() if sequence_parallel is not None else {}
    given = {key: value for key, value in others.items() if value is not None}
    return to_json({"ranks": ranks, "cost": costs, **parallel, **given})


def stream_settings(*, batch_size: int, window: int, delay: int, seed: int, shuffle: bool) -> str:
    """How steps are composed, as JSON."""
    for name, value in (("batch_size", batch_size), ("window", window), ("delay", delay), ("seed", seed)):
        bits = 32 if name == "delay" else 64
        if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= value < 2**bits:
            what = f"`{name}` is {value!r}: it must be a whole number from 0 that fits {bits} bits"
            raise ConfigurationError(what, code="U0401")
    return to_json({"batch": batch_size, "window": window, "delay": delay, "seed": seed, "shuffle": shuffle})


def window_and_delay(window: int | None, delay: int | None, shuffle: bool) -> tuple[int, int]:
    """What is not given: windows of 16 steps and a delay of about 1,000 steps where samples change their order anyway."""
    window = (16 if shuffle else 1) if window is None else window
    delay = (63 if shuffle and window > 1 else 0) if delay is None else delay
    return window, delay
