"""What ranks of the tests of kept tensors run; see ``test_kept_on_ranks.py``."""

from __future__ import annotations

import copy
import json
import os
import types
from pathlib import Path
from typing import Any

import steps
import torch
import torch.nn.functional as F
from session_ranks import difference
from torch import nn
from torch.utils.checkpoint import checkpoint

import unisono
from unisono.errors import StepError

#: Pins under which what is kept is cut, and whole.
PINS: dict[str, dict[str, str]] = {
    "free": {},
    "cut": dict.fromkeys(("batch.*", "kept.*", "constants.*", "params.*", "optimizer.*"), "shard(0)"),
    "batch": {"batch.*": "shard(0)", "params.*": "replicate"},
}


class Recurrent(nn.Module):
    """Keeps its hidden state, drops at random, and has a constant of its own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(8, 8), nn.Linear(8, 4)
        self.hidden = torch.zeros(size, 8)
        self.scale = torch.ones(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.hidden)
        self.hidden = h.detach()
        dropped = checkpoint(lambda t: F.dropout(self.head(t).T, 0.3).T, h, use_reentrant=False)
        return dropped * self.scale


class Kept:
    """A training that keeps tensors in all kinds of places."""

    def __init__(self, size: int) -> None:
        torch.manual_seed(0)
        self.model = Recurrent(size)
        self.average = copy.deepcopy(self.model.head)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.config = types.SimpleNamespace(weight=torch.ones(4), bias=torch.zeros(size, 4))
        self.state = {"mean": torch.zeros(4)}
        self.loss = None
        self.batches = [torch.randn(size, 8) for _ in range(4)]

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        out = self.model(x) * self.config.weight + self.config.bias - self.state["mean"]
        self.state["mean"] = out.detach().mean(0)
        loss = out.square().mean()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for mean, parameter in zip(self.average.parameters(), self.model.head.parameters(), strict=True):
                mean.lerp_(parameter, 0.2)
        self.loss = loss.detach()
        return loss.detach()

    def change(self, number: int) -> None:
        """What the user does between steps."""
        self.config.bias.add_(0.5)
        self.config.weight = self.config.weight * 0.9
        self.model.scale = self.model.scale + 0.1
        if number == 1:
            self.model.hidden = torch.full_like(torch.empty(len(self.batches[0]), 8), 0.25)
            self.state["mean"] = torch.ones(4)

    def kept(self) -> dict[str, torch.Tensor]:
        """Everything that the user can look at."""
        found = {"hidden": self.model.hidden, "mean": self.state["mean"], "loss": self.loss}
        found |= {f"average.{key}": value for key, value in self.average.state_dict().items()}
        return found | self.model.state_dict()


def compare() -> None:
    """Writes how far ranks are from one device, for each family, as JSON."""
    ranks = int(os.environ["WORLD_SIZE"])
    found: dict[str, Any] = {}
    for family, pins in PINS.items():
        alone, together = Kept(4 * ranks), Kept(4 * ranks)
        step = unisono.parallelize(
            together.step,
            model=together.model,
            optimizer=together.optimizer,
            example=together.batches[0],
            mesh={"a": ranks},
            pins={pattern: {"a": placement} for pattern, placement in pins.items()},
            cluster=steps.EAGER_TO_CUT,
            keep_grads=True,
        )
        torch.manual_seed(0)
        losses = []
        for number, batch in enumerate(alone.batches):
            losses.append(alone.step(batch))
            alone.change(number)
        gradients = [parameter.grad for parameter in alone.model.parameters()]
        torch.manual_seed(0)
        off = []
        for number, batch in enumerate(together.batches):
            off.append(difference(step(batch), losses[number]))
            off.append(difference(together.loss, losses[number]))
            together.change(number)
        off += [
            difference(parameter.grad, wanted)
            for parameter, wanted in zip(together.model.parameters(), gradients, strict=True)
        ]
        cut = list(step.plan.layouts)
        closed = [_is_closed(together.state["mean"]), _is_closed(together.model.hidden)]
        step.sync()
        now, wanted = together.kept(), alone.kept()
        worst = {name: difference(now[name], wanted[name]) for name in wanted}
        found[family] = {"off": max(off), "kept": worst, "cut": cut, "closed": closed}
    Path(f"kept{os.environ['RANK']}.json").write_text(json.dumps(found))


def _is_closed(tensor: torch.Tensor) -> bool:
    try:
        tensor.sum()
    except StepError as error:
        return error.code == "U0124"
    return False
