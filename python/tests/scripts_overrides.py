"""Scripts that change, between steps, what their code reads in less usual ways: by classes, arrays, enumerations, hooks."""

from __future__ import annotations

import enum
import types
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from script_parts import adam, ended, pair
from torch import nn
from user_scripts import Eager, script


class Kind(enum.Enum):
    SUM = 1
    MEAN = 2


class Scaled(nn.Module):
    scale = 1.0
    offset = torch.zeros(4)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.tanh(self.a(x))) * self.scale + self.offset


def _trained(parallelize, loss_of, between, count=4, make=Scaled, compiled=False):
    model = make()
    optimizer = adam(model)
    called: Any = torch.compile(model) if compiled and parallelize is not Eager else model

    def step(x, y):
        optimizer.zero_grad()
        loss = loss_of(called(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = parallelize(step, model=called, optimizer=optimizer, example=pair())
    found = []
    for number in range(count):
        found += [step(*pair()), between(number, model)]
    return ended(step, found, model, optimizer)


@script
def attributes_of_classes_are_overridden(parallelize):
    def between(number, model):
        if number == 0:
            model.scale = 0.25
        elif number == 1:
            model.offset = torch.ones(4)
        elif number == 2:
            del model.scale, model.offset

    return _trained(parallelize, F.mse_loss, between)


@script
def a_tensor_of_a_class_becomes_the_objects_own(parallelize):
    class Settings:
        weight = torch.ones(4)

    settings = Settings()

    def loss_of(out, y):
        settings.weight = settings.weight * 0.5
        return F.mse_loss(out * settings.weight, y)

    return _trained(parallelize, loss_of, lambda number, _: [settings.weight.clone(), Settings.weight.clone()])


@script
def arrays_types_and_enumerations_change(parallelize):
    settings = types.SimpleNamespace(
        array=np.ones(4, dtype=np.float32),
        number=np.float32(1.0),
        dtype=torch.float32,
        kind=Kind.MEAN,
        columns={0, 1},
        activation=nn.Tanh,
        complex=1 + 0j,
    )

    def loss_of(out, y):
        out = out * torch.tensor(settings.array) * float(settings.number) + settings.complex.real
        out = settings.activation()(out).to(settings.dtype).float()
        loss = (out - y).square()[:, sorted(settings.columns)]
        return loss.mean() if settings.kind is Kind.MEAN else loss.sum()

    def between(number, _):
        if number == 0:
            settings.array[1] = 0.5
        elif number == 1:
            settings.array, settings.number = settings.array * np.float32(0.5), np.float32(0.5)
        elif number == 2:
            settings.dtype = torch.bfloat16
        elif number == 3:
            settings.kind, settings.complex = Kind.SUM, 2j
        elif number == 4:
            settings.columns, settings.activation = {2}, nn.Sigmoid

    return _trained(parallelize, loss_of, between, count=7)


class Criterion(nn.Module):
    """A loss with numbers of its own, one of which is in a part."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma, self.parts = 1.0, nn.ModuleList([nn.Dropout(0.0), Scale()])

    def forward(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.parts[1](self.parts[0](out) - y).square().mean() ** self.gamma


class Scale(nn.Module):
    factor = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Penalty:
    """What is called, entered and indexed, and has numbers."""

    def __init__(self) -> None:
        self.weight, self.inside, self.weights = 0.5, 1.0, [types.SimpleNamespace(value=1.0)]

    def __call__(self, out: torch.Tensor) -> torch.Tensor:
        return out.abs().mean() * self.weight

    def __getitem__(self, index: int) -> float:
        return self.weights[index].value

    def __enter__(self) -> float:
        return self.inside

    def __exit__(self, *error: Any) -> None: ...


@script
def numbers_of_what_is_called_change(parallelize):
    criterion, penalty, smooth = Criterion(), Penalty(), nn.CrossEntropyLoss()

    def loss_of(out, y):
        with penalty as inside:
            loss = criterion(out, y) + penalty(out) * inside * penalty[0]
        return loss + smooth(out, y.softmax(1))

    def between(number, _):
        if number == 0:
            criterion.gamma = 2.0
        elif number == 1:
            criterion.parts[1].factor = 0.5
        elif number == 2:
            penalty.weight = 2.0
        elif number == 3:
            penalty.inside = 3.0
        elif number == 4:
            penalty.weights[0].value = 0.25
        elif number == 5:
            smooth.label_smoothing = 0.25

    return _trained(parallelize, loss_of, between, count=8)


class Meter(nn.Module):
    """Counts what it is given, and keeps what is computed of that until there is more."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.computed, self.state = torch.zeros(()), None, "new"

    def forward(self, value: torch.Tensor) -> None:
        self.total = self.total + value
        self.computed, self.state = None, "changed"

    def compute(self) -> torch.Tensor:
        if self.computed is None:
            self.computed, self.state = self.total * 2, "known"
        return self.computed


@script
def what_a_step_sets_to_the_same_at_each_call_changes_between(parallelize):
    meter, others = Meter(), {"computed": None}

    def loss_of(out, y):
        loss = (out - y).square().mean()
        meter(loss.detach())
        others["computed"] = None
        return loss

    def between(number, _):
        if number % 2 == 0:
            others["computed"] = meter.compute()
        return meter.compute(), meter.state == "known", others["computed"]

    return _trained(parallelize, loss_of, between, count=6)


@script
def hooks_of_parameters_keep_what_they_see(parallelize):
    norms = {}

    def make():
        model = Scaled()
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda gradient, name=name: norms.__setitem__(name, gradient.norm()))
        return model

    return _trained(parallelize, F.mse_loss, lambda number, _: dict(norms), make=make)


@script
def a_compiled_model_is_captured_as_it_was_written(parallelize):
    return _trained(parallelize, F.mse_loss, lambda number, _: None, compiled=True)
