"""Norms of gradients, their scaling and steps of AdamW of lists of small tensors, which are computed without PyTorch."""

from __future__ import annotations

import copy
import re

import pytest
import torch
from torch import nn

import unisono
from unisono.parallel import ParallelStep

LISTS = ("_foreach_norm.Scalar", "_foreach_mul_.Tensor", "_foreach_add_.Tensor", "_fused_adamw_.tensor_lr")


class Network(nn.Module):
    """Tensors of many sizes, one of which is stored by columns."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(12, width), nn.LayerNorm(width), nn.Linear(width, 3)
        self.turned = nn.Parameter(torch.randn(3, 12).t())
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.second(self.norm(self.first(x)).tanh()) + x @ self.turned) * self.scale


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer):
    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - y).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return train_step


def routes(step: ParallelStep) -> dict[str, str]:
    """How each operation on lists is called."""
    text = str(step._captured[0].executor.program)
    found = (re.search(rf"aten::{re.escape(name)}\(.* by (\w+)", text) for name in LISTS)
    return {name: match[1] if match else "" for name, match in zip(LISTS, found, strict=True)}


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.3, 0.6)])
@pytest.mark.parametrize("width", [16, 3000])
def test_a_step_is_that_of_eager_pytorch(width: int, betas: tuple[float, float]) -> None:
    torch.manual_seed(0)
    model = Network(width)
    other = copy.deepcopy(model)
    made = [torch.optim.AdamW(one.parameters(), lr=0.01, betas=betas, weight_decay=0.1) for one in (model, other)]
    batches = [(torch.randn(8, 12), torch.randn(8, 3)) for _ in range(4)]
    eager = step_of(other, made[1])
    step = unisono.parallelize(
        step_of(model, made[0]), model=model, optimizer=made[0], example=batches[0], cluster="cpu:1", fuse=True
    )
    for batch in batches:
        torch.testing.assert_close(step(*batch), eager(*batch), atol=1e-5, rtol=1e-5)
    for one, its in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, its, atol=1e-5, rtol=1e-5)
    # A tensor of 36,000 elements is one that PyTorch shares among threads.
    own = ["own"] if width == 16 else ["dispatcher", "proxy"]
    found = routes(step)
    assert all(found[name] in own for name in LISTS if name != "_foreach_add_.Tensor"), found
    assert found["_foreach_add_.Tensor"] == "own"


class Given(nn.Module):
    """Parameters whose gradients are what the step is given; half of them start at 0, so that they are what they have moved by."""

    SIZES = (1, 7, 64, 1000, 1 << 15, 333)

    def __init__(self) -> None:
        super().__init__()
        made = [torch.randn(size) * (at % 2) for at, size in enumerate(self.SIZES)]
        self.all = nn.ParameterList(nn.Parameter(one) for one in made)

    def forward(self, gradients: torch.Tensor) -> torch.Tensor:
        parts = gradients.split(self.SIZES)
        return torch.stack([(one * part).sum() for one, part in zip(self.all, parts, strict=True)]).sum()


def given_step(model: Given, optimizer: torch.optim.Optimizer):
    def train_step(gradients: torch.Tensor) -> torch.Tensor:
        model(gradients).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        return norm

    return train_step


def trained(model: Given, settings: dict, batches: list[torch.Tensor], own: bool) -> dict[str, list[torch.Tensor]]:
    """The norms of steps, then moments, and parameters by where they started."""
    optimizer = torch.optim.AdamW(model.parameters(), **settings)
    step = given_step(model, optimizer)
    if own:
        step = unisono.parallelize(
            step, model=model, optimizer=optimizer, example=(batches[0],), cluster="cpu:1", fuse=True
        )
    found = {"norms": [step(batch.clone()) for batch in batches]}
    if isinstance(step, ParallelStep):
        assert set(routes(step).values()) == {"own"}
    all_of = list(model.parameters())
    found |= {moment: [optimizer.state[one][moment] for one in all_of] for moment in ("exp_avg", "exp_avg_sq")}
    return found | {"from 0": [one.detach() for one in all_of[::2]], "others": [one.detach() for one in all_of[1::2]]}


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.3, 0.6)])
@pytest.mark.parametrize("steps", [1, 30])
def test_errors_are_at_most_one_and_a_half_of_pytorchs(steps: int, betas: tuple[float, float]) -> None:
    torch.manual_seed(steps)
    model = Given()
    settings = {"lr": 0.01, "betas": betas, "weight_decay": 0.1}
    batches = [torch.randn(sum(Given.SIZES)) * 10.0 ** -(at % 3) for at in range(steps)]
    own = trained(copy.deepcopy(model), settings, batches, own=True)
    eager = trained(copy.deepcopy(model), settings | {"fused": True}, batches, own=False)
    exact = trained(model.double(), settings, [batch.double() for batch in batches], own=False)
    for name, true in exact.items():
        # Of each tensor in parts of its greatest number.
        mine, its = (
            torch.cat([((a - b).abs() / b.abs().max()).flatten() for a, b in zip(found[name], true, strict=True)])
            for found in (own, eager)
        )
        assert mine.mean() <= 1.5 * its.mean() and mine.max() <= 1.5 * its.max(), name
