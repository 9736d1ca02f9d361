"""What ranks of the tests of agreement run; see ``test_agreement.py``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steps
import torch

import unisono
from unisono.errors import UnisonoError

RANK = int(os.environ.get("RANK", "0"))


def _training(dropout: float = 0.0) -> steps.Training:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(dropout), torch.nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y, scale):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean() * scale
        loss.backward()
        optimizer.step()
        return loss.detach()

    return steps.Training(model, optimizer, step, [(torch.randn(8, 4), torch.randn(8, 2), 2.0) for _ in range(8)])


def _parallel(training: steps.Training, example: Any = None, **settings: Any) -> Any:
    example = example or training.batches[0]
    settings |= {"model": training.model, "optimizer": training.optimizer, "cluster": steps.EAGER_TO_CUT}
    return unisono.parallelize(training.step, example=example, **settings)


def own_batch() -> None:
    """Each rank draws a batch of its own."""
    training = _training()
    step = _parallel(training)
    x, y, scale = training.batches[0]
    step(x, torch.full_like(y, RANK), scale)


def own_batch_later() -> None:
    """The ranks' batches part at the fifth step; every fourth is compared."""
    training = _training()
    step = _parallel(training, compare_every=4)
    for number, (x, y, scale) in enumerate(training.batches):
        Path(f"step{RANK}").write_text(str(number))
        step(x + RANK * (number >= 4), y, scale)


def never_compared() -> None:
    """Batches that differ, and ranks that do not care."""
    training = _training()
    step = _parallel(training, compare_every=0)
    x, y, scale = training.batches[0]
    step(x + RANK, y, scale)
    raise UnisonoError("nobody noticed")


def own_rate() -> None:
    """One rank has another learning rate."""
    training = _training()
    step = _parallel(training)
    training.optimizer.param_groups[0]["lr"] = 0.1 + 0.1 * RANK
    step(*training.batches[0])


def own_numbers() -> None:
    """One rank draws numbers before a step with dropout."""
    training = _training(dropout=0.5)
    step = _parallel(training)
    if RANK == 1:
        torch.randn(1)
    step(*training.batches[0])


def own_numbers_that_nobody_needs() -> None:
    """One rank draws numbers before a step without dropout."""
    training = _training()
    step = _parallel(training)
    if RANK == 1:
        torch.randn(1)
    step(*training.batches[0])
    raise UnisonoError("all well")


def own_generator() -> None:
    """One rank has seeded the generator that the step draws from otherwise."""
    training, generator = _training(), torch.Generator().manual_seed(RANK)

    def step(x, y, scale):
        return training.step(x + torch.rand(x.shape, generator=generator), y, scale)

    given = {"model": training.model, "optimizer": training.optimizer, "example": training.batches[0]}
    unisono.parallelize(step, **given, cluster=steps.EAGER_TO_CUT)(*training.batches[0])


def own_shard() -> None:
    """The last rank passes only its part of the batch as the example."""
    training = _training()
    x, y, scale = training.batches[0]
    last = int(os.environ["WORLD_SIZE"]) - 1
    _parallel(training, (x[:4], y[:4], scale) if last == RANK else None)


def own_constant() -> None:
    """One rank passes another number."""
    training = _training()
    x, y, scale = training.batches[0]
    _parallel(training, (x, y, scale + RANK))


def own_misfit() -> None:
    """One rank's example does not fit the step."""
    training = _training()
    _parallel(training, training.batches[0][: 3 - RANK])


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (
        own_batch,
        own_batch_later,
        never_compared,
        own_rate,
        own_numbers,
        own_numbers_that_nobody_needs,
        own_generator,
        own_shard,
        own_constant,
        own_misfit,
    )
}


def run_all() -> None:
    """Runs all cases and writes what each rank was told."""
    told = {}
    for name, case in CASES.items():
        try:
            case()
        except UnisonoError as error:
            told[name] = {key: getattr(error, key) for key in ("code", "message", "cause", "hint")}
    Path(f"told{RANK}.json").write_text(json.dumps(told))
