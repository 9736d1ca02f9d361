"""Measuring a machine: the coefficients that the planner computes costs from."""

from __future__ import annotations

import functools
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from unisono import _devices, _native
from unisono._ranks import Ranks

#: Sizes of the messages that latency and bandwidth are fitted to, in elements of four bytes.
_SMALL, _LARGE = 1 << 8, 1 << 20

#: How often each thing is measured.
_ROUNDS = 7

Key = TypeVar("Key")


def cache_folder() -> Path:
    """Where measurements and plans are kept."""
    return Path.home() / ".cache" / "unisono"


def _typical(
    ranks: Ranks, device: torch.device, runs: Mapping[Key, Callable[[], object]], calls: int
) -> dict[Key, float]:
    """The mean time of a call of each function while all ranks make it, in seconds: the median of rounds in which all take turns.

    A mean up to where the last rank is done, because ranks that share cores get them in turns: one rank's calls alone would be as
    fast as if no other disturbed them. A median, because a collective among processes has quick and slow moments that last for
    seconds, and the quickest is not what a step will meet; in turns, so that all meet the same moments.
    """
    for run in runs.values():
        run()
    rounds = [{key: _together(ranks, device, run, calls) for key, run in runs.items()} for _ in range(_ROUNDS)]
    return {key: statistics.median(times[key] for times in rounds) / calls for key in runs}


def _together(ranks: Ranks, device: torch.device, run: Callable[[], object], calls: int) -> float:
    """The time of a number of calls on all ranks, in seconds, until their devices are done."""
    _devices.synchronise(device)
    if ranks.count > 1:
        dist.barrier(ranks.group("cpu"))
    start = time.perf_counter()
    for _ in range(calls):
        run()
    _devices.synchronise(device)
    if ranks.count > 1:
        alone = time.perf_counter()
        dist.barrier(ranks.group("cpu"))
        # What the last barrier takes when nobody waits in it is not of the calls.
        return max(alone - start, time.perf_counter() - start - _barrier(ranks))
    return time.perf_counter() - start


@functools.cache
def _barrier(ranks: Ranks) -> float:
    """The time of a barrier that everybody has come to, in seconds."""
    dist.barrier(ranks.group("cpu"))
    start = time.perf_counter()
    for _ in range(10):
        dist.barrier(ranks.group("cpu"))
    return (time.perf_counter() - start) / 10


def describe(ranks: Ranks, device: torch.device = _devices.HOST, memory_bytes: int | None = None) -> str:
    """Measures a device of this machine with all ranks taking part, and returns the cluster description (TOML), the same on every rank."""
    rates = _products(ranks, device)
    block = torch.randn(1 << (22 if device == _devices.HOST else 26), device=device)
    copy = torch.empty_like(block)
    taken = _typical(ranks, device, {"copy": lambda: copy.copy_(block)}, 16)["copy"]
    tiny = torch.ones(8, device=device)
    overhead = _typical(ranks, device, {"operation": lambda: tiny.add(1)}, 10_000)["operation"] * 1e9
    lines = [
        "# A machine as the planner sees it, measured by `unisono profile`.",
        "version = 1",
        "",
        "[device]",
        f'name = "{_devices.model_of(device)}"',
        f"memory_bytes = {memory_bytes or _memory(ranks, device)}",
        f"memory_bandwidth = {2 * block.numel() * 4 / taken:.4e}",
        f"operation_ns = {overhead:.1f}",
        "",
        "[device.matmul_flops]",
        *(f"{name} = {rate:.4e}" for name, rate in rates.items()),
        "",
        "[links]",
        *_links(ranks, device),
    ]
    return ranks.tell("\n".join(lines) + "\n")


def _products(ranks: Ranks, device: torch.device) -> dict[str, float]:
    """Floating-point operations a second of matrix products: in single precision, and on accelerators in the types of half the size."""
    on_host = device == _devices.HOST
    size = 512 if on_host else 4096
    types = {"f32": torch.float32} if on_host else {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    matrices = {name: torch.randn(size, size, device=device).to(dtype) for name, dtype in types.items()}
    runs = {name: functools.partial(torch.mm, matrix, matrix) for name, matrix in matrices.items()}
    return {name: 2 * size**3 / seconds for name, seconds in _typical(ranks, device, runs, 16).items()}


def _memory(ranks: Ranks, device: torch.device) -> int:
    if device != _devices.HOST:
        return _devices.memory_of(device)
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemTotal"].split()[0]) * 1024 // ranks.count


def _links(ranks: Ranks, device: torch.device) -> list[str]:
    n = ranks.count
    group = ranks.group(device.type) if n > 1 else None
    # Newer releases of PyTorch have other names for these two.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    share = (n - 1) / n

    def buffers(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = torch.zeros(elements // n, device=device)
        return part, torch.zeros(elements // n * n, device=device)

    def collective(kind: str, elements: int) -> Callable[[], object]:
        shard, full = buffers(elements)
        return {
            "all_reduce": lambda: dist.all_reduce(full, group=group),
            "all_gather": lambda: all_gather(full, shard, group=group),
            "reduce_scatter": lambda: reduce_scatter(shard, full, group=group),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(full), full, group=group),
        }[kind]

    kinds = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    if n == 1:
        return [f"{kind} = {{ latency_ns = 1000.0, bandwidth = 1e12 }}" for kind in kinds]
    small = _typical(ranks, device, {kind: collective(kind, _SMALL) for kind in kinds}, 20)
    large = _typical(ranks, device, {kind: collective(kind, _LARGE) for kind in kinds}, 4)
    lines = []
    for kind in kinds:
        sent = (_LARGE - _SMALL) * 4 * share * (2 if kind == "all_reduce" else 1)
        bandwidth = sent / max(large[kind] - small[kind], 1e-9)
        lines.append(f"{kind} = {{ latency_ns = {small[kind] * 1e9:.1f}, bandwidth = {bandwidth:.4e} }}")
    return lines


def description(ranks: Ranks, device: torch.device = _devices.HOST) -> str:
    """A device of this machine, described: the kept description, or a new measurement, which is kept."""
    measured = ranks.count, torch.get_num_threads(), identity(device)
    text = ranks.tell(_native.kept_machine(cache_folder(), measured) if ranks.rank == 0 else None)
    if text is None:
        text = describe(ranks, device)
        if ranks.rank == 0:
            _native.keep_machine(cache_folder(), measured, text)
    return text


def identity(device: torch.device = _devices.HOST) -> str:
    """What makes measurements differ beside ranks and threads: a home folder may be that of several machines."""
    processors = {line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")}
    lines = [platform.machine(), *sorted(processors), f"{os.cpu_count()} cores", f"torch {torch.__version__}"]
    return "\n".join(lines if device == _devices.HOST else [*lines, _devices.model_of(device)])
