"""Steps that change numbers: which are refused, what is warned of, and what those give that are captured."""

from __future__ import annotations

import linecache
import types
import warnings

import pytest
import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import CaptureNotice, StepError
from unisono.parallel import ParallelStep

X = torch.ones(2, 4)


def refused(step, *, model=None, named, line="# used"):
    """Captures a step that must be refused, by the name of what it uses and at a line with a comment."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(StepError, match="computes with what it changes at each call") as caught:
            unisono.capture(step, model=model, example=(X,))
    assert caught.value.code == "U0119"
    assert f"`{named}` (" in caught.value.message, caught.value.message
    if line:
        file, _, number = str(caught.value.place).rpartition(":")
        assert line in linecache.getline(file, int(number)), caught.value.place


def refused_for_its_count(use):
    """Captures a step that uses what it counts, and must be refused for it; it has not counted afterwards."""
    model, state = nn.Linear(4, 4), types.SimpleNamespace(n=0)

    def step(x):
        state.n += 1
        return use(state.n, model(x).sum())

    refused(step, model=model, named="state.n")
    assert type(state.n) is int and state.n == 0


def allowed(step, *, model=None, warned=None):
    """Captures a step that must not be refused, with a warning that names what it changes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        unisono.capture(step, model=model, example=(X,))
    told = [str(one.message) for one in caught if "runs once" in str(one.message)]
    assert bool(told) == (warned is not None), told
    assert warned is None or f"`{warned}` (" in told[0], told


class Run:
    """What a training has beside its step."""

    def __init__(self, make):
        torch.manual_seed(0)
        self.model = nn.Linear(4, 4)
        self.optimizer = make(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2) if self.optimizer.defaults["lr"] else None
        self.averages = [parameter.detach().clone() for parameter in self.model.parameters()]
        self.x, self.n, self.seen, self.last, self.filled = X, 0, list[object](), 0.0, list[torch.Tensor]()


def eager(use, make=torch.optim.SGD):
    """A training whose step is given numbers, and that step; ``use`` gives its loss, and perhaps what is called behind its update."""
    run = Run(make)

    def step(x, *numbers):
        used = use(run, (run.model(x) ** 2).mean(), *numbers)
        loss, *ends = used if isinstance(used, tuple) else (used,)
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        for end in ends:
            end()
        return loss.detach()

    return run, step


def parallel(use, *numbers, make=torch.optim.SGD, **settings):
    """The same, whose step is captured with some numbers."""
    run, step = eager(use, make)
    settings = {"model": run.model, "optimizer": run.optimizer, "cluster": DEAR_COMPUTING} | settings
    return run, unisono.parallelize(step, example=(X, *numbers), **settings)


def captures_where_all_is_as_in_eager(use, calls, capsys, between=lambda run, number: None, make=torch.optim.SGD):
    """Runs a step for each of the calls, which are numbers that it is given, beside eager PyTorch; how often it is captured."""

    def trained(run, step):
        losses = []
        for number, given in enumerate(calls):
            losses.append(step(X * (1 + number / 10), *given))
            between(run, number)
        if isinstance(step, ParallelStep):
            step.sync()
        numbers = run.n, run.seen, run.last, capsys.readouterr().out
        return [*losses, *run.averages, *run.filled, *run.model.parameters()], numbers

    run, step = parallel(use, *calls[0], make=make)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CaptureNotice)
        found = trained(run, step)
    wanted = trained(*eager(use, make))
    for one, other in zip(found[0], wanted[0], strict=True):
        torch.testing.assert_close(one, other)
    assert found[1] == wanted[1] or found[1] == pytest.approx(wanted[1])
    return step._session.made
