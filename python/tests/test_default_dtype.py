"""A step that sets the default of element types for a while gives what it gives in eager PyTorch, or is refused by line."""

from __future__ import annotations

import contextlib
import linecache

import pytest
import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import UnsupportedError

X = torch.ones(2, 4)


@contextlib.contextmanager
def default(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def a_model(model, x):
    with default(torch.bfloat16):
        return model(x).sum()


def a_tensor_of_numbers(model, x):
    with default(torch.float64):
        return model(x).sum() * torch.tensor([1.5, 2.5])


def a_tensor_with_its_type(model, x):
    with default(torch.float64):
        return model(x).sum() * torch.ones(2, dtype=torch.float16)


@pytest.mark.parametrize("forward", [a_model, a_tensor_of_numbers, a_tensor_with_its_type])
def test_what_says_its_type_is_as_in_eager(forward):
    model = nn.Linear(4, 4)
    step = unisono.parallelize(lambda x: forward(model, x), model=model, example=(X,), cluster=DEAR_COMPUTING)
    torch.testing.assert_close(step(X), forward(model, X))


def ones(x):
    return torch.ones(4)  # refused


def quotients(x):
    return torch.arange(4) / 3  # refused


def draws(x):
    return torch.rand(4)  # refused


@pytest.mark.parametrize("made", [ones, quotients, draws])
def test_what_has_the_type_that_the_step_has_set_is_refused_at_its_line(made):
    def step(x):
        with default(torch.float64):
            y = made(x)
        return x * y

    with pytest.raises(UnsupportedError, match="sets the default of element types") as caught:
        unisono.capture(step, example=(X,))
    assert caught.value.code == "U0105" and torch.get_default_dtype() is torch.float32
    file, _, number = str(caught.value.place).rpartition(":")
    assert "# refused" in linecache.getline(file, int(number))
