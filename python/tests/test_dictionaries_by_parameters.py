"""Dictionaries whose keys are parameters hold state as others do: what is written into, what is replaced, what is counted."""

from __future__ import annotations

import eager
import pytest
import torch
import torch.nn.functional as F
from torch import nn


def written_into(moments, p, gradient):
    mean, square = moments.setdefault(p, (torch.zeros_like(p), torch.ones_like(p)))
    mean.mul_(0.9).add_(gradient, alpha=0.1)
    square.mul_(0.9).addcmul_(gradient, gradient, value=0.1)
    return mean / square.sqrt()


def replaced(moments, p, gradient):
    moments[p] = 0.9 * moments[p] + gradient
    return moments[p]


def counted(moments, p, gradient):
    moments[p]["steps"] += 1
    moments[p]["mean"].lerp_(gradient, 0.1)
    return moments[p]["mean"] / (1 - 0.9 ** moments[p]["steps"])


BEGINNINGS = {
    written_into: lambda p: (torch.zeros_like(p), torch.ones_like(p)),
    replaced: torch.zeros_like,
    counted: lambda p: {"steps": 0, "mean": torch.zeros_like(p)},
}


@pytest.mark.parametrize("change", BEGINNINGS)
def test_what_is_kept_by_parameter_is_as_in_eager_pytorch(change, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def make():
        model = nn.Linear(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        moments = {p: BEGINNINGS[change](p.detach()) for p in model.parameters()}

        def step(x):
            loss = F.mse_loss(model(x), x @ torch.ones(3, 4))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for p, gradient in zip(model.parameters(), gradients, strict=True):
                p.grad = change(moments, p, gradient)
            optimizer.step()
            return loss

        return eager.Training(
            model, optimizer, step, [(torch.randn(7, 3),) for _ in range(4)], visible=lambda: [*moments.values()]
        )

    eager.compare(make)


def test_what_is_looked_up_by_parameters_that_were_taken_before_is_as_in_eager_pytorch(tmp_path, monkeypatch):
    """Lists hold the parameters themselves, `model.parameters()` gives what stands for them while the step is traced."""
    monkeypatch.setenv("HOME", str(tmp_path))

    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        held = list(model.parameters())
        means = {p: torch.zeros_like(p) for p in held}
        decayed = {p for p in held if p.dim() > 1}

        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x @ torch.ones(3, 4))
            loss.backward()
            for p in held:
                means[p].lerp_(p.grad, 0.5)
            for p in model.parameters():
                p.grad = means[p] + (0.1 * p.detach() if p in decayed else 0)
            held[-1].grad.add_(0.1 * (held[-1] == model[2].bias))
            optimizer.step()
            return loss

        batches = [(torch.randn(7, 3),) for _ in range(4)]
        return eager.Training(model, optimizer, step, batches, visible=lambda: [*means.values()])

    eager.compare(make)
