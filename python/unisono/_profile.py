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


def _best(run: Callable[[], object], repeats: int = 7) -> float:
    """The shortest time of a call, in seconds."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def describe(ranks: Ranks, memory_bytes: int | None = None) -> str:
    """Measures this machine with all ranks taking part, and returns the cluster description (TOML), the same on every rank."""
    matrix = torch.randn(512, 512)
    flops = 2 * 512**3 / _best(lambda: torch.mm(matrix, matrix))
    block = torch.randn(1 << 22)
    copy = torch.empty_like(block)
    bandwidth = 2 * block.numel() * 4 / _best(lambda: copy.copy_(block))
    tiny = torch.randn(8)
    overhead = _best(lambda: [tiny.add(1) for _ in range(200)]) / 200 * 1e9
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
    share = (n - 1) / n if n > 1 else 1.0

    def buffers(elements: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = torch.zeros(elements // n)
        return part, torch.zeros(elements // n * n)

    def collective(kind: str, elements: int) -> Callable[[], object]:
        part, whole = buffers(elements)
        return {
            "all_reduce": lambda: dist.all_reduce(whole),
            "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
        }[kind]

    lines = []
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        latency, bandwidth = 1000.0, 1e12
        if n > 1:
            small, large = _best(collective(kind, _SMALL), 30), _best(collective(kind, _LARGE))
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
