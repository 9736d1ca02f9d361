"""Two gloo ranks: CPU time of a step, summed over ranks, over the single eager process, beside DDP and FSDP2.

    torchrun --nproc-per-node 2 benches/two_ranks.py

The tiny GPT of `gpt_step.py` (width 64, 8 layers) at a global batch of 8 x 32, one thread per process. All cases are measured
in turn, several rounds, in one run; the figure of a case is its fastest round. The last column is the collectives of a plan.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from gpt_step import GPT, eager_step

import unisono
from unisono.parallel import ParallelStep

STEPS, ROUNDS = 10, 7
FAMILIES = {
    "batch cut": {"batch.*": "shard(0)", "params.*": "replicate", "optimizer.*": "replicate"},
    "state cut": {"batch.*": "shard(0)", "params.*": "shard(0)", "optimizer.*": "shard(0)"},
    "tensors cut": {
        "batch.*": "replicate",
        "params.*.qkv.*": "shard(0, 3)",
        "params.*.up.*": "shard(0)",
        "params.*.out.weight": "shard(1)",
        "params.*.down.weight": "shard(1)",
    },
}


def by_torch(model: nn.Module, wrap: Callable[[nn.Module], nn.Module]) -> Callable[..., object]:
    """The step under one of PyTorch's own wrappers, on this rank's half of the batch."""
    wrapped = wrap(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def step(x_BT: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
        x_BT, y_BT = x_BT.chunk(ranks)[rank], y_BT.chunk(ranks)[rank]
        loss = F.cross_entropy(wrapped(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def fully_sharded(model: nn.Module) -> nn.Module:
    """FSDP2, block by block."""
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block)
    return fully_shard(model)


def captured(model: nn.Module, pins: dict[str, str], example: tuple[torch.Tensor, ...]) -> ParallelStep:
    """The step by Unisono, its family demanded."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x_BT: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    axis = {"a": dist.get_world_size()}
    demands = {pattern: {"a": placement} for pattern, placement in pins.items()}
    return unisono.parallelize(step, model=model, optimizer=optimizer, example=example, mesh=axis, pins=demands)


def cpu(step: Callable[..., object], example: tuple[torch.Tensor, ...], alone: bool) -> float:
    """CPU milliseconds of a step, summed over ranks; on rank 0 alone if asked."""
    dist.barrier()
    start = time.process_time()
    if not alone or dist.get_rank() == 0:
        for _ in range(STEPS):
            step(*example)
    spent = torch.tensor((time.process_time() - start) / STEPS * 1e3)
    if alone and dist.get_rank() != 0:
        spent.zero_()
    dist.all_reduce(spent)
    return spent.item()


def main() -> None:
    """Prints one line per case."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = GPT()
    example = tuple(torch.randint(0, 256, (2, 8, 32)))
    cases: dict[str, tuple[Callable[..., object], bool]] = {
        "one process, eager": (eager_step(copy.deepcopy(model)), True),
        "DDP": (by_torch(copy.deepcopy(model), nn.parallel.DistributedDataParallel), False),
        "FSDP2": (by_torch(copy.deepcopy(model), fully_sharded), False),
    }
    collectives: dict[str, int] = {}
    for family, pins in FAMILIES.items():
        step = captured(copy.deepcopy(model), pins, example)
        cases[f"unisono, {family}"] = (step, False)
        collectives[f"unisono, {family}"] = step.plan.prediction["collectives"]
    best = dict.fromkeys(cases, float("inf"))
    for _ in range(ROUNDS):
        for name, (step, alone) in cases.items():
            best[name] = min(best[name], cpu(step, example, alone))
    if dist.get_rank() == 0:
        for name, spent in best.items():
            ratio = spent / best["one process, eager"]
            print(f"| {name} | {spent:.1f} ms | {ratio:.2f} | {collectives.get(name, '')} |")
        sys.stdout.flush()
    dist.barrier()
    os._exit(0)  # FSDP2 leaves threads that a plain exit waits for


if __name__ == "__main__":
    main()
