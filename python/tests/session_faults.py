"""What ranks of the session's failure tests run; see ``test_session_errors.py``."""

from __future__ import annotations

import json
import os
import time
import traceback
import warnings
from pathlib import Path
from unittest import mock

import steps
import torch

import unisono
from unisono import _issue_order
from unisono._issue_order import prints_of
from unisono.errors import UnisonoError

CUT = {"batch.*": {"a": "shard(0)"}, "params.*": {"a": "replicate"}, "optimizer.*": {"a": "replicate"}}


def run_until_killed(pause: float) -> None:
    """Runs steps without end; what ends it is printed as JSON with the time."""
    ranks = int(os.environ["WORLD_SIZE"])
    training = steps.gpt(count=1, batch=2 * ranks)
    step = steps.parallelize(training, {"a": ranks}, CUT)
    number = 0
    try:
        while True:
            step(*training.batches[0])
            print("step", number, flush=True)
            number += 1
            time.sleep(pause)
    except UnisonoError as error:
        fields = {key: getattr(error, key) for key in ("code", "message", "place", "cause", "hint")}
        Path(f"error{step.ranks.rank}.json").write_text(json.dumps(fields))
        raise


def refuse(pins: dict[str, dict[str, str]], mesh: dict[str, int]) -> None:
    """Asks for what cannot be; every rank must say why."""
    steps.parallelize(steps.mlp(count=1), mesh, pins)


def run_in_disagreement() -> None:
    """The passes of one rank give another order of collectives: all must run without the passes, and give what one device gives."""
    ranks = int(os.environ["WORLD_SIZE"])
    alone, together = steps.gpt(count=2, batch=2 * ranks), steps.gpt(count=2, batch=2 * ranks)

    def prints(order, mesh):
        whole, along = prints_of(order, mesh)
        return [whole, along[:-1] + os.environ["RANK"]]

    other = mock.patch.object(_issue_order, "prints_of", prints)
    with other, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step = unisono.parallelize(
            together.step,
            model=together.model,
            optimizer=together.optimizer,
            example=together.batches[0],
            mesh={"a": ranks},
            pins=CUT,
            cluster=steps.EAGER_TO_CUT,
        )
    said = [str(warning.message) for warning in caught if warning.category is RuntimeWarning]
    losses = [[float(run(*batch)) for batch in alone.batches] for run in (alone.step, step)]
    Path(f"said{os.environ['RANK']}.json").write_text(
        json.dumps({"said": said, "passes": step.passes, "losses": losses})
    )


def run_into_an_error_of_its_own() -> None:
    """The shapes of two layers do not fit; what is raised is written down."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(6, 2))

    def scores(x: torch.Tensor) -> torch.Tensor:
        return model(x)

    def step(x: torch.Tensor) -> torch.Tensor:
        return scores(x).sum()

    try:
        unisono.parallelize(step, model=model, example=torch.zeros(4, 8))
    except RuntimeError:
        Path(f"told{os.environ['RANK']}.txt").write_text(traceback.format_exc())
        raise


def sync_alone() -> None:
    """Rank 0 alone calls `sync`; what it is told, and after how long, is written as JSON."""
    ranks = int(os.environ["WORLD_SIZE"])
    training = steps.gpt(count=1, batch=2 * ranks)
    step = steps.parallelize(training, {"a": ranks}, CUT)
    step(*training.batches[0])
    start = time.monotonic()
    try:
        if step.ranks.rank == 0:
            step.sync()
        step(*training.batches[0])
    except UnisonoError as error:
        told = {"code": error.code, "message": error.message, "hint": error.hint, "seconds": time.monotonic() - start}
        Path(f"alone{step.ranks.rank}.json").write_text(json.dumps(told))
        raise


def switch_apart(shapes: list[list[int]]) -> None:
    """After steps of sizes 8, 6 and 8, each rank takes those of its own; what it is told, and after how long, is written as JSON."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    training = steps.squares(model, torch.optim.SGD(model.parameters(), lr=0.1))
    step = steps.parallelize(training, {"a": 2}, example=(torch.ones(8, 4),))
    losses = [float(step(torch.ones(size, 4))) for size in (8, 6, 8)]
    start = time.monotonic()
    try:
        losses += [float(step(torch.ones(size, 4))) for size in shapes[rank]]
    except UnisonoError as error:
        told = {"code": error.code, "message": error.message, "seconds": time.monotonic() - start}
        Path(f"apart{rank}.json").write_text(json.dumps(told))
        raise
    Path(f"apart{rank}.json").write_text(json.dumps({"losses": losses}))
