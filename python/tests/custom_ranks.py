"""A model with operations of its own, and what ranks of its tests run; see ``test_custom_operations.py``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono


@torch.library.custom_op("unisono_test::gated", mutates_args=())
def gated(x_BSH: torch.Tensor, weight_HD: torch.Tensor, scale: float) -> torch.Tensor:
    """A product, and a function of each element of it."""
    return torch.sin(x_BSH @ weight_HD * scale)


@gated.register_fake
def _(x_BSH, weight_HD, scale):
    return x_BSH.new_empty(*x_BSH.shape[:-1], weight_HD.shape[1])


@torch.library.custom_op("unisono_test::gated_backward", mutates_args=())
def gated_backward(
    grad_BSD: torch.Tensor, x_BSH: torch.Tensor, weight_HD: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of both operands."""
    inner = grad_BSD * torch.cos(x_BSH @ weight_HD * scale) * scale
    return inner @ weight_HD.T, torch.einsum("bsh,bsd->hd", x_BSH, inner)


@gated_backward.register_fake
def _(grad_BSD, x_BSH, weight_HD, scale):
    return torch.empty_like(x_BSH), torch.empty_like(weight_HD)


def _save(ctx, inputs, output):
    x, weight, ctx.scale = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx, grad):
    return *gated_backward(grad, *ctx.saved_tensors, ctx.scale), None


gated.register_autograd(_backward, setup_context=_save)

RULES = {
    "unisono_test::gated": "b s _, _ d -> b s d",
    "unisono_test::gated_backward": "b s d, b s _, _ d -> b s _, _ d",
}


class Gated(nn.Module):
    """Two layers around the operation."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 12), nn.Linear(8, 3)
        self.weight = nn.Parameter(torch.randn(12, 8) / 3)

    def forward(self, x_BSF: torch.Tensor) -> torch.Tensor:
        return self.head(gated(self.embed(x_BSF), self.weight, 0.5))


def training() -> tuple[nn.Module, torch.optim.Optimizer, Any, torch.Tensor]:
    """Model, optimizer, step and batch."""
    torch.manual_seed(0)
    model = Gated()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss

    return model, optimizer, step, torch.randn(8, 4, 6)


def _difference(model: nn.Module, other: nn.Module) -> float:
    pairs = zip(model.parameters(), other.parameters(), strict=True)
    return max(float((one - two).abs().max()) for one, two in pairs)


def compare() -> None:
    """Trains with and without rules, and writes the difference from one device, the program's operations and the explanation."""
    found = {}
    for case in ("registered", "unknown"):
        for name, rule in RULES.items():
            unisono.register_rule(name, rule if case == "registered" else None)
        model, optimizer, step, batch = training()
        reference, _, own, _ = training()
        parallel = unisono.parallelize(
            step,
            model=model,
            optimizer=optimizer,
            example=(batch,),
            cluster=DEAR_COMPUTING,
            pins={"batch.*": {"ranks": "shard(0)"}},
        )
        losses = [(float(parallel(batch)), float(own(batch))) for _ in range(4)]
        parallel.sync()
        found[case] = {
            "off": max(_difference(model, reference), *(abs(a - b) / abs(b) for a, b in losses)),
            "program": parallel.rank_graph.text(),
            "explained": parallel.plan.explain(),
        }
    Path(f"{os.environ['RANK']}.json").write_text(json.dumps(found))
