"""What a step takes: time and memory of one rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def nanoseconds(run: Callable[[], object]) -> int:
    """The wall time of a call."""
    start = time.perf_counter_ns()
    run()
    return time.perf_counter_ns() - start


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The memory that tensors own, shared storage counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def peak_growth(run: Callable[[], object]) -> int:
    """The most bytes that PyTorch's allocator had given out during a call beyond those of its beginning."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    results: Any = getattr(profiler.profiler, "kineto_results")  # noqa: B009 - not in torch's type stubs
    events = [event for event in results.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak
