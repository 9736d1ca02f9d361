"""What the ranks of the checkpoint tests run: a step is trained under one plan and saved, and loaded under another."""

from __future__ import annotations

import json
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import steps
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

import unisono

#: Meshes and pins by name; each is a way to place the same step.
PLACED: dict[str, tuple[dict[str, int], dict[str, dict[str, str]]]] = {
    "one rank": ({"a": 1}, {}),
    "batch": ({"a": 2}, {"batch.*": {"a": "shard(0)"}, "params.*": {"a": "replicate"}, "optimizer.*": {"a": "replicate"}}),
    "state": ({"a": 2}, {name: {"a": "shard(0)"} for name in ("batch.*", "params.*.weight", "optimizer.*.weight.exp_avg*")}),
    "tensors": ({"a": 2}, {"batch.*": {"a": "replicate"}, "params.blocks.*.qkv.weight": {"a": "shard(0, 3)"}}),
    "2 x 2": (
        {"a": 2, "b": 2},
        {"batch.*": {"a": "shard(0)", "b": "replicate"}, "params.*.weight": {"a": "shard(0)", "b": "shard(0)"}},
    ),
    "state on the host": ({"a": 2}, {name: {"a": "shard(0)"} for name in ("batch.*", "optimizer.*.weight.exp_avg*")}),
    "stages": ({"stages": 2}, {}),
    "stages with hosts": ({"stages": 2}, {}),
    "stages of 2": ({"stages": 2, "b": 2}, {"batch.*": {"b": "shard(0)"}, "params.*.weight": {"b": "shard(0)"}}),
    "3 ranks": (
        {"a": 3},
        {
            **{name: {"a": "shard(0)"} for name in ("batch.*", "params.tokens.weight", "params.positions.weight")},
            **{f"optimizer.{name}.weight.exp_avg": {"a": "shard(0)"} for name in ("tokens", "positions")},
        },
    ),
}  # fmt: skip


#: Further settings of some.
SETTINGS: dict[str, dict[str, Any]] = {
    "state on the host": {"offload": "optimizer"},
    "stages with hosts": {"offload": "full"},
}


class Language(steps.GPT):
    """A language model with tied weights, a buffer that steps change, one that is not saved, and a frozen parameter.

    Three ranks have unequal shards of its tables, and so have two within two.
    """

    def __init__(self) -> None:
        super().__init__(vocabulary=50, width=24, heads=6, length=13)
        self.head.weight = self.tokens.weight
        self.scale = nn.BatchNorm1d(24)
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("not_saved", torch.zeros(2), persistent=False)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        x_BTD = self.tokens(tokens_BT) + self.positions(torch.arange(tokens_BT.shape[1]))
        for block in self.blocks:
            x_BTD = block(x_BTD)
        x_BTD = self.scale(x_BTD.flatten(0, 1)).unflatten(0, x_BTD.shape[:2])
        return self.head(self.norm(x_BTD)) + self.frozen.sum()


class Trained:
    """A model, its optimizer and the step, which keeps an average of its losses."""

    def __init__(self, seed: int, placed: str) -> None:
        torch.manual_seed(seed)
        self.model = Language()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, eps=steps.EPSILON)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        self.average = {"loss": torch.zeros(())}

        def step(tokens_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(tokens_BT).flatten(0, 1), targets_BT.flatten())
            loss.backward()
            self.optimizer.step()
            self.average["loss"] = 0.9 * self.average["loss"] + 0.1 * loss.detach()
            return loss.detach()

        training = steps.Training(self.model, self.optimizer, step, [batch(0)])
        self.step = steps.parallelize(training, *PLACED[placed], **SETTINGS.get(placed, {}))

    def written(self, found: dict[str, torch.Tensor]) -> list[str]:
        """The names of parameters that are not all one half."""
        return [name for name, _ in self.model.named_parameters() if not found[name].eq(0.5).all()]

    def values(self) -> dict[str, Any]:
        """All values, whole, as the user has them after `sync`."""
        self.step.sync()
        optimizer = self.optimizer.state_dict()
        return {
            "model": {name: value.clone() for name, value in self.model.state_dict().items()},
            "optimizer": {f"{p}.{key}": value.clone() for p, state in optimizer["state"].items() for key, value in state.items()},
            "average": self.average["loss"].clone(),
            "rate": self.optimizer.param_groups[0]["lr"],
        }  # fmt: skip


def batch(number: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(number)
    return tuple(torch.randint(0, 48, (12, 12), generator=generator) for _ in range(2))


def ways() -> list[str]:
    """The ways to place the step on as many ranks as there are."""
    return [placed for placed, (mesh, _) in PLACED.items() if math.prod(mesh.values()) == int(os.environ["WORLD_SIZE"])]


def save_and_load(kept: str) -> None:
    """Saves under the ways for as many ranks, and loads what all have saved, which other processes do on other numbers of ranks."""
    _save(kept)
    end = time.monotonic() + 200
    while missing := [placed for placed in PLACED if not Path(kept, f"{placed}.pt").exists()]:
        assert time.monotonic() < end, f"{missing} were not saved"
        time.sleep(0.05)
    _load(kept)


def _save(kept: str) -> None:
    """Trains three steps, saves twice (the second replaces the first), and goes on for a step."""
    for placed in ways():
        trained = Trained(0, placed)
        for number in range(2):
            trained.step(*batch(number))
            trained.scheduler.step()
        trained.step.save(Path(kept, placed), scheduler=trained.scheduler)
        trained.step(*batch(2))
        trained.step.save(Path(kept, placed), scheduler=trained.scheduler)
        layouts = {
            name: str(getattr(value, "placements", "")) for name, value in trained.step.state_dict()["model"].items()
        }
        whole = {name: full(value) for name, value in trained.step.state_dict()["model"].items()}
        values = trained.values()
        assert all(torch.equal(value, whole[name]) for name, value in values["model"].items())
        loss = trained.step(*batch(3))
        if os.environ["RANK"] == "0":
            torch.save({**values, "next loss": loss, "layouts": layouts}, Path(kept, f"{placed}.partial"))
            Path(kept, f"{placed}.partial").rename(Path(kept, f"{placed}.pt"))


def _load(kept: str) -> None:
    """Loads what was saved under each way to place it, into steps that were begun otherwise."""
    warnings.simplefilter("error", unisono.errors.CaptureNotice)  # settings that are loaded are those that there were
    wrong = []
    for placed in ways():
        trained = Trained(1, placed)
        trained.step(*batch(5))
        for number, source in enumerate(PLACED):
            if number % 2:
                trained.step.sync()
            trained.step.load(Path(kept, source), scheduler=trained.scheduler)
            expected = torch.load(Path(kept, f"{source}.pt"))
            found = trained.values()
            wrong += [f"{source} under {placed}: {name}" for name in differing(found, expected)]
            if trained.scheduler.last_epoch != 2:
                wrong.append(f"{source} under {placed}: the scheduler is at {trained.scheduler.last_epoch}")
            loss = trained.step(*batch(3))
            if not torch.allclose(loss, expected["next loss"], rtol=1e-5):
                wrong.append(f"{source} under {placed}: the next loss is {loss}, not {expected['next loss']}")
        for name, given in otherwise(trained.step.state_dict()["model"]).items():
            whole = {one: full(value) for one, value in given.items()}
            trained.step(*batch(4))
            trained.step.load_state_dict({"model": given}, strict=False)
            found = trained.values()["model"]
            wrong += [
                f"{name} under {placed}: {one}" for one, value in whole.items() if not torch.equal(value, found[one])
            ]
        trained.step.sync()
        for parameter in trained.model.parameters():
            parameter.detach().fill_(0.5)
        written = trained.values()["model"]  # what is written between two calls of `sync` is kept
        wrong += [f"{name} under {placed} is not as it was written" for name in trained.written(written)]
    Path(f"wrong-{os.environ['RANK']}.json").write_text(json.dumps(wrong))


def full(value: torch.Tensor) -> torch.Tensor:
    """A copy of a whole tensor."""
    return (value.full_tensor() if isinstance(value, DTensor) else value).clone()


def otherwise(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The same state in other forms: whole, from a file of safetensors, replicated, and sharded along the last dimension."""
    forms: dict[str, dict[str, Any]] = {"whole": {name: full(value) for name, value in state.items()}}
    file = f"whole-{os.environ['RANK']}.safetensors"
    safetensors.torch.save_file(forms["whole"], file)
    forms["safetensors"] = safetensors.torch.load_file(file)
    if any(isinstance(value, DTensor) for value in state.values()):
        replicated, sharded = {}, {}
        for name, value in state.items():
            replicated[name] = value.redistribute(placements=[Replicate()] * value.device_mesh.ndim).clone()
            last = [
                *[Replicate()] * (value.device_mesh.ndim - 1),
                Shard(value.dim() - 1) if value.dim() else Replicate(),
            ]
            sharded[name] = value.redistribute(placements=last).clone()
        forms |= {"replicated": replicated, "sharded": sharded}
    return forms


def differing(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """The names of what is not the same, bit for bit."""
    names = []
    for part in ("model", "optimizer"):
        assert found[part].keys() == expected[part].keys()
        names += [name for name, value in found[part].items() if not torch.equal(value, expected[part][name])]
    if not torch.equal(found["average"], expected["average"]):
        names.append("average")
    return names + (["rate"] if found["rate"] != expected["rate"] else [])
