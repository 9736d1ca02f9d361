"""What each rank does in the tests of models that are built without memory."""

from __future__ import annotations

import contextlib
import json
import os

import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono

SHARDED = {"params.*": {"ranks": "shard(0)"}, "optimizer.*": {"ranks": "shard(0)"}}
REPLICATED = {"params.*": {"ranks": "replicate"}, "optimizer.*": {"ranks": "replicate"}}


class Model(nn.Module):
    """Tied weights, a buffer that is written, one that is not, a constant, a frozen parameter, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(24, 12), nn.Linear(12, 24, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.trunc_normal_(self.embedding.weight, std=0.2)
        self.up, self.norm, self.down = nn.Linear(12, 36), nn.BatchNorm1d(36), nn.Linear(36, 12)
        self.frozen = nn.Parameter(torch.rand(12) + 0.5, requires_grad=False)
        self.register_buffer("mask", torch.ones(12).cumsum(0) / 12)
        self.scale = torch.full((12,), 0.5)

    def forward(self, x):
        h = self.embedding(x) * self.mask * self.frozen
        h = h + self.down(torch.dropout(torch.relu(self.norm(self.up(h))), 0.1, self.training))
        return self.head(h * self.scale)


def made(deferred: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(5)
    with unisono.deferred_init() if deferred else contextlib.nullcontext():
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
    return model, optimizer


def with_average(deferred: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Trains a model with an average of its weights beside it."""
    torch.manual_seed(5)
    with unisono.deferred_init() if deferred else contextlib.nullcontext():
        model = Model()
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        return loss

    example = (torch.arange(12) % 24, torch.arange(12) * 5 % 24)
    run = unisono.parallelize(step, model=model, optimizer=optimizer, example=example, cluster=DEAR_COMPUTING)
    losses = [run(*example).item() for _ in range(3)]
    run.sync()
    return losses, average.state_dict()


def train_with_average() -> None:
    (losses, state), (others, other) = with_average(False), with_average(True)
    print(losses == others and all(torch.equal(state[name], other[name]) for name in state))


def parallel(model: nn.Module, optimizer: torch.optim.Optimizer, **settings):
    def step(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    example = (torch.arange(12) % 24, torch.arange(12) * 5 % 24)
    return unisono.parallelize(
        step, model=model, optimizer=optimizer, example=example, cluster=DEAR_COMPUTING, **settings
    ), example


def train(pins: dict) -> None:
    """Trains a model that was built as usual, and one that was built without memory, and prints whether they are equal."""
    found = []
    for deferred in (False, True):
        model, optimizer = made(deferred)
        step, example = parallel(model, optimizer, pins=pins)
        if deferred and pins == SHARDED:
            state = [one for name in pins for one in _placed(model, optimizer, name)]
            assert all(_bytes(one) <= one.element_size() for one in state), "a rank holds more than its shards"
        losses = [step(*example).item() for _ in range(3)]
        step.sync()
        state = {
            **model.state_dict(),
            **{f"{i}.{k}": v for i, s in enumerate(optimizer.state.values()) for k, v in s.items()},
        }
        found.append((losses, state))
    (losses, state), (others, other) = found
    assert state.keys() == other.keys() and all(torch.equal(state[name], other[name]) for name in state)
    print(json.dumps({"losses": losses, "others": others}))


def _placed(model: nn.Module, optimizer: torch.optim.Optimizer, pattern: str) -> list[torch.Tensor]:
    """The tensors of the user's that a pattern names, those that are sharded evenly."""
    if pattern.startswith("params"):
        return [model.up.weight, model.down.weight, model.embedding.weight]
    return [optimizer.state[p]["exp_avg"] for p in (model.up.weight, model.down.weight)]


def _bytes(tensor: torch.Tensor) -> int:
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.untyped_storage().nbytes()


def differ(what: str) -> None:
    """Builds the model otherwise on one rank: by other code, from another number, from other data, or after another seed."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(5 + rank if what == "seed" else 5)
    with unisono.deferred_init():
        model = Model()
        if what == "code" and rank == 1:
            nn.init.zeros_(model.up.bias)
        if what == "number":
            nn.init.constant_(model.up.bias, 0.1 + rank)
        if what == "data":
            model.up.bias.data.copy_(torch.tensor([0.1 + rank]))
    optimizer = torch.optim.AdamW(model.parameters(), eps=1e-4)
    try:
        step, example = parallel(model, optimizer)
        print(step(*example).item())
    except unisono.errors.StepError as error:
        print(error.code, error.message)
