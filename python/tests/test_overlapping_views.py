"""Views whose elements overlap or leave gaps lie in memory on each rank as its graph says, so that what is made of them can be."""

from __future__ import annotations

import msgpack
import pytest
import torch
from machines import DEAR_COMPUTING
from ranks import train
from torch import nn

import unisono

VIEWS = {
    "windows": lambda x: x.unfold(2, 4, 2),
    "windows along the first dimension": lambda x: x.unfold(1, 3, 1),
    "a diagonal": lambda x: x.diagonal(1, 2, 1),
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", VIEWS)
def test_ranks_give_of_a_view_what_one_gives(name, ranks):
    torch.manual_seed(0)
    model = nn.Conv1d(3, 6, 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = VIEWS[name](model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(4, 3, 10)
    graph = unisono.capture(step, model=model, optimizer=optimizer, example=(x,))
    settings = {"mesh": {"a": ranks}, "pins": {"batch.*": {"a": "shard(0)"}}, "memory_limit": None}
    plan = graph.native.plan(DEAR_COMPUTING, msgpack.packb(settings))
    found, _ = train(graph, plan, {"a": ranks}, [(x,)] * 2, passes=True)  # which holds each stride against its type
    torch.testing.assert_close(torch.stack(found), torch.stack([step(x), step(x)]))
