"""What the scripts of the tests have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    """A small network with dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.drop, self.b = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.drop(F.relu(self.norm(self.a(x)))))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)


def simple(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def pair(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 8), torch.randn(size, 4)


def seen(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return [model.state_dict(), [list(state.values()) for state in optimizer.state.values()]]


def begun(parallelize: Callable[..., Any], make: Callable[[nn.Module], torch.optim.Optimizer] = adam) -> Any:
    """A model, its optimizer, a batch, and the parallel step that trains it."""
    model = Net()
    optimizer = make(model)
    batch = pair()
    return (
        model,
        optimizer,
        batch,
        parallelize(simple(model, optimizer), model=model, optimizer=optimizer, example=batch),
    )


def ended(step: Any, found: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """What a script has found, and what has become of model and optimizer."""
    step.sync()
    return found, seen(model, optimizer)
