"""What it costs that ranks compare what they are given: ``torchrun --nproc-per-node 2 benches/agreement.py``.

Each row is one comparison of a batch of two tensors: CPU time summed over ranks and wall time, the fastest of several rounds. The share
is that of one comparison in 100 steps of the tiny GPT (width 64, 8 layers) on a global batch of 8 x 32 tokens.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import gpt_step

import unisono
from unisono import _agreement
from unisono._ranks import Ranks

ROUNDS, CALLS = 7, 10
SIZES = {
    "8 x 32 tokens (4 KiB)": (8, 32),
    "64 x 1024 tokens (1 MiB)": (64, 1024),
    "1024 x 8192 tokens (128 MiB)": (1024, 8192),
}


def cost(ranks: Ranks, call: Callable[[], object]) -> tuple[float, float]:
    """CPU milliseconds summed over ranks, and wall milliseconds of the slowest, of one call."""
    best = torch.full((2,), float("inf"), dtype=torch.float64)
    for _ in range(ROUNDS):
        begin = time.process_time(), time.perf_counter()
        for _ in range(CALLS):
            call()
        spent = torch.tensor([time.process_time() - begin[0], time.perf_counter() - begin[1]], dtype=torch.float64)
        every = torch.stack(ranks.gathered(spent))
        best = torch.minimum(best, torch.stack([every[:, 0].sum(), every[:, 1].max()]) * 1e3 / CALLS)
    return best[0].item(), best[1].item()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = gpt_step.GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = gpt_step.batch(8, 32)
    step = unisono.parallelize(
        gpt_step.step(model, optimizer), model=model, optimizer=optimizer, example=batch, compare_every=0
    )
    ranks = step.ranks
    step_cpu, step_wall = cost(ranks, lambda: step(*batch))
    lines = ["| compared | CPU time | wall time | of 100 steps |", "|---|---|---|---|"]
    rate = torch.tensor(0.1, dtype=torch.float64)
    for name, shape in SIZES.items():
        given = [*torch.randint(0, 256, (2, *shape)), rate, torch.get_rng_state()]
        cpu, wall = cost(ranks, lambda given=given: _agreement.require(ranks, ["x", "y", "lr", "rng"], given))
        lines.append(f"| {name} | {cpu:.2f} ms | {wall:.2f} ms | {cpu / (100 * step_cpu + cpu):.2%} |")
    if ranks.rank == 0:
        print("\n".join([*lines, f"\na step: {step_cpu:.1f} ms CPU, {step_wall:.1f} ms wall"]))


if __name__ == "__main__":
    main()
