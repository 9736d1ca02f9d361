"""Optimizers that wrap others, as libraries make them, and optimizers whose groups hold parameters that are not trained."""

from __future__ import annotations

import warnings

import eager
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from unisono.errors import CaptureNotice


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))


class Passing(Optimizer):
    """Passes everything on, as accelerate's."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state, lambda self, new: setattr(self.optimizer, "state", new))
    param_groups = property(lambda self: self.optimizer.param_groups)
    zero_grad = property(lambda self: self.optimizer.zero_grad)
    state_dict = property(lambda self: self.optimizer.state_dict)

    def step(self, closure=None):
        self.optimizer.step(closure)


class Sharing(Optimizer):
    """Has the attributes of another, as Fabric's."""

    def __init__(self, optimizer):
        self.__dict__ = {**vars(optimizer)}
        self.optimizer = optimizer
        self.__class__ = type("Sharing" + type(optimizer).__name__, (Sharing, type(optimizer)), {})

    def state_dict(self):
        return self.optimizer.state_dict()

    def step(self, closure=None):
        self.optimizer.step(closure)


@pytest.mark.parametrize("wrap", [Passing, Sharing])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_what_another_wraps_steps_as_in_eager_pytorch(wrap, kind):
    def make():
        model = nn.Linear(3, 4)
        own = kind(model.parameters(), lr=0.1)
        optimizer, scheduler = wrap(own), torch.optim.lr_scheduler.StepLR(own, 2)

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x @ torch.ones(3, 4))
            loss.backward()
            optimizer.step()
            scheduler.step()
            return loss

        batches = [(torch.randn(7, 3),) for _ in range(4)]
        return eager.Training(model, optimizer, step, batches, visible=lambda: own.param_groups[0]["lr"])

    eager.compare(make)


class Paired(Optimizer):
    """Steps in the second of each pair of parameters by the first, which is not trained."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for fixed, p in zip(group["params"][::2], group["params"][1::2], strict=True):
                state = self.state[p]
                if not state:
                    state["mean"] = torch.zeros_like(p)
                state["mean"].lerp_(fixed @ fixed.T @ p.grad, 0.5)
                p.add_(state["mean"], alpha=-group["lr"])


def test_parameters_that_are_not_trained_are_seen_by_a_first_step():
    def make():
        fixed, trained = nn.Linear(5, 4, bias=False), nn.Linear(3, 4, bias=False)
        fixed.requires_grad_(False)
        model = nn.ModuleList([fixed, trained])
        optimizer = Paired(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(trained(x), x @ torch.ones(3, 4))
            loss.backward()
            optimizer.step()
            return loss

        return eager.Training(model, optimizer, step, [(torch.randn(7, 3),) for _ in range(4)])

    eager.compare(make)


class Wrapped:
    """A scheduler that is called by another object, as accelerate's; ``asked`` says what the step does with it beside."""

    def __init__(self, scheduler, asked):
        self.scheduler, self.asked = scheduler, asked

    def step(self):
        if self.scheduler is None:
            self.scheduler._step_count += 1
        self.scheduler.step()

    def factor(self):
        return self.asked(self.scheduler)


def scheduled(asked):
    model = nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = Wrapped(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch), asked)

    def step(x):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x @ torch.ones(3, 4)) * (1 + wrapped.factor())
        loss.backward()
        optimizer.step()
        wrapped.step()
        return loss

    batches = [(torch.randn(7, 3),) for _ in range(4)]
    return eager.Training(model, optimizer, step, batches, visible=lambda: wrapped.scheduler.last_epoch)


def test_what_a_scheduler_counts_and_the_step_only_names_is_no_other_step():
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureNotice)
        eager.compare(lambda: scheduled(lambda _: 0))


def test_what_a_scheduler_counts_and_the_step_asks_for_is_as_in_eager_pytorch():
    eager.compare(lambda: scheduled(lambda scheduler: 0.1 * scheduler.last_epoch))
