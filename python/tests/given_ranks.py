"""What ranks of the tests of values of the batch run; see ``test_given.py``."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import given_steps
import torch
from machines import DEAR_COMPUTING

import unisono
from unisono.errors import StepError


def compare() -> None:
    """Writes how far from eager PyTorch two ranks are, and what is said where each has a part of the batch."""
    warnings.simplefilter("ignore")
    rank, off = int(os.environ["RANK"]), {}
    for name in ("grids_as_lists", "what_a_mask_selects"):
        loss = given_steps.NAMES[name]
        expected, weight, _ = given_steps.trained(loss)

        def parallelize(step, **how):
            return unisono.parallelize(step, cluster=DEAR_COMPUTING, mesh={"data": 2}, **how)

        found, now, _ = given_steps.trained(loss, parallelize)
        off[name] = max(
            (torch.tensor(found) - torch.tensor(expected)).abs().max().item(), (now - weight).abs().max().item()
        )
    model, optimizer, step = given_steps.made(given_steps.grids_as_lists)
    example = given_steps.batches(given_steps.grids_as_lists)[0]
    try:
        unisono.parallelize(
            step, model=model, optimizer=optimizer, example=example, batch="local", cluster=DEAR_COMPUTING
        )
    except StepError as error:
        off["refused"] = f"{error.code} {error.hint}"
    Path(f"given{rank}.json").write_text(json.dumps(off))
