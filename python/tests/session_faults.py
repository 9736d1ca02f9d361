"""What ranks of the session's failure tests run; see ``test_session_errors.py``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import steps

import unisono
from unisono.errors import UnisonoError

CUT = {"batch.*": {"a": "shard(0)"}, "params.*": {"a": "replicate"}, "optimizer.*": {"a": "replicate"}}


def run_until_killed(pause: float) -> None:
    """Runs steps without end; what ends it is printed as JSON with the time."""
    ranks = int(os.environ["WORLD_SIZE"])
    training = steps.gpt(count=1, batch=2 * ranks)
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh={"a": ranks},
        pins=CUT,
        cluster=steps.EAGER_TO_CUT,
    )
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
    training = steps.mlp(count=1)
    unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh=mesh,
        pins=pins,
        cluster=steps.EAGER_TO_CUT,
    )
