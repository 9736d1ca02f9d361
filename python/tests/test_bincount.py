"""How often each number is there, counted in a step that says how many numbers there are."""

from __future__ import annotations

import eager
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import unisono
from unisono.errors import UnisonoError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


COUNTS = {
    "numbers": lambda p, y: torch.bincount(p, minlength=5),
    "a matrix of confusion": lambda p, y: torch.bincount(y * 5 + p, minlength=25).reshape(5, 5),
    "weights": lambda p, y: p.bincount(y.float(), 5),
    "whole weights": lambda p, y: torch.bincount(p.int(), weights=y, minlength=6),
}


def training(count):
    model = nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        made = model(x)
        counts = count(made.argmax(-1), y)
        loss = F.cross_entropy(made, y) * (1 + counts.flatten()[1])
        loss.backward()
        optimizer.step()
        return loss, counts

    return eager.Training(model, optimizer, step, [(torch.randn(8, 3), torch.arange(8) % 5) for _ in range(3)])


@pytest.mark.parametrize("count", COUNTS)
def test_counts_are_those_of_eager_pytorch(count):
    eager.compare(lambda: training(COUNTS[count]))


def test_counts_of_shards_are_those_of_all():
    torch.manual_seed(0)
    given = training(COUNTS["numbers"])
    whole = given.step
    given.step = lambda x, y: whole(x, y)[0]
    eager.compare_shards(given, 2)


def test_a_number_beyond_is_an_error():
    given = training(lambda p, y: torch.bincount(y, minlength=2) + 0 * p.sum())
    step = unisono.parallelize(given.step, model=given.model, optimizer=given.optimizer, example=given.batches[0])
    with pytest.raises(UnisonoError) as caught:
        step(*given.batches[0])
    assert caught.value.code == "U0310" and "out of range" in str(caught.value)
