"""Collectives as the library makes them, beside the same as one exchange and a local sum: wall and CPU time on each rank.

    torchrun --nproc-per-node 2 benches/direct_collectives.py
    torchrun --nproc-per-node 4 benches/direct_collectives.py

All cases of a size take turns; figures are medians over rounds, of one call on one rank, in microseconds.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

SIZES, CALLS, ROUNDS = (4 << 10, 64 << 10, 512 << 10, 4 << 20), 10, 11


def cases(elements: int, ranks: int) -> dict[str, Callable[[], object]]:
    """Each collective in both forms, on float32 tensors of which the whole has so many elements."""
    functional, group = torch.ops._c10d_functional, dist.group.WORLD.group_name  # type: ignore[union-attr]
    whole = torch.ones(elements)
    part = whole[: elements // ranks].clone()

    def exchanged(tensor: torch.Tensor) -> torch.Tensor:
        splits = [tensor.numel() // ranks] * ranks
        return functional.wait_tensor(functional.all_to_all_single(tensor, splits, splits, group))

    def waited(started: torch.Tensor) -> torch.Tensor:
        return functional.wait_tensor(started)

    return {
        # In place, as the executor makes it; the largest, since sums of sums would overflow.
        "all-reduce": lambda: waited(functional.all_reduce_(whole, "max", group)),
        "all-reduce, direct": lambda: exchanged(torch.cat([whole] * ranks)).view(ranks, -1).sum(0),
        "reduce-scatter": lambda: waited(functional.reduce_scatter_tensor(whole, "sum", ranks, group)),
        "reduce-scatter, direct": lambda: exchanged(whole).view(ranks, -1).sum(0),
        "all-gather": lambda: waited(functional.all_gather_into_tensor(part, ranks, group)),
        "all-gather, direct": lambda: exchanged(torch.cat([part] * ranks)),
    }


def spent() -> tuple[float, float]:
    """Wall time, and CPU time of all threads of this process, in microseconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter() * 1e6, (used.ru_utime + used.ru_stime) * 1e6


def main() -> None:
    """Prints a line per size and case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for size in SIZES:
        found: dict[str, list[tuple[float, float]]] = {}
        for _ in range(ROUNDS):
            for name, run in cases(size // 4, dist.get_world_size()).items():
                run()
                dist.barrier()
                wall, cpu = spent()
                for _ in range(CALLS):
                    run()
                wall_then, cpu_then = spent()
                found.setdefault(name, []).append(((wall_then - wall) / CALLS, (cpu_then - cpu) / CALLS))
        if dist.get_rank() == 0:
            for name, times in found.items():
                wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
                print(f"| {size >> 10} KiB | {name} | {wall:,.0f} | {cpu:,.0f} |", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
