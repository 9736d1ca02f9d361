"""Scripts whose steps choose by what they count and by numbers that they are given."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from script_parts import Net, adam, ended, pair
from torch import nn
from user_scripts import script

CALLS = 7


class Run:
    """What a trainer has, with everything that the scripts below count in."""

    def __init__(self) -> None:
        self.model = Net()
        self.optimizer = adam(self.model)
        self.n, self.state, self.log, self.running = 0, {"step": 0}, list[Any](), 0.0
        self.average = [parameter.detach().clone() for parameter in self.model.parameters()]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.model(x), y)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def trained(use: Callable[[Run, torch.Tensor, torch.Tensor, int], Any]) -> None:
    """Registers a script that calls a step with the number of each call."""

    def train(parallelize: Callable[..., Any]) -> Any:
        run = Run()
        batches = [pair() for _ in range(CALLS)]

        def step(x: torch.Tensor, y: torch.Tensor, number: int) -> Any:
            return use(run, x, y, number)

        step = parallelize(step, model=run.model, optimizer=run.optimizer, example=(*batches[0], 0))
        found = [(step(*batch, number), run.n, run.running) for number, batch in enumerate(batches)]
        return ended(step, found, run.model, run.optimizer), run.state, run.log, run.average

    train.__name__ = use.__name__
    script(train)


@trained
def accumulates_by_its_count(run, x, y, number):
    loss = run.loss(x, y) / 2
    loss.backward()
    run.n += 1
    if run.n % 2 == 0:
        run.optimizer.step()
        run.optimizer.zero_grad()
    return loss.detach()


@trained
def accumulates_by_an_argument(run, x, y, number):
    loss = run.loss(x, y) / 3
    loss.backward()
    if (number + 1) % 3 == 0:
        run.optimizer.step()
        run.optimizer.zero_grad()
    return loss.detach(), number // 3


@trained
def an_average_that_begins_later(run, x, y, number):
    loss = run.loss(x, y)
    run.update(loss)
    run.state["step"] += 1
    if run.state["step"] > 3:
        with torch.no_grad():
            for one, parameter in zip(run.average, run.model.parameters(), strict=True):
                one.lerp_(parameter, 0.25)
    return loss.detach()


@trained
def keeps_every_third_loss(run, x, y, number):
    loss = run.loss(x, y)
    run.update(loss)
    run.running += loss.item()
    run.n += 1
    if run.n % 3 == 0:
        run.log.append((run.n, run.running / 3))
        run.running = 0.0
    return loss.item()


@trained
def returns_before_its_update(run, x, y, number):
    run.n += 1
    loss = run.loss(x, y)
    if run.n == 4:
        return loss.detach()
    run.update(loss)
    return loss.detach()


@trained
def several_choices(run, x, y, number):
    run.n += 1
    x = x * 2 if run.n % 2 else x
    x = x + 1 if number % 3 == 1 else x
    loss = run.loss(x, y)
    if torch.isfinite(loss) and (run.n > 2 or number < 1):
        run.update(loss)
    return loss.detach(), f"{number} of {CALLS}"


@trained
def takes_entries_and_sizes_by_an_argument(run, x, y, number):
    loss = run.loss(x[: 4 + number % 2], y[: 4 + number % 2]) * [1.0, 2.0][number % 2] * {0: 1.0}.get(number, 0.5)
    for _ in range(number // 4):
        loss = loss * 1.5
    run.update(loss)
    return loss.detach()


@trained
def warms_up_and_anneals(run, x, y, number):
    for group in run.optimizer.param_groups:
        group["lr"] = 0.01 * min(1.0, (run.n + 1) / 4)
    run.n += 1
    loss = run.loss(x, y) + min(1.0, number / 5) * run.model.b.weight.pow(2).mean()
    run.update(loss)
    decay = min(0.9, run.n / 5)
    with torch.no_grad():
        for average, parameter in zip(run.average, run.model.parameters(), strict=True):
            average.mul_(decay).add_(parameter, alpha=1 - decay)
    return loss.detach(), run.optimizer.param_groups[0]["lr"]


@trained
def goes_on_with_its_last_loss(run, x, y, number):
    loss = run.loss(x, y)
    run.update(loss / (1 + run.running))
    if loss.item() > run.running:
        run.average[0] += 1
    run.running = loss.item()
    return loss.detach()


@script
def loops_over_epochs(parallelize):
    run, batches = types.SimpleNamespace(epoch=0), [pair() for _ in range(3)]
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = adam(model)

    def step(x, y, epoch, *, warm):
        loss = F.mse_loss(model(x), y)
        if epoch < warm:
            loss = loss + sum(parameter.abs().sum() for parameter in model.parameters()) * 0.01
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.epoch = epoch
        return loss.detach()

    step = parallelize(
        step, model=model, optimizer=optimizer, example={"x": batches[0][0], "y": batches[0][1], "epoch": 0, "warm": 2}
    )
    found = [(step(*batch, epoch, warm=2), run.epoch) for epoch in range(4) for batch in batches]
    return ended(step, found, model, optimizer)
