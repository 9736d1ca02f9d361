"""What the ranks of the tests of refits run: a step whose timelines they write."""

from __future__ import annotations

import json
import os
from pathlib import Path

import steps

import unisono

#: Sharded state, so that there are gathers and reductions.
PINS = {"batch.*": {"data": "shard(0)"}, "params.*": {"data": "shard(0)"}, "optimizer.*": {"data": "shard(0)"}}


def write() -> None:
    """Runs a refit on all ranks, and leaves what it says, beside the timelines of two further steps."""
    training = steps.mlp(count=1)
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh={"data": int(os.environ["WORLD_SIZE"])},
        pins=PINS,
        cluster=steps.EAGER_TO_CUT,
    )
    (batch,) = training.batches
    refit = step.refit(*batch)
    for number in range(2):
        step.write_timelines(str(number), *batch)
    found = {"text": str(refit), "figures": refit.figures, "cluster": refit.cluster, "replanned": refit.replanned}
    Path(os.environ["RANK"] + ".json").write_text(json.dumps(found))
