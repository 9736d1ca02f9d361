"""What running parts of forward again costs and saves: peak and processor time of a step under falling limits, on one rank.

Usage: python benches/recompute.py [--layers 4] [--batch 32] [--length 64] [--width 128]

A LLaMA of transformers with AdamW, in ways that take turns: without a limit, under limits that lie between that and
`recompute="full"`, with that, and with `gradient_checkpointing_enable()`, which runs every layer again, captured by Unisono and by
itself in eager PyTorch. Activations: the measured peak less state, batch and one set of gradients. CPU: the median over rounds of a
way's processor time over that without a limit in the same round.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import tiny_llama
import torch

import unisono

LIMITS = (0.8, 0.6, 0.4, 0.2)
ROUNDS = 7


def main() -> None:
    sizes = tiny_llama.options(__doc__, width=128)
    torch.set_num_threads(1)
    ways: dict[str, tuple[Callable[..., Any], Any]] = {}

    def parallel(way: str, checkpointed: bool = False, **settings: Any) -> Any:
        model, optimizer, step, batch = tiny_llama.training(sizes, checkpointed, use_cache=False)
        made = unisono.parallelize(
            step, model=model, optimizer=optimizer, example=batch, micro_batches=1, cluster="cpu:1", **settings
        )
        ways[way] = made, batch
        return made

    free = parallel("no limit").plan.prediction["peak_bytes"]
    full = parallel('recompute="full"', recompute="full").plan.prediction["peak_bytes"]
    for share in LIMITS:
        parallel(f"limit {share:.1f}", memory_limit=int(full + share * (free - full)))
    parallel("checkpointed layers", checkpointed=True)
    model, _, eager, batch = tiny_llama.training(sizes, checkpointed=True, use_cache=False)
    ways["the same, eager PyTorch"] = eager, batch
    gradients = sum(parameter.nbytes for parameter in model.parameters())

    losses = {way: [step(*batch) for _ in range(3)][-1] for way, (step, batch) in ways.items()}
    took: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, (step, batch) in ways.items():
            start = time.process_time()
            for _ in range(3):
                step(*batch)
            took[way].append(time.process_time() - start)
    print(f"{'':24} loss after 3   peak, MiB (predicted)   activations, MiB   predicted time   CPU")
    for way, (step, batch) in ways.items():
        ratios = [own / alone for own, alone in zip(took[way], took["no limit"], strict=True)]
        line = f"{way:24} {float(losses[way].detach()):12.7f}"
        if hasattr(step, "plan"):
            peak, predicted = step.measure(*batch)["peak_bytes"][0], step.plan.prediction
            rest = predicted["state_bytes"] + predicted["batch_bytes"] + gradients
            times = predicted["step_ns"] / ways["no limit"][0].plan.prediction["step_ns"]
            line += f"   {peak / 2**20:9.2f} ({predicted['peak_bytes'] / 2**20:9.2f})"
            line += f"   {(peak - rest) / 2**20:16.2f}   {times:14.3f}"
        else:
            line += " " * 58
        print(f"{line}   {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
