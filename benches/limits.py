"""Plans of real models under smaller and smaller memory limits: what a step takes, what runs again, and what the search takes.

    python benches/limits.py

Models of `published.toml` on `meta`, parameters in f32 and products in bf16, 64 sequences of 4,096 tokens, 64 ranks of `h100:8x8`.
"""

from __future__ import annotations

import time
from pathlib import Path

from published import Shape, captured, tomllib

from unisono.errors import ResourceError

LIMITS = {"llama2-7b": ("40GB", "20GB", "12GB", "8GB", "6GB"), "llama3-70b": ("80GB", "70GB", "50GB", "40GB", "30GB")}
SEQUENCES, LENGTH = 64, 4096
CLUSTER, RANKS = "h100:8x8", 64


def main() -> None:
    models = tomllib.loads(Path(__file__).with_name("published.toml").read_text())["models"]
    print("| model | limit | step ms | of it again | exposed | peak GB | micro-batches | CPU s of the search |")
    print("|---|---|---|---|---|---|---|---|")
    for model, limits in LIMITS.items():
        graph = captured(Shape(**models[model]), SEQUENCES, LENGTH)
        for limit in limits:
            start = time.process_time()
            try:
                figures = graph.plan(CLUSTER, mesh={"ranks": RANKS}, memory_limit=limit).figures()
            except ResourceError as refused:
                row = refused.cause
            else:
                row = (
                    f"{figures['step_ms']:.0f} | {figures['recomputed_ms']:.0f} | {figures['exposed_ms']:.0f} | "
                    f"{figures['peak_bytes'] / 1e9:.1f} | {figures['micro_batches']}"
                )
            print(f"| {model} | {limit} | {row} | {time.process_time() - start:.1f} |", flush=True)


if __name__ == "__main__":
    main()
