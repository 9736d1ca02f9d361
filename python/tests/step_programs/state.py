"""Habits of keeping tensors: in buffers, dicts, queues, closures, classes."""

from __future__ import annotations

import copy
import types
from collections import deque
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from step_programs.program import WIDTH, Program, habit


@habit
def counting_buffers(p: Program) -> None:
    model: Any = p.model
    model.register_buffer("count", torch.zeros(()))
    model.register_buffer("history", torch.zeros(3, WIDTH))

    def change(h: torch.Tensor) -> torch.Tensor:
        model.count += 1
        model.history = torch.cat([model.history[1:], h.detach().to(model.history.dtype).mean(0, keepdim=True)])
        return h + (model.history.mean(0) / model.count).to(h.dtype)

    p.layers.append(change)


@habit
def hidden_state(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    owner = p.rng.choice([p.model, types.SimpleNamespace(), {}])
    shape = p.rng.choice([(), (WIDTH,), (1, WIDTH)])
    pair = p.rng.random() < 0.3

    def get() -> Any:
        return owner["hidden"] if isinstance(owner, dict) else owner.hidden

    def put(value: Any) -> None:
        if isinstance(owner, dict):
            owner["hidden"] = value
        else:
            owner.hidden = value

    zero = lambda: torch.zeros(shape, dtype=dtype)  # noqa: E731
    put((zero(), zero()) if pair else zero())

    def change(h: torch.Tensor) -> torch.Tensor:
        before = get()[0] if pair else get()
        new = (0.5 * before + h.detach().to(dtype).mean()).expand(shape).clone()
        put((new, before) if pair else new)
        return h + before.to(h.dtype)

    def reset(number: int) -> None:
        if number == 2:
            put((zero() + 1, zero()) if pair else zero() + 1)

    p.layers.append(change)
    p.visible["hidden"] = get
    if p.rng.random() < 0.5:
        p.between.append(reset)


@habit
def queue_of_results(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    queue = deque([torch.zeros(WIDTH, dtype=dtype) for _ in range(2)], maxlen=2)

    def change(h: torch.Tensor) -> torch.Tensor:
        queue.append(h.detach().to(dtype).mean(0))
        return h - queue[0].to(h.dtype)

    p.layers.append(change)
    p.visible["queue"] = lambda: list(queue)


@habit
def nonlocal_mean(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    mean = torch.zeros(WIDTH, dtype=dtype)

    def change(h: torch.Tensor) -> torch.Tensor:
        nonlocal mean
        mean = mean.lerp(h.detach().to(dtype).mean(0), 0.3)
        return h - mean.to(h.dtype)

    p.layers.append(change)
    p.visible["mean"] = lambda: mean


@habit
def written_counts(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    seen = torch.zeros(2, WIDTH, dtype=dtype)

    def change(h: torch.Tensor) -> torch.Tensor:
        seen[1].add_(h.detach().to(dtype).mean(0))
        return h + 0.1 * seen.sum(0).to(h.dtype)

    p.layers.append(change)
    p.visible["seen"] = lambda: seen
    if p.rng.random() < 0.5:
        p.between.append(lambda number: seen.zero_() if number == 1 else None)


@habit
def constants_that_change(p: Program) -> None:
    config = types.SimpleNamespace(weight=torch.ones(WIDTH), bias=torch.zeros(1))
    p.layers.append(lambda h: h * config.weight.to(h.dtype) + config.bias.to(h.dtype))

    def between(number: int) -> None:
        config.weight = config.weight * 0.9
        config.bias.add_(0.1)

    p.between.append(between)


@habit
def left_to_be_read(p: Program) -> None:
    seen: dict[str, Any] = {}

    def change(h: torch.Tensor) -> torch.Tensor:
        seen["hidden"] = h.detach()
        return h

    p.layers.append(change)
    p.visible["left"] = lambda: dict(seen)


@habit
def cache_of_constants(p: Program) -> None:
    model: Any = p.model
    model.angles = None

    def change(h: torch.Tensor) -> torch.Tensor:
        if model.angles is None:
            model.angles = torch.arange(WIDTH).cos()
        return h * (1 + 0.1 * model.angles.to(h.dtype))

    p.layers.append(change)


@habit
def average_of_the_model(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    average = copy.deepcopy(layer).to(torch.float32 if p.cast else torch.float64)
    p.layers.append(lambda h: layer(h) - average(h).detach())

    @torch.no_grad()
    def update() -> None:
        for mean, parameter in zip(average.parameters(), layer.parameters(), strict=True):
            mean.mul_(0.9).add_(parameter, alpha=0.1)

    p.after_update.append(update)
    p.visible["average"] = average.state_dict


@habit
def kept_in_functions_and_classes(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64

    class Settings:
        scale = torch.ones(WIDTH, dtype=dtype)

    start = {"mean": torch.zeros(WIDTH, dtype=dtype)}

    def change(h: torch.Tensor, cache: dict[str, torch.Tensor] = start) -> torch.Tensor:
        cache["mean"] = cache["mean"] * 0.5 + h.detach().to(dtype).mean(0)
        change.last = h.detach().sum()  # type: ignore[attr-defined]
        Settings.scale = Settings.scale * 0.9
        return h * Settings.scale.to(h.dtype) + cache["mean"].to(h.dtype)

    p.layers.append(change)
    p.visible["settings"] = lambda: [Settings.scale, change.last]  # type: ignore[attr-defined]


@habit
def a_copy_of_the_layer_at_each_step(p: Program) -> None:
    layer = p.add(nn.Linear(WIDTH, WIDTH))
    dtype = torch.float32 if p.cast else torch.float64
    owner = types.SimpleNamespace(
        old={key: value.detach().clone().to(dtype) for key, value in layer.state_dict().items()}
    )
    p.layers.append(lambda h: h + F.linear(h, owner.old["weight"].to(h.dtype), owner.old["bias"].to(h.dtype)))

    def keep() -> None:
        owner.old = {key: value.detach().clone() for key, value in layer.state_dict().items()}

    p.after_update.append(keep)
    p.visible["old"] = lambda: owner.old


@habit
def a_table_that_is_written_by_rows(p: Program) -> None:
    dtype = torch.float32 if p.cast else torch.float64
    bank, place = torch.zeros(4, WIDTH, dtype=dtype), torch.zeros((), dtype=torch.long)

    def change(h: torch.Tensor) -> torch.Tensor:
        bank.index_copy_(0, place[None], h.detach().to(dtype).mean(0, keepdim=True))
        place.add_(1).remainder_(4)
        return h + bank.mean(0).to(h.dtype)

    p.layers.append(change)
    p.visible["bank"] = lambda: [bank, place]
