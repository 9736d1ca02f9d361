"""What a step makes of its arguments in place is in the caller's tensors behind it."""

from __future__ import annotations

import arguments_in_place
import pytest
import steps
import torch
from launch import found_by_ranks
from torch import nn

import unisono
from unisono.errors import StepError


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory):
    return found_by_ranks("arguments_in_place:main", tmp_path_factory.mktemp)


@pytest.mark.parametrize("way", arguments_in_place.WAYS)
def test_arguments_are_left_as_eager_pytorch_leaves_them(way, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert arguments_in_place.difference(way) <= 1e-5


def test_on_two_ranks_arguments_are_left_as_on_one_device(by_ranks):
    for found in by_ranks(2):
        assert max(found.values()) <= 1e-5, found


def squares(change):
    model = nn.Linear(4, 4)

    def step(x, y):
        change(x)
        return (model(x.reshape(-1, 4)) - y).square().mean()

    return model, step


def test_another_shape_in_place_is_refused():
    model, step = squares(lambda x: x.unsqueeze_(0))
    with pytest.raises(StepError, match="another shape in place") as caught:
        unisono.parallelize(step, model=model, example=(torch.ones(2, 4), torch.ones(2, 4)))
    assert caught.value.code == "U0107"


def test_arguments_that_share_memory_are_refused_where_one_is_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model, step = squares(lambda x: x.add_(1))
    example = torch.ones(2, 4), torch.ones(2, 4)
    together = unisono.parallelize(step, model=model, example=example, cluster=steps.SLOW_LINKS)
    x = torch.ones(2, 4)
    together(x, torch.ones(2, 4))
    assert torch.equal(x, torch.full((2, 4), 2.0))
    with pytest.raises(StepError, match="shares memory with `y`") as caught:
        together(x, x)
    assert caught.value.code == "U0107"


def test_a_graph_leaves_nothing_in_arguments_and_is_refused():
    model, step = squares(lambda x: x.add_(1))
    with pytest.raises(StepError, match=r"changes its argument `batch\.x` in place") as caught:
        unisono.capture(step, model=model, example=(torch.ones(2, 4), torch.ones(2, 4)))
    assert caught.value.code == "U0107"
