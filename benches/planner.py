"""What planning costs, by depth, and what the package weighs: processor time of a whole plan, size of the wheel, time of the import."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgpack
import passes as bench_of_passes

ROOT = Path(__file__).resolve().parents[1]


def cluster(exchange_ns: float) -> str:
    """A machine that is not there, with this latency of an exchange between all ranks."""
    link, exchange = (f"{{ latency_ns = {ns}, bandwidth = 1e11 }}" for ns in (5e3, exchange_ns))
    return f"""
version = 1
links = {{ all_reduce = {link}, all_gather = {link}, reduce_scatter = {link}, all_to_all = {exchange} }}
[device]
name = "a machine that is not there"
memory_bytes = 80000000000
memory_bandwidth = 3e12
operation_ns = 0.0
matmul_flops = {{ f32 = 4e14 }}
"""


#: By whether small collectives are direct.
CLUSTERS = {"as they are": cluster(5e3), "direct": cluster(1e3)}


def least(run, rounds: int) -> tuple[float, float]:
    """The least processor and wall seconds of some rounds."""
    times = []
    for _ in range(rounds):
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        times.append((time.process_time() - cpu, time.perf_counter() - wall))
    return min(t[0] for t in times), min(t[1] for t in times)


def planning(layers: list[int], rounds: int) -> None:
    """A table: captured GPT steps by depth."""
    print(
        "| layers | nodes | small collectives | plan, CPU ms | plan, wall ms | rank's graph, CPU ms |\n|---|---|---|---|---|---|"
    )
    for depth in layers:
        graph = bench_of_passes.capture("AdamW", layers=depth)
        settings = msgpack.packb({"mesh": {"a": 8}, "pins": {}, "memory_limit": None})
        nodes = len(graph.decoded()["order"])
        for kind, machine in CLUSTERS.items():
            plan = graph.native.plan(machine, settings)
            assert ("[passes.direct]" in plan.text()) == (kind == "direct")
            cpu, wall = least(lambda g=graph, m=machine, s=settings: g.native.plan(m, s), rounds)
            part, _ = least(lambda g=graph, p=plan: g.native.rank_graph(p, 0), rounds)
            print(
                f"| {depth} | {nodes:,} | {kind} | {cpu * 1e3:.0f} | {wall * 1e3:.0f} | {part * 1e3:.0f} |", flush=True
            )


def footprint(rounds: int) -> None:
    """The wheel's size, and what importing adds to importing PyTorch."""
    code = "import time, torch; start = time.perf_counter(); import unisono; print(time.perf_counter() - start)"
    runs = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(rounds)]
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    size = f"{wheels[-1].stat().st_size / 2**20:.1f} MiB" if wheels else "not built"
    print(
        f"\nwheel: {size}; `import unisono` after `import torch`: {min(runs) * 1e3:.0f} ms, median {statistics.median(runs) * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", nargs="*", type=int, default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    planning(options.layers, options.rounds)
    footprint(options.rounds)
