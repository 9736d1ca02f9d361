"""Steps that change their arguments in place, on one rank and on several; see ``test_arguments_in_place.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steps
import torch
import torch.nn.functional as F
from torch import nn

import unisono

STEPS = 3


def scales(x: torch.Tensor, _loss: torch.Tensor) -> None:
    x.mul_(0.5)[:, 0] = 1


def masks(x: torch.Tensor, _loss: torch.Tensor) -> None:
    x[x < 0] = 0


def through_data(x: torch.Tensor, _loss: torch.Tensor) -> None:
    x.data.add_(1)


def keeps_the_result(x: torch.Tensor, loss: torch.Tensor) -> None:
    x.copy_(x + loss.detach())


def by_choice(x: torch.Tensor, loss: torch.Tensor) -> None:
    if loss > 1:
        x.neg_()


WAYS: dict[str, Callable[..., None]] = {
    one.__name__: one for one in (scales, masks, through_data, keeps_the_result, by_choice)
}


def training(way: Callable[..., None]) -> steps.Training:
    torch.manual_seed(0)
    model = nn.Linear(6, 6)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        way(x, F.mse_loss(model(x), y))
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(12, 6, generator=generator), torch.randn(12, 6, generator=generator)) for _ in range(STEPS)]
    return steps.Training(model, optimizer, step, batches)


def difference(way: str, **settings: Any) -> float:
    """How far losses, arguments behind the step and parameters are from eager PyTorch's; each batch is given twice."""
    expected, found = training(WAYS[way]), training(WAYS[way])
    example = tuple(one.clone() for one in found.batches[0])
    step = steps.parallelize(found, example=example, **settings)
    pairs = []
    for ours, theirs in zip(found.batches * 2, expected.batches * 2, strict=True):
        pairs.append((step(*ours).detach(), expected.step(*theirs).detach()))
        pairs += zip(ours, theirs, strict=True)
    step.sync()
    pairs += zip(found.model.parameters(), expected.model.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


def local(way: str) -> float:
    """The same where each rank gives its own part of the batch."""
    expected, found = training(WAYS[way]), training(WAYS[way])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    own = [tuple(one.chunk(ranks)[rank].clone() for one in batch) for batch in found.batches]
    example = tuple(one.clone() for one in own[0])
    step = unisono.parallelize(
        found.step,
        model=found.model,
        optimizer=found.optimizer,
        example=example,
        batch="local",
        cluster=steps.SLOW_LINKS,
    )
    worst = 0.0
    for ours, theirs in zip(own, expected.batches, strict=True):
        step(*ours), expected.step(*theirs)
        worst = max(worst, float((ours[0] - theirs[0].chunk(ranks)[rank]).abs().max()))
    return worst


def main() -> None:
    """Every way on the ranks that there are."""
    found = {way: difference(way) for way in WAYS} | {f"{way}, local": local(way) for way in ("scales", "masks")}
    Path(os.environ["HOME"], f"{os.environ['RANK']}.json").write_text(json.dumps(found))
