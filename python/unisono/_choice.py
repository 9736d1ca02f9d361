"""Which groups of operations are kernels with ``fuse="auto"``: those that take no longer than PyTorch's operations, as tried here.

A group is tried on tensors of its own, once for all groups of the same operations over tensors that lie alike; what it took is kept for
later starts on the same machine. All ranks take what the first of them has measured, so that equal groups are equally computed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unisono import _devices, _native
from unisono._executor import Executor, lower_graph
from unisono._measured_programs import filled
from unisono._message import pack, unpack
from unisono._profile import cache_folder, identity
from unisono._ranks import Ranks
from unisono.errors import UnisonoError

#: Nanoseconds of a group as a kernel, and as PyTorch's operations.
Times = tuple[int, int]

#: Each way runs so often at least and at most, and for so many seconds in all if that is in between.
_FEWEST, _MOST, _SECONDS = 3, 50, 0.01
#: So much longer, as a part, a kernel may take: times differ by that from one run to the next.
_ALIKE = 0.05
#: More groups than these are not kept.
_MOST_KEPT = 10_000

#: What is known of groups, by how many ranks and threads of each.
_known: dict[tuple[int, int], dict[str, Times]] = {}


def slower(
    graph: _native.Graph, device: torch.device, ranks: Ranks | None = None, *, match_eager: bool = False
) -> dict[str, str]:
    """The groups of a graph that take longer as kernels than as PyTorch's operations, by name, with a text that says so.

    Every rank must ask. On other devices than processors nothing is tried.
    """
    if device != _devices.HOST:
        return {}
    count = 1 if ranks is None else ranks.count
    known, mine = _of_machine(count), {}
    for name, group in graph.groups(match_eager=match_eager):
        found = known.get(name) or _tried(group, match_eager=match_eager)
        if found is not None:
            mine[name] = found
    times = mine if ranks is None or count == 1 else _of_all(mine, ranks)
    if not times.keys() <= known.keys():
        known |= times
        _keep(known, count)
    return {name: reason for name, found in times.items() if (reason := _against(*found))}


def _against(kernel: int, operations: int) -> str | None:
    """Why a group is no kernel, if it takes longer as one."""
    if kernel <= operations * (1 + _ALIKE):
        return None
    return f"a kernel takes {kernel / 1e3:.1f} us, PyTorch's operations {operations / 1e3:.1f} us"


def _tried(group: _native.Graph, *, match_eager: bool = False) -> Times | None:
    """What a group takes as a kernel and as it is, the least of some runs; nothing where that cannot be tried."""
    states = _devices.generator_states(_devices.HOST)
    try:
        _, inputs = filled(group, _devices.HOST)
        runs = [Executor(lower_graph(group, fuse=fuse, match_eager=match_eager)) for fuse in (True, False)]
        for run in runs:
            run.bind([])
            run(inputs)
        return _least(runs, inputs)
    except (UnisonoError, RuntimeError):
        return None
    finally:
        _devices.set_generator_states(_devices.HOST, states)


def _least(runs: list[Executor], inputs: list[torch.Tensor]) -> Times:
    least, end = [math.inf, math.inf], time.monotonic() + _SECONDS
    for number in range(_MOST):
        for way, run in enumerate(runs):
            least[way] = min(least[way], sum(duration for *_, duration in run.record(inputs)[1]))
        if number + 1 >= _FEWEST and time.monotonic() > end:
            break
    return int(least[0]), int(least[1])


def _of_all(mine: Mapping[str, Times], ranks: Ranks) -> dict[str, Times]:
    """What all ranks know of their groups; of one group what the first does."""
    merged: dict[str, Times] = {}
    for rank in range(ranks.count):
        found = ranks.tell(mine if rank == ranks.rank else None, rank)
        merged = {name: (times[0], times[1]) for name, times in found.items()} | merged
    return merged


def _measured(ranks: int) -> tuple[int, int, str]:
    tier, refused = _native.kernel_tier()
    return ranks, torch.get_num_threads(), f"{identity()}\n{tier} {refused}"


def _of_machine(ranks: int) -> dict[str, Times]:
    """What is known of groups on this machine, by so many ranks."""
    key = (ranks, torch.get_num_threads())
    if key not in _known:
        kept = _native.kept_times(cache_folder(), Path(_native.__file__), _measured(ranks))
        read: dict[str, Any] = unpack(kept) if kept is not None else {}
        _known[key] = {name: (int(kernel), int(operations)) for name, (kernel, operations) in read.items()}
    return _known[key]


def _keep(times: Mapping[str, Times], ranks: int) -> None:
    last = dict(list(times.items())[-_MOST_KEPT:])
    _native.keep_times(cache_folder(), Path(_native.__file__), _measured(ranks), pack(last))
