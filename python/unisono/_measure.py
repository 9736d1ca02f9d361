"""What a step takes: time and memory of one rank."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from unisono import _devices, _native


def nanoseconds(run: Callable[[], object], device: torch.device = _devices.HOST) -> int:
    """The wall time of a call, until a device has done what the call issues to it."""
    _devices.synchronise(device)
    start = time.perf_counter_ns()
    run()
    _devices.synchronise(device)
    return time.perf_counter_ns() - start


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """The memory that tensors own, shared storage counted once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def peak_growth(run: Callable[[], object], device: torch.device = _devices.HOST, repeats: int = 4) -> int:
    """The most bytes that PyTorch's allocator had given out during a call beyond those of its beginning.

    The profiler sees what this thread gives back, and not what a thread of the network gives back that was late to let go of a
    tensor. A call that is repeated asks for the same memory in the same order, so each piece is counted until the earliest time at which
    one of the calls gave it back. What the network's threads ask for counts as it came in the call where that was most. Calls that ask for
    other sizes, as a first one does, are not compared, and the least counts. The allocator of a device counts its peak itself.
    """
    if device != _devices.HOST:
        return min(_devices.peak_growth(device, run) for _ in range(repeats))
    with _native.PausedKeeping():
        return _growth_on_host(run, repeats)


def _growth_on_host(run: Callable[[], object], repeats: int) -> int:
    first = _asked_in(run)  # which may give back what was asked for unseen
    alike: dict[tuple[int, ...], list[_Asked]] = {}
    for _ in range(repeats):
        asked = _asked_in(run)
        alike.setdefault(tuple(asked.sizes), []).append(asked)
    ends = {sizes: _ends([*calls, *([first] if tuple(first.sizes) == sizes else [])]) for sizes, calls in alike.items()}
    return min(max(_peak(asked, ends[sizes]) for asked in calls) for sizes, calls in alike.items())


#: How long threads of the network are given to let go of the tensors that they sent, in seconds. One that gives memory back while the
#: profiler ends reports it to what the profiler is about to free, and the heap is damaged (the danger that pytorch/pytorch#195636 names).
_LETTING_GO = 0.02


@dataclasses.dataclass
class _Asked:
    """The memory that a call asked for. A time is the number of pieces that this thread had asked for before."""

    #: Bytes of each piece that this thread asked for, in order.
    sizes: list[int] = dataclasses.field(default_factory=list)
    #: When each of them was given back, if it was seen.
    ends: dict[int, int] = dataclasses.field(default_factory=dict)
    #: What came and went, in order: the piece, if it is one of this thread, and its bytes, less than 0 where it went.
    events: list[tuple[int | None, int]] = dataclasses.field(default_factory=list)


def _asked_in(run: Callable[[], object]) -> _Asked:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        first = torch.empty(1)
        run()
        if dist.is_available() and dist.is_initialized():
            time.sleep(_LETTING_GO)
    results: Any = getattr(profiler.profiler, "kineto_results")  # noqa: B009 - not in torch's type stubs
    seen = sorted(_allocations(results.experimental_event_tree()), key=lambda event: event.start_time_ns)
    this_thread = seen[0].start_tid
    asked, at = _Asked(), dict[int, tuple[int | None, int]]()
    for event in seen[1:]:
        pointer, size = event.typed[1].ptr, event.typed[1].alloc_size
        piece, bytes_before = at.pop(pointer, (None, -min(size, 0)))
        if bytes_before:  # given back now; or unseen before, if it is asked for again
            asked.events.append((piece, -bytes_before))
            if piece is not None:
                asked.ends[piece] = len(asked.sizes)
        if size > 0:
            own = len(asked.sizes) if event.start_tid == this_thread else None
            at[pointer] = own, size
            asked.events.append((own, size))
            asked.sizes += [size] if own is not None else []
    del first
    return asked


def _allocations(events: Iterable[Any]) -> Iterator[Any]:
    for event in events:
        if event.typed[0] == _EventType.Allocation:
            yield event
        yield from _allocations(event.children)


def _ends(calls: list[_Asked]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for call in calls:
        for piece, end in call.ends.items():
            ends[piece] = min(end, ends.get(piece, end))
    return ends


def _peak(asked: _Asked, ends: dict[int, int]) -> int:
    """The most that was held in a call, if each piece ends no later than it is said."""
    ending: dict[int, list[int]] = {}
    for piece, end in ends.items():
        ending.setdefault(end, []).append(piece)
    held = peak = 0
    gone = set[int]()
    for piece, size in asked.events:
        now = [(piece, size)]
        if piece is not None and size > 0:
            now = [*((other, -asked.sizes[other]) for other in ending.get(piece, ())), *now]
        for one, change in now:
            if change > 0 or one not in gone:
                held += change
            if change < 0 and one is not None:
                gone.add(one)
        peak = max(peak, held)
    return peak
