"""Measuring a machine: the coefficients that the planner computes costs from."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from unisono._ranks import Ranks

#: Sizes of the messages that latency and bandwidth are fitted to, in elements of four bytes.
_SMALL, _LARGE = 1 << 8, 1 << 20


def cache_folder() -> Path:
    """Where measurements and plans are kept."""
    return Path.home() / ".cache" / "unisono"


def _typical(ranks: Ranks, run: Callable[[], object], calls: int) -> float:
    """The mean time of a call while all ranks make it, in seconds, in the quietest of three rounds.

    A mean, because ranks that share cores get them in turns: the shortest call would be one that no other rank disturbed.
    """
    run()
    rounds = []
    for _ in range(3):
        if ranks.count > 1:
            dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        rounds.append((time.perf_counter() - start) / calls)
    return min(rounds)


def describe(ranks: Ranks, memory_bytes: int | None = None) -> str:
    """Measures this machine with all ranks taking part, and returns the cluster description (TOML), the same on every rank."""
    matrix = torch.randn(512, 512)
    flops = 2 * 512**3 / _typical(ranks, lambda: torch.mm(matrix, matrix), 10)
    block = torch.randn(1 << 22)
    copy = torch.empty_like(block)
    bandwidth = 2 * block.numel() * 4 / _typical(ranks, lambda: copy.copy_(block), 10)
    tiny = torch.randn(8)
    overhead = _typical(ranks, lambda: tiny.add(1), 1000) * 1e9
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
    share = (n - 1) / n if n > 1 else 1.0

    def buffers(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = torch.zeros(elements // n)
        return part, torch.zeros(elements // n * n)

    def collective(kind: str, elements: int) -> Callable[[], object]:
        part, whole = buffers(elements)
        return {
            "all_reduce": lambda: dist.all_reduce(whole),
            "all_gather": lambda: all_gather(whole, part),
            "reduce_scatter": lambda: reduce_scatter(part, whole),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        }[kind]

    lines = []
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        latency, bandwidth = 1000.0, 1e12
        if n > 1:
            small = _typical(ranks, collective(kind, _SMALL), 20)
            large = _typical(ranks, collective(kind, _LARGE), 4)
            sent = (_LARGE - _SMALL) * 4 * share * (2 if kind == "all_reduce" else 1)
            latency, bandwidth = small * 1e9, sent / max(large - small, 1e-9)
        lines.append(f"{kind} = {{ latency_ns = {latency:.1f}, bandwidth = {bandwidth:.4e} }}")
    return lines


def description(ranks: Ranks) -> str:
    """This machine's description: the kept one, or a new measurement, which is kept."""
    kept = cache_folder() / f"cluster-cpu-{ranks.count}-threads-{torch.get_num_threads()}.toml"
    text = ranks.tell(kept.read_text() if ranks.rank == 0 and kept.exists() else "")
    if not text:
        text = describe(ranks)
        if ranks.rank == 0:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(text)
    return text
