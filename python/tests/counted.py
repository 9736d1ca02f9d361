"""Steps that change numbers, captured: which are refused, and what is warned of."""

from __future__ import annotations

import linecache
import types
import warnings

import pytest
import torch
from torch import nn

import unisono
from unisono.errors import StepError

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
