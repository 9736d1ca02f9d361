"""What the ranks of the memory tests run: steps whose predicted and measured peak are put side by side."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steps
import torch
import torch.nn.functional as F
from steps import Training
from torch import nn

import unisono

#: Pins of each kind of plan, for an axis `a`.
PINS: dict[str, dict[str, str]] = {
    "free": {},
    "data parallel": {"batch.*": "shard(0)", "params.*": "replicate", "optimizer.*": "replicate"},
    "state sharded": {"batch.*": "shard(0)", "params.*": "shard(0)", "optimizer.*": "shard(0)"},
    "tensors sharded": {"batch.*": "replicate", "params.*": "shard(0)"},
}

#: A limit that a plan is to keep, as a part of what was measured without one.
ROOM = 1.04


def _training(model: nn.Module, optimizer: Any, loss: Callable[..., torch.Tensor], *batch: torch.Tensor) -> Training:
    def step(*batch: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        return value

    return Training(model, optimizer, step, [batch])


def _regression(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(x), y)


def _classification(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), y)


def _linear(optimizer: str) -> Training:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4)))
    made = {
        "adamw": lambda: torch.optim.AdamW(model.parameters(), fused=True),
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adafactor": lambda: torch.optim.Adafactor(model.parameters()),
    }[optimizer]()
    return _training(model, made, _regression, *torch.randn(2, 64, 512))


def _convolutions() -> Training:
    def block(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]

    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    model = nn.Sequential(*block(3, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), *ends)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return _training(model, optimizer, _classification, torch.randn(8, 3, 48, 48), torch.randint(0, 10, (8,)))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()

        def block(before: int, after: int) -> nn.Module:
            return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.SiLU())

        self.down1, self.down2, self.middle = block(4, 32), block(32, 64), block(64, 64)
        self.up2, self.up1, self.out = block(128, 32), block(64, 32), nn.Conv2d(32, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        high = self.down1(x)
        low = self.down2(F.avg_pool2d(high, 2))
        middle = self.middle(F.avg_pool2d(low, 2))
        low = self.up2(torch.cat([F.interpolate(middle, scale_factor=2.0), low], 1))
        return self.out(self.up1(torch.cat([F.interpolate(low, scale_factor=2.0), high], 1)))


def _unet() -> Training:
    model = UNet()
    return _training(model, torch.optim.AdamW(model.parameters()), _regression, *torch.randn(2, 8, 4, 32, 32))


class Experts(nn.Module):
    """Experts of which each token takes two, computed for all."""

    def __init__(self, width: int = 128, experts: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        shares_TE = self.gate(x_TD).softmax(-1)
        chosen = shares_TE.topk(2, -1)
        shares_TE = torch.zeros_like(shares_TE).scatter(-1, chosen.indices, chosen.values)
        y_ETD = F.silu(torch.einsum("td,edf->etf", x_TD, self.up)) @ self.down
        return x_TD + (y_ETD * shares_TE.t().unsqueeze(-1)).sum(0)


def _experts() -> Training:
    model = nn.Sequential(Experts(), Experts())
    return _training(model, torch.optim.AdamW(model.parameters()), _regression, *torch.randn(2, 256, 128))


TRAININGS: dict[str, Callable[[], Training]] = {
    "linear, adamw": lambda: _linear("adamw"),
    "linear, sgd": lambda: _linear("sgd"),
    "linear, adafactor": lambda: _linear("adafactor"),
    "convolutions": _convolutions,
    "u-net": _unet,
    "experts": _experts,
    "gpt": lambda: steps.gpt(count=1, batch=16, adamw=True),
    "llama": lambda: steps.llama(count=1, batch=16),
}


def _measured(training: Training, ranks: int, pins: str, limit: int | None = None) -> dict[str, int]:
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh={"a": ranks},
        pins={name: {"a": placement} for name, placement in PINS[pins].items()},
        cluster=steps.EAGER_TO_CUT,
        memory_limit=limit,
    )
    measured = step.measure(*training.batches[0], repeats=1)
    prediction = step.plan.prediction
    return {
        "predicted": prediction["peak_bytes"],
        "measured": max(measured["peak_bytes"]),
        "predicted buffers": prediction["buffer_bytes"],
        "buffers": max(measured["buffer_bytes"]),
    }


def measure_all() -> None:
    """Writes for each step and kind of plan the predicted and the measured memory, and both under a limit just above, as JSON."""
    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    found = {}

    def made(name: str) -> Training:
        torch.manual_seed(0)  # ranks are given the same batch
        return TRAININGS[name]()

    for name in TRAININGS:
        for pins in PINS if ranks > 1 else ["free"]:
            free = _measured(made(name), ranks, pins)
            limit = int(ROOM * free["measured"])
            limited = _measured(made(name), ranks, pins, limit) if pins in ("free", "state sharded") else None
            found[f"{name}, {pins}"] = {"free": free, "limit": limit, "limited": limited}
    Path(f"memory-{rank}.json").write_text(json.dumps(found))
