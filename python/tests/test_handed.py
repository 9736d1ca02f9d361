"""Numbers in objects that a step hands to functions, and that change between steps."""

from __future__ import annotations

import argparse
import types
import warnings

import eager
import pytest
import torch
from torch import nn

from unisono.errors import CaptureNotice


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


class Config:
    """Settings, one of which is its class's until it is set."""

    beta = 1.0

    def __init__(self):
        self.alpha, self.parts, self.steps = 1.0, {"a": 1.0}, 0


class Loss(nn.Module):
    """Weighs by what it is given."""

    def forward(self, x, config):
        return config.alpha * x.square().mean()


class Trainer:
    """Hands its settings to its own methods."""

    def __init__(self, config):
        self.config = config

    def weight(self, config):
        return inner(config)

    def scale(self, _config):
        return self.weight(self.config)

    def itself(self, _config):
        return of_its_config(self)


def inner(config):
    return config.alpha


def of_its_config(trainer):
    return trainer.config.alpha


def outer(config):
    renamed = config
    return inner(renamed)


def by_text(config):
    return getattr(config, "alpha")  # noqa: B009


def of_part(config):
    return config.parts["a"]


def of_class(config):
    return config.beta


READS = {
    "attribute": (inner, Config, "alpha"),
    "through another": (outer, Config, "alpha"),
    "by text": (by_text, Config, "alpha"),
    "entry": (of_part, Config, "a"),
    "of the class": (of_class, Config, "beta"),
    "lambda": (lambda config: config.alpha, lambda: types.SimpleNamespace(alpha=1.0), "alpha"),
    "namespace": (inner, lambda: argparse.Namespace(alpha=1.0), "alpha"),
}


def training(read, begin, name, counts=False):
    model, config, loss_of = nn.Linear(3, 4), begin(), Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean() * read(config)
        if name == "of a module":
            loss = loss_of(model(x), config)
        loss.backward()
        optimizer.step()
        return loss

    def between(number):
        if counts:
            config.steps += 1
        elif name == "a":
            config.parts["a"] = number + 2.0
        else:
            setattr(config, "alpha" if name == "of a module" else name, number + 2.0)

    return eager.Training(model, optimizer, step, [(torch.randn(7, 3),) for _ in range(3)], between=between)


@pytest.mark.parametrize("way", READS)
def test_what_changes_between_steps_is_taken_over(way):
    eager.compare(lambda: training(*READS[way]))


def test_what_modules_and_methods_are_given_is_taken_over():
    eager.compare(lambda: training(lambda _: 1.0, Config, "of a module"))

    for name in ("scale", "itself"):

        def make(name=name):
            config = Config()
            return training(getattr(Trainer(config), name), lambda: config, "alpha")

        eager.compare(make)


def test_what_no_function_reads_is_not_looked_at():
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureNotice)
        eager.compare(lambda: training(outer, Config, "alpha", counts=True))
