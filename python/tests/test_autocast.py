"""``torch.autocast`` casts in a captured step what it casts in eager PyTorch, and where: bit for bit the same."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare
from torch import nn


def casting(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def training(loss_of, *, outside: bool = False, chooses: bool = False, parts: int = 1) -> Training:
    """SGD on a layer that a loss uses; ``outside``: the loop casts too."""
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        losses = [loss_of(layer, part) for part in x.chunk(parts)]
        for loss in losses:
            loss.backward()
        if not chooses or losses[0] < 100:
            optimizer.step()
        return [loss.detach() for loss in losses]

    def cast_step(x):
        with casting() if outside else contextlib.nullcontext():
            return train_step(x)

    return Training(layer, optimizer, cast_step, [(torch.randn(4, 8),) for _ in range(3)])


def used_twice(layer, x):
    with casting():
        return layer(torch.tanh(layer(x))).float().square().mean()


def switched_off(layer, x):
    with casting(enabled=False):
        hidden = torch.tanh(layer(x))
    return F.mse_loss(layer(hidden).float(), x)


def written_through_a_view(layer, x):
    with casting(enabled=False):
        hidden = layer(x).clone()
        part = hidden[:2]
        hidden.mul_(0.5)
        part.add_(part @ layer.weight.detach())
    return (layer(hidden) + 0.01 * part.sum()).float().square().mean()


def looked_up_before_it_learns(layer, x):
    with casting():
        with torch.no_grad():
            target = layer(x)
        return (layer(x) - 0.5 * target).float().square().mean()


@pytest.mark.parametrize("chooses", [False, True])
@pytest.mark.parametrize("loss_of", [used_twice, switched_off, written_through_a_view, looked_up_before_it_learns])
@pytest.mark.parametrize("outside", [False, True])
def test_what_is_cast_is_as_in_eager_pytorch(loss_of, outside, chooses):
    compare(lambda: training(loss_of, outside=outside, chooses=chooses, parts=2), exactly=True)


def test_a_parameter_that_is_used_twice_is_cast_once():
    step = compare(lambda: training(used_twice))
    casts = [line for line in step.rank_graph.text().splitlines() if "aten::_to_copy(v0, bf16" in line]
    assert len(casts) == 1
