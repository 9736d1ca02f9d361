"""Two pipeline stages over gloo: CPU time of a step, summed over ranks, over the single eager process, beside torch's own pipelining.

    torchrun --nproc-per-node 2 benches/stages.py

The tiny GPT of `gpt_step.py` (width 64, 8 layers) at a global batch of 8 x 32 in four micro-batches, one thread per process. torch's stages
are made by hand, four layers each, and clip nothing; ours are found, and clip over both. All cases are measured in turn, several
rounds, in one run; the figure of a case is its fastest round. The last column is the transfers of the stage that is busy longest.
"""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

sys.path.insert(0, str(Path(__file__).parent))
from gpt_step import GPT, eager_step
from two_ranks import cpu

import unisono
from unisono.parallel import ParallelStep

ROUNDS, MICRO_BATCHES = 7, 4


class Part(nn.Module):
    """Half of the layers, with the embeddings in front of the first half and the output behind the second."""

    def __init__(self, model: GPT, second: bool) -> None:
        super().__init__()
        half = len(model.blocks) // 2
        self.blocks = model.blocks[half:] if second else model.blocks[:half]
        ends = ("norm", "head") if second else ("tokens", "positions")
        for name in ends:
            setattr(self, name, getattr(model, name))
        self.second = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.second:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)) if self.second else x


def by_torch(model: GPT, schedule: type) -> Callable[..., object]:
    """The step with torch's stages."""
    rank = dist.get_rank()
    part = Part(model, rank == 1)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)

    def loss_of(scores: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(scores.flatten(0, 1), y_BT.flatten())

    pipeline = schedule(stage, MICRO_BATCHES, loss_fn=loss_of)

    def step(x_BT: torch.Tensor, y_BT: torch.Tensor) -> None:
        optimizer.zero_grad()
        if rank == 0:
            pipeline.step(x_BT)
        else:
            pipeline.step(target=y_BT)
        optimizer.step()

    return step


def by_unisono(model: GPT, schedule: str, example: tuple[torch.Tensor, ...]) -> ParallelStep:
    """The ordinary step of one device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x_BT: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return unisono.parallelize(
        step,
        model=model,
        optimizer=optimizer,
        example=example,
        mesh={"stages": 2},
        micro_batches=MICRO_BATCHES,
        schedule=schedule,
        cuts=["blocks.4"],
    )


def main() -> None:
    """Prints one line per case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = GPT()
    example = tuple(torch.randint(0, 256, (2, 8, 32)))
    cases: dict[str, tuple[Callable[..., object], bool]] = {
        "one process, eager": (eager_step(copy.deepcopy(model)), True),
        "torch, GPipe": (by_torch(copy.deepcopy(model), ScheduleGPipe), False),
        "torch, 1F1B": (by_torch(copy.deepcopy(model), Schedule1F1B), False),
    }
    transfers: dict[str, int] = {}
    for schedule in ("gpipe", "1f1b"):
        step = by_unisono(copy.deepcopy(model), schedule, example)
        cases[f"unisono, {schedule}"] = (step, False)
        transfers[f"unisono, {schedule}"] = step.plan.prediction["collectives"]
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, (step, alone) in cases.items():
            best[name] = min(best[name], cpu(step, example, alone))
    if dist.get_rank() == 0:
        for name, spent in best.items():
            ratio = spent / best["one process, eager"]
            print(f"| {name} | {spent:.1f} ms | {ratio:.2f} | {transfers.get(name, '')} |")
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # as two_ranks.py ends


if __name__ == "__main__":
    main()
