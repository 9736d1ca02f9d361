"""`torch.prod` over a dimension or all of a tensor, and its gradient, with zeros among the entries too."""

from __future__ import annotations

import eager
import pytest
import torch
from torch import nn


def of_a_dimension(x):
    return x.prod(1).sum() + torch.prod(x, 0, keepdim=True).mean() + x.prod(dim=-1, keepdim=True).square().sum()


def of_all(x):
    return x[:2, :3].prod() + torch.prod(x[:, :1])


def with_zeros(x):
    return (x * torch.tensor([1.0, 0.0, 1, 1, 1])).prod(1).sum() + (x * torch.tensor([1.0, 0.0, 1, 0, 1])).prod(1).sum()


def in_double_precision(x):
    return x.prod(1, dtype=torch.float64).sum().float() + x.detach().prod() + (x.detach() > 0).prod(1).sum()


@pytest.mark.parametrize("function", [of_a_dimension, of_all, with_zeros, in_double_precision])
def test_products_and_their_gradients_are_those_of_eager_pytorch(function, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def make():
        model = nn.Linear(3, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = function(model(x))
            loss.backward()
            optimizer.step()
            return loss

        return eager.Training(model, optimizer, step, [(torch.randn(7, 3),) for _ in range(3)])

    eager.compare(make)
