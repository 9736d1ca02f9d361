"""What ranks of the tests of the watch run; see ``test_watch.py``."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono

#: The step at which the last of the ranks stands still.
STEP = 3
_done = 0


@torch.library.custom_op("unisono_test::sleeps", mutates_args=())
def sleeps(x: torch.Tensor) -> torch.Tensor:
    """Sleeps on the last rank from a step on, in Python."""
    if _done == STEP - 1 and os.environ.get("RANK") == "2":
        time.sleep(600)  # the line at which it sleeps
    return x * 1.0


sleeps.register_fake(torch.empty_like)
sleeps.register_autograd(lambda ctx, grad: grad)


def train(fault: str, timeout: float, mesh: dict[str, int] | None = None) -> None:
    """Trains until the last of three ranks stands still."""
    global _done
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = sleeps(model(x)).square().sum() if fault == "operation" else model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    unisono.register_rule("unisono_test::sleeps", "b h -> b h")
    batch = torch.randn(6, 6)
    parallel = unisono.parallelize(
        step,
        model=model,
        optimizer=optimizer,
        example=(batch,),
        cluster=DEAR_COMPUTING,
        mesh=mesh,
        micro_batches=mesh and 3,
        pins=None if mesh else {"batch.*": {"ranks": "shard(0)"}, "params.*": {"ranks": "replicate"}},
        compare_every=0,
        timeout=timeout,
    )
    for number in range(10_000):
        _done = number
        if number == STEP - 1 and rank == 2 and fault == "between":
            time.sleep(600)
        parallel(batch)
        print(f"step {number + 1}")
        time.sleep(0.01)
