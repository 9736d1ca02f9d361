"""`parallelize` leaves generators as it finds them; on several ranks those of rank 0 are the ranks'."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import steps
import torch
import torch.nn.functional as F
from launch import found_by_ranks
from torch import nn


def drops_and_draws():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x) * random.random() + np.random.rand(), torch.rand_like(x))
        loss.backward()
        optimizer.step()
        return loss

    return steps.Training(model, optimizer, step, [(torch.ones(8, 4),)] * 3)


def drawn():
    return [torch.rand(2).tolist(), random.random(), np.random.rand(), torch.get_rng_state().sum().item()]


def seeded(number):
    torch.manual_seed(number), random.seed(number), np.random.seed(number)


def main():
    """Losses, and what is drawn behind them, where ranks are seeded alike, and where they are not."""
    found = {}
    for name in ("expected", "losses"):
        seeded(3)
        training = drops_and_draws()
        seeded(4)
        step = training.step if name == "expected" else steps.parallelize(training)
        found[name] = [step(*batch).item() for batch in training.batches] + drawn()
    seeded(3)
    training = drops_and_draws()
    seeded(4)
    torch.manual_seed(int(os.environ["RANK"]))
    steps.parallelize(training)
    found["of rank 0"] = torch.rand(2).tolist()
    Path(os.environ["HOME"], f"{os.environ['RANK']}.json").write_text(json.dumps(found))


def test_generators_are_as_they_were_before(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    training = drops_and_draws()
    seeded(5)
    expected = drawn()
    seeded(5)
    steps.parallelize(training)
    assert drawn() == expected


def test_a_seed_that_is_given_is_that_of_pytorchs_generator(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    steps.parallelize(drops_and_draws(), seed=7)
    found = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(found, torch.rand(3))


def test_ranks_draw_what_one_device_draws_from_where_the_user_has_seeded(tmp_path_factory):
    found = found_by_ranks("test_generators_are_left:main", tmp_path_factory.mktemp)(2)
    torch.manual_seed(0)
    numbers = torch.rand(2).tolist()
    for one in found:
        torch.testing.assert_close(
            torch.tensor(one["losses"][:3]), torch.tensor(one["expected"][:3]), rtol=0, atol=1e-5
        )
        assert one["losses"][3:] == one["expected"][3:]
        assert one["of rank 0"] == numbers
