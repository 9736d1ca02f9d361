"""Steps in pipeline stages, over gloo, beside one device; runs on every rank."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import steps
import torch
import torch.nn.functional as F
from eager import Training
from steps import EAGER_TO_CUT, EPSILON
from torch import nn

import unisono


class Tied(nn.Module):
    """Embeddings that are the output's weights too, layers with dropout, and a skip over all of them."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True) for _ in range(layers))
        self.norm = nn.LayerNorm(16)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        start_BTD = x_BTD = self.embedding(tokens_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.norm(x_BTD + start_BTD) @ self.embedding.weight.t()


def tied(clip: float = 0.5) -> Training:
    """Targets that do not count unevenly among samples, clipping over all parameters, AdamW."""
    model = Tied()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=EPSILON)

    def step(x_BT: torch.Tensor, y_BT: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        y_BT = y_BT.masked_fill(y_BT > 5 * torch.arange(8)[:, None], -100)
        loss = F.cross_entropy(model(x_BT).flatten(0, 1), y_BT.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        return loss.detach()

    batches = [tuple(torch.randint(0, 40, (2, 8, 6)).unbind()) for _ in range(3)]
    return Training(model, optimizer, step, batches)


def norms() -> Training:
    """Batch norm, which needs the whole batch in the middle of forward, and results that come from several stages."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 36, 12),
        nn.ReLU(),
        nn.Linear(12, 5),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        early = model[:4](x)
        scores = model[4:](early)
        loss = F.cross_entropy(scores, y)
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "early": early.detach().mean(), "scores": scores.detach()}

    batches = [(torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))) for _ in range(3)]
    return Training(model, optimizer, step, batches)


STEPS: dict[str, Callable[[], Training]] = {
    "gpt": lambda: steps.gpt(3),
    "gpt_adamw": steps.gpt_adamw,
    "mlp": lambda: steps.mlp(3),
    "llama": lambda: steps.llama(3),
    "tied": tied,
    "norms": norms,
}


def made(name: str) -> tuple[Training, Training]:
    """The same training twice."""
    trainings = []
    for _ in range(2):
        torch.manual_seed(0)
        trainings.append(STEPS[name]())
    return trainings[0], trainings[1]


def difference(one: Any, other: Any) -> float:
    """The largest difference of what two steps return."""
    if isinstance(one, dict):
        return max(difference(one[key], other[key]) for key in one)
    return float((one - other).abs().max())


def train(
    names: str,
    mesh: dict[str, int] | str,
    micro_batches: int | None = None,
    cluster: str = EAGER_TO_CUT,
    **settings: Any,
) -> None:
    """Trains each step with stages and on one device, and writes what differs."""
    torch.distributed.init_process_group("gloo")
    found = {}
    for name in names.split(","):
        one, many = made(name)
        step = unisono.parallelize(
            many.step,
            model=many.model,
            optimizer=many.optimizer,
            example=many.batches[0],
            mesh=mesh,
            micro_batches=micro_batches,
            cluster=cluster,
            **settings,
        )
        off = []
        for batch in many.batches:
            torch.manual_seed(7)
            expected = one.step(*copy.deepcopy(batch))
            torch.manual_seed(7)
            off.append(difference(expected, step(*batch)))
        step.sync()
        pairs = zip(many.model.parameters(), one.model.parameters(), strict=True)
        states = zip(many.model.buffers(), one.model.buffers(), strict=True)
        found[name] = {
            "off": max([*off, *((a - b).abs().max().item() for a, b in (*pairs, *states))]),
            "stages": step.plan.stages,
            "micro_batches": step.plan.micro_batches,
        }
    Path(f"stages{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def run_until_killed() -> None:
    """Runs steps without end; what ends it is written as JSON."""
    torch.distributed.init_process_group("gloo")
    training, _ = made("tied")
    step = unisono.parallelize(
        training.step,
        model=training.model,
        optimizer=training.optimizer,
        example=training.batches[0],
        mesh={"stages": 3},
        micro_batches=8,
        cluster=EAGER_TO_CUT,
    )
    number = 0
    try:
        while True:
            step(*training.batches[0])
            print("step", number, flush=True)
            number += 1
    except unisono.errors.UnisonoError as error:
        fields = {key: getattr(error, key) for key in ("code", "message", "place")}
        Path(f"error{os.environ['RANK']}.json").write_text(json.dumps(fields))
        raise
