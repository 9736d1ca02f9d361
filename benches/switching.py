"""What it costs that a step's batch has another shape than the one before, where both were captured.

Usage: python benches/switching.py     one rank, CPU time: calls of one shape, and calls that take turns
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import torch

import unisono
from unisono.errors import CaptureNotice

CALLS, ROUNDS = 200, 15
FULL, LAST = torch.ones(8, 16), torch.ones(6, 16)


def step_of(layers: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A training step of a small network, parallelized over one rank."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return unisono.parallelize(step, model=model, optimizer=optimizer, example=(FULL,))


def taken(step: Callable[[torch.Tensor], torch.Tensor], batches: list[torch.Tensor]) -> float:
    """CPU microseconds of a call."""
    start = time.process_time()
    for number in range(CALLS):
        step(batches[number % len(batches)])
    return (time.process_time() - start) / CALLS * 1e6


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CaptureNotice)
    print("| layers | one shape, us | the other, us | taking turns, us | a switch, us |\n|---|---|---|---|---|")
    for layers in (2, 8, 32):
        step = step_of(layers)
        for batch in (FULL, LAST, FULL, LAST):
            step(batch)
        rounds = [(taken(step, [FULL]), taken(step, [LAST]), taken(step, [FULL, LAST])) for _ in range(ROUNDS)]
        switches = [turns - (one + other) / 2 for one, other, turns in rounds]
        one, other, turns = (min(column) for column in zip(*rounds, strict=True))
        print(f"| {layers} | {one:.0f} | {other:.0f} | {turns:.0f} | {statistics.median(switches):.0f} |")


if __name__ == "__main__":
    main()
