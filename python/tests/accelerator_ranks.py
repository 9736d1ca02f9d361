"""What the ranks of ``test_accelerators.py`` run."""

from __future__ import annotations

import torch
import torch.distributed as dist
from machines import DEAR_COMPUTING
from torch import nn

import unisono


def train_in_a_group_without_hosts() -> None:
    """Trains on processors in a process group of the user's that has no network for them."""
    dist.init_process_group("cuda:gloo")
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-0.5, 0.5, parameter.numel()).view(parameter.shape) + 0.01 * number)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.linspace(-1, 1, 64).view(8, 8)
    for mesh in ({"a": 2}, {"a": 2, "b": 1}):
        step = unisono.parallelize(
            train_step, model=model, optimizer=optimizer, example=(x,), mesh=mesh, cluster=DEAR_COMPUTING
        )
        print(float(step(x)), step.plan.prediction["collectives"] > 0)
        step.sync()
