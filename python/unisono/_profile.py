"""Measuring a machine: the coefficients that the planner computes costs from."""

from __future__ import annotations

import functools
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from unisono import _native
from unisono._ranks import Ranks

#: Sizes of the messages that latency and bandwidth are fitted to, in elements of four bytes.
_SMALL, _LARGE = 1 << 8, 1 << 20

#: How often each thing is measured.
_ROUNDS = 7

Key = TypeVar("Key")


def cache_folder() -> Path:
    """Where measurements and plans are kept."""
    return Path.home() / ".cache" / "unisono"


def _typical(ranks: Ranks, runs: dict[Key, Callable[[], object]], calls: int) -> dict[Key, float]:
    """The mean time of a call of each function while all ranks make it, in seconds: the median of rounds in which all take turns.

    A mean up to where the last rank is done, because ranks that share cores get them in turns: one rank's calls alone would be as
    fast as if no other disturbed them. A median, because a collective among processes has quick and slow moments that last for
    seconds, and the quickest is not what a step will meet; in turns, so that all meet the same moments.
    """
    for run in runs.values():
        run()
    rounds = [{key: _together(ranks, run, calls) for key, run in runs.items()} for _ in range(_ROUNDS)]
    return {key: statistics.median(times[key] for times in rounds) / calls for key in runs}


def _together(ranks: Ranks, run: Callable[[], object], calls: int) -> float:
    """The time of a number of calls on all ranks, in seconds."""
    if ranks.count > 1:
        dist.barrier()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    if ranks.count > 1:
        alone = time.perf_counter()
        dist.barrier()
        # What the last barrier takes when nobody waits in it is not of the calls.
        return max(alone - start, time.perf_counter() - start - _barrier(ranks))
    return time.perf_counter() - start


@functools.cache
def _barrier(ranks: Ranks) -> float:
    """The time of a barrier that everybody has come to, in seconds."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(10):
        dist.barrier()
    return (time.perf_counter() - start) / 10


def describe(ranks: Ranks, memory_bytes: int | None = None) -> str:
    """Measures this machine with all ranks taking part, and returns the cluster description (TOML), the same on every rank."""
    matrix = torch.randn(512, 512)
    block = torch.randn(1 << 22)
    copy = torch.empty_like(block)
    times = _typical(ranks, {"product": lambda: torch.mm(matrix, matrix), "copy": lambda: copy.copy_(block)}, 16)
    flops, bandwidth = 2 * 512**3 / times["product"], 2 * block.numel() * 4 / times["copy"]
    tiny = torch.randn(8)
    overhead = _typical(ranks, {"operation": lambda: tiny.add(1)}, 10_000)["operation"] * 1e9
    lines = [
        "# A machine as the planner sees it, measured by `unisono profile`.",
        "version = 1",
        "",
        "[device]",
        'name = "cpu"',
        f"memory_bytes = {memory_bytes or _memory() // ranks.count}",
        f"memory_bandwidth = {bandwidth:.4e}",
        f"operation_ns = {overhead:.1f}",
        "",
        "[device.matmul_flops]",
        f"f32 = {flops:.4e}",
        "",
        "[links]",
        *_links(ranks),
    ]
    return ranks.tell("\n".join(lines) + "\n")


def _memory() -> int:
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemTotal"].split()[0]) * 1024


def _links(ranks: Ranks) -> list[str]:
    n = ranks.count
    # Newer releases of PyTorch have other names for these two.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    share = (n - 1) / n

    def buffers(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = torch.zeros(elements // n)
        return part, torch.zeros(elements // n * n)

    def collective(kind: str, elements: int) -> Callable[[], object]:
        shard, full = buffers(elements)
        return {
            "all_reduce": lambda: dist.all_reduce(full),
            "all_gather": lambda: all_gather(full, shard),
            "reduce_scatter": lambda: reduce_scatter(shard, full),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(full), full),
        }[kind]

    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    if n == 1:
        return [f"{kind} = {{ latency_ns = 1000.0, bandwidth = 1e12 }}" for kind in kinds]
    small = _typical(ranks, {kind: collective(kind, _SMALL) for kind in kinds}, 20)
    large = _typical(ranks, {kind: collective(kind, _LARGE) for kind in kinds}, 4)
    lines = []
    for kind in kinds:
        sent = (_LARGE - _SMALL) * 4 * share * (2 if kind == "all_reduce" else 1)
        bandwidth = sent / max(large[kind] - small[kind], 1e-9)
        lines.append(f"{kind} = {{ latency_ns = {small[kind] * 1e9:.1f}, bandwidth = {bandwidth:.4e} }}")
    return lines


def description(ranks: Ranks) -> str:
    """This machine's description: the kept one, or a new measurement, which is kept."""
    measured = ranks.count, torch.get_num_threads(), identity()
    text = ranks.tell(_native.kept_machine(cache_folder(), measured) if ranks.rank == 0 else None)
    if text is None:
        text = describe(ranks)
        if ranks.rank == 0:
            _native.keep_machine(cache_folder(), measured, text)
    return text


def identity() -> str:
    """What makes measurements differ beside ranks and threads: a home folder may be that of several machines."""
    processors = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")}
    return "\n".join([platform.machine(), *sorted(processors), f"{os.cpu_count()} cores", f"torch {torch.__version__}"])
