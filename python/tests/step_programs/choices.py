"""Habits of counting, of being given a number, and of choosing and computing by these."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from step_programs.program import WIDTH, Program, habit

#: What a step does with its number: every so often, from some call on, weights that come and go.
_ASKING: list[Callable[[int], bool]] = [
    lambda n: n % 2 == 0,
    lambda n: (n + 1) % 3 == 0,
    lambda n: n > 2,
    lambda n: bool(n // 2),
    lambda n: n == 1 or n >= 4,
]
_WEIGHTS: list[Callable[[int], float]] = [
    lambda n: min(1.0, n / 3),
    lambda n: 0.9**n,
    lambda n: math.exp(-n / 4),
    lambda n: 1 / (n + 1),
    lambda n: [0.5, 1.0][n % 2],
    lambda n: abs(n - 2) * 0.25,
]


def _count(p: Program) -> Callable[[], int]:
    """What counts calls, somewhere, and says how many there were before."""
    owner: Any = p.rng.choice([p.model, types.SimpleNamespace(), {}])
    name = f"calls{len(p.visible)}"

    def get() -> int:
        return owner[name] if isinstance(owner, dict) else getattr(owner, name)

    def put(value: int) -> None:
        if isinstance(owner, dict):
            owner[name] = value
        else:
            setattr(owner, name, value)

    def next_one() -> int:
        number = get()
        put(number + 1)
        return number

    put(p.rng.choice([0, 0, 3]))
    p.visible[name] = get
    if p.rng.random() < 0.2:
        p.between.append(lambda number: put(0) if number == 2 else None)
    return next_one


def _applied(ask: Callable[[int], bool], n: int, h: torch.Tensor, how: str) -> torch.Tensor:
    if how == "returns":
        return h * 1.5 if ask(n) else h
    for _ in range(2 if ask(n) else 1):
        h = h + 0.1 * h.tanh()
    return h


@habit
def chooses_by_a_count(p: Program) -> None:
    ask, how, count = p.rng.choice(_ASKING), p.rng.choice(["returns", "loops"]), _count(p)
    p.layers.append(lambda h: _applied(ask, count(), h, how))


@habit
def chooses_by_its_number(p: Program) -> None:
    ask, how = p.rng.choice(_ASKING), p.rng.choice(["returns", "loops"])
    p.by_number.append(lambda h, n: _applied(ask, n, h, how))


@habit
def weighs_by_a_count(p: Program) -> None:
    weigh, count, layer = p.rng.choice(_WEIGHTS[:4]), _count(p), p.add(nn.Linear(WIDTH, WIDTH))
    p.layers.append(lambda h: h + layer(h) * weigh(count()))


@habit
def weighs_by_its_number(p: Program) -> None:
    weigh, layer = p.rng.choice(_WEIGHTS), p.add(nn.Linear(WIDTH, WIDTH))
    p.by_number.append(lambda h, n: h.clamp(max=3.0 + weigh(n)) + weigh(n) * layer(h))


@habit
def updates_now_and_then(p: Program) -> None:
    ask, count, before = p.rng.choice(_ASKING[:3]), _count(p), p.updates
    p.updates = lambda loss: before(loss) and ask(count())


@habit
def averages_with_a_growing_decay(p: Program) -> None:
    layer, count, how = p.add(nn.Linear(WIDTH, WIDTH)), _count(p), p.rng.choice(["operators", "methods", "lerp"])
    averages = [torch.zeros(one.shape, dtype=torch.float32 if p.cast else torch.float64) for one in layer.parameters()]
    p.layers.append(lambda h: layer(h))

    def average() -> None:
        decay = min(0.9, (1 + count()) / 5)
        with torch.no_grad():
            for at, parameter in enumerate(layer.parameters()):
                if how == "operators":
                    averages[at] *= decay
                    averages[at] += (1 - decay) * parameter
                elif how == "methods":
                    averages[at].mul_(decay).add_(parameter, alpha=1 - decay)
                else:
                    averages[at].lerp_(parameter, 1 - decay)

    p.after_update.append(average)
    p.visible["averages"] = lambda: list(averages)


@habit
def keeps_some_losses(p: Program) -> None:
    log: list[Any] = []
    ask, count = p.rng.choice(_ASKING), _count(p)

    def keep(h: torch.Tensor) -> torch.Tensor:
        n = count()
        if ask(n):
            log.append((n, h.detach().double().mean().item()))
        return h

    p.layers.append(keep)
    p.visible["log"] = lambda: list(log)


@habit
def goes_on_with_its_last_value(p: Program) -> None:
    owner = types.SimpleNamespace(last=0.5)
    chooses = p.rng.random() < 0.5

    def change(h: torch.Tensor) -> torch.Tensor:
        before, owner.last = owner.last, h.detach().double().mean().item()
        if chooses:
            return h * 2 if before > 0 else h
        return h * (1 + 0.1 * before)

    p.layers.append(change)
    p.visible["last"] = lambda: owner.last


@habit
def scales_by_a_value(p: Program) -> None:
    how = p.rng.choice(["maximum", "penalty", "gradients"])

    def penalty(h: torch.Tensor) -> torch.Tensor:
        value = h.double().pow(2).mean()
        return 0.1 * value / (1 + value.item())

    def clip() -> None:
        norm = sum(one.grad.norm().item() ** 2 for one in p.model.parameters() if one.grad is not None) ** 0.5
        for one in p.model.parameters():
            if one.grad is not None:
                one.grad.mul_(min(1.0, 0.5 / (norm + 1e-6)))

    if how == "maximum":
        p.layers.append(lambda h: h / (1 + h.detach().float().abs().max().item()))
    elif how == "penalty":
        p.losses.append(penalty)
    else:
        p.before_update.append(clip)
