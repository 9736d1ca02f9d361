"""Steps that draw random numbers by a counter, and what ranks of their tests run; see ``test_counter.py``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import steps
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

#: Axes, and placements that are asked for along them.
Family = tuple[dict[str, int], dict[str, dict[str, str]]]


def families(ranks: int) -> list[Family]:
    """Meshes of a number of ranks, each free and with its batch or its parameters sharded."""
    meshes = [{"a": ranks}] + ([{"a": 2, "b": 2}] if ranks == 4 else [])
    found: list[Family] = []
    for mesh in meshes:
        for pattern in ("", "batch.*", "params.*"):
            found.append((mesh, {pattern: dict.fromkeys(mesh, "shard(0)")} if pattern else {}))
    return found


def training(size: int = 12) -> steps.Training:
    """A step with a dropout in a checkpoint, one of a transposed tensor, attention that drops, and noise."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {"first": nn.Linear(8, 24), "block": nn.Linear(24, 24), "heads": nn.Linear(24, 24), "last": nn.Linear(24, 8)}
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)

    def block(h: torch.Tensor) -> torch.Tensor:
        return F.dropout(model["block"](h).relu(), 0.3)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        h = F.dropout(model["first"](x), 0.25)
        mask = F.dropout(torch.ones_like(h), 0.5)
        h = checkpoint(block, h * mask, use_reentrant=False)
        h = F.dropout(h.transpose(0, 1), 0.1).transpose(0, 1)
        heads = model["heads"](h).unflatten(1, (2, 12)).transpose(0, 1)
        h = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.2).transpose(0, 1).flatten(1)
        scores = model["last"](h + 0.1 * torch.randn_like(h)) * torch.bernoulli(torch.full((size, 8), 0.7))
        loss = (scores - torch.rand(size, 1)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(list(model.parameters()), 1.0)
        optimizer.step()
        return mask, loss.detach()

    return steps.Training(model, optimizer, step, [(torch.randn(size, 8),) for _ in range(3)])


def trained(size: int = 12, **settings: Any) -> tuple[list[Any], dict[str, torch.Tensor]]:
    """What three steps return, and the parameters afterwards."""
    given = training(size)
    step = steps.parallelize(given, rng="counter", seed=5, **settings)
    returned = [step(*batch) for batch in given.batches]
    step.sync()
    return returned, {name: one.detach().clone() for name, one in given.model.named_parameters()}


def save(path: str, size: int) -> None:
    """Writes what one process computes, for several to compare with."""
    torch.save(trained(size), path)


def difference(one: Any, other: Any) -> dict[str, Any]:
    """Whether masks are the same, and how far losses and parameters are apart."""
    (mine, after), (theirs, wanted) = one, other
    return {
        "masks": all(torch.equal(a[0], b[0]) for a, b in zip(mine, theirs, strict=True)),
        "losses": max(float((a[1] - b[1]).abs()) for a, b in zip(mine, theirs, strict=True)),
        "parameters": max(float((after[name] - wanted[name]).abs().max()) for name in wanted),
    }


def compare(alone: str, size: int) -> None:
    """Trains on this group's ranks in each way, and writes how far each is from one process."""
    expected = torch.load(alone)
    found = {}
    for mesh, pins in families(int(os.environ["WORLD_SIZE"])):
        found[f"{mesh} {pins}"] = difference(trained(size, mesh=mesh, pins=pins), expected)
    Path(f"{torch.distributed.get_rank()}.json").write_text(json.dumps(found))
