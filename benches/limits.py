"""Plans of real models under smaller and smaller memory limits: what a step takes, what runs again, and what the search takes.

    python benches/limits.py
    python benches/limits.py rows MODEL [MESH]     those of a model, and a mesh, alone
    python benches/limits.py steps [FIRST LAST]    one axis, a limit for each GiB: where a step takes longer than under a lower limit

Models of `published.toml` on `meta`, parameters in f32 and products in bf16, 64 sequences of 4,096 tokens, 64 ranks of `h100:8x8`
and 8 of `h100:8`.
"""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path

from published import Shape, captured, tomllib

from unisono.errors import ResourceError
from unisono.graph import StepGraph

#: The model, the mesh (of 64 ranks where it is searched for), the limits, and how many micro-batches there are; as many as the search
#: finds where that is not said.
CASES: tuple[tuple[str, dict[str, int] | str, tuple[str, ...], int | None], ...] = (
    ("llama2-7b", {"ranks": 64}, ("40GB", "20GB", "12GB", "8GB", "6GB"), None),
    ("llama2-7b", {"outer": 8, "inner": 8}, ("40GB", "20GB", "12GB", "8GB", "6GB"), None),
    ("llama2-7b", {"stages": 4, "ranks": 16}, ("24GB", "20GB", "18GB", "16GB"), 4),
    ("llama3-70b", {"ranks": 64}, ("80GB", "70GB", "50GB", "40GB", "30GB"), None),
    ("llama3-70b", {"outer": 8, "inner": 8}, ("76GiB",), None),
    ("llama3-70b", "auto", ("76GiB",), None),
    ("llama3-8b", {"ranks": 8}, ("80GB", "60GB", "50GB", "40GB", "30GB"), 1),
    ("llama3-8b", {"ranks": 8}, ("80GB", "60GB", "50GB", "40GB", "30GB"), None),
)
SEQUENCES, LENGTH = 64, 4096
CLUSTERS = {64: "h100:8x8", 8: "h100:8"}


def steps(first: int, last: int) -> None:
    """What a step takes under each limit, and by how much that is more than under a lower one."""
    models = tomllib.loads(Path(__file__).with_name("published.toml").read_text())["models"]
    graph = captured(Shape(**models["llama2-7b"]), SEQUENCES, LENGTH, "cuda")
    best, worst = float("inf"), 0.0
    for limit in range(first, last + 1):
        step = graph.plan(CLUSTERS[64], mesh={"ranks": 64}, memory_limit=f"{limit}GiB", micro_batches=1).figures()[
            "step_ms"
        ]
        rise = max(0.0, step / best - 1)
        best, worst = min(best, step), max(worst, rise)
        print(f"{limit} GiB: {step:.1f} ms{f', {rise:.2%} more than under a lower limit' if rise else ''}", flush=True)
    print(f"worst rise {worst:.2%}")


def main() -> None:
    if sys.argv[1:2] == ["steps"]:
        return steps(*(int(limit) for limit in sys.argv[2:4] or ("8", "40")))
    only = sys.argv[2:] if sys.argv[1:2] == ["rows"] else []
    models = tomllib.loads(Path(__file__).with_name("published.toml").read_text())["models"]
    print("| model | mesh | limit | step ms | of it again | exposed | peak GB | micro-batches | CPU s of the search |")
    print("|---|---|---|---|---|---|---|---|---|")
    graphs: dict[str, StepGraph] = {}
    for model, mesh, limits, micro_batches in CASES:
        sizes = [64] if isinstance(mesh, str) else list(mesh.values())
        axes = mesh if isinstance(mesh, str) else " x ".join(map(str, sizes))
        if only and [model, axes][: len(only)] != only:
            continue
        if model not in graphs:
            graphs[model] = captured(Shape(**models[model]), SEQUENCES, LENGTH, "cuda")
        cluster = CLUSTERS[math.prod(sizes)]
        for limit in limits:
            start = time.process_time()
            try:
                plan = graphs[model].plan(cluster, mesh=mesh, memory_limit=limit, micro_batches=micro_batches)
            except ResourceError as refused:
                least = str(refused.cause).partition(" bytes")[0].rpartition(" ")[2]
                row = f"none fits: the least needs {int(least) / 1e9:.1f} GB | | | | {micro_batches or ''}"
            else:
                figures = plan.figures()
                row = (
                    f"{figures['step_ms']:.0f} | {figures['recomputed_ms']:.0f} | {figures['exposed_ms']:.0f} | "
                    f"{figures['peak_bytes'] / 1e9:.1f} | {figures['micro_batches']}"
                )
            took = time.process_time() - start
            print(f"| {model} | {axes} | {limit} | {row} | {took:.1f} |", flush=True)


if __name__ == "__main__":
    main()
