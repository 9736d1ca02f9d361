"""What the ranks of the tests of collectives in steps run: a step's programs, measured."""

from __future__ import annotations

import os
from pathlib import Path

import steps
from test_operations import RATES

import unisono
from unisono import _devices, _profile
from unisono._ranks import Ranks


def measure(mesh: dict[str, int]) -> None:
    """Leaves the description that is complete for a step."""
    training = steps.mlp(count=1)
    step = {"model": training.model, "optimizer": training.optimizer, "example": training.batches[0]}
    graph = unisono.capture(training.step, **step).native
    text = _profile.with_operations(RATES, graph, mesh, Ranks(), _devices.HOST, 10.0)
    Path(f"{os.environ['RANK']}.toml").write_text(text)
