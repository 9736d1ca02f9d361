"""What ranks choose that measure differently."""

from __future__ import annotations

import json
import os
from pathlib import Path

import steps
import torch

import unisono
from unisono import _choice

torch.set_num_threads(1)


def differently(where: str) -> None:
    """A step whose groups are slower as kernels than as they are by what rank 0 measures, and faster by what rank 1 does."""
    rank = int(os.environ["RANK"])
    _choice._tried = lambda group, **_: (2_000, 1_000) if rank == 0 else (1_000, 2_000)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).exp().mul(0.5).mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(16, 32)
    settings = {"model": model, "optimizer": optimizer, "cluster": steps.EAGER_TO_CUT, "fuse": "auto"}
    step = unisono.parallelize(train_step, example=(x,), **settings)
    loss = float(step(x))
    Path(where, f"choice{rank}.json").write_text(json.dumps({"loss": loss, "kernels": step.kernels()}))
