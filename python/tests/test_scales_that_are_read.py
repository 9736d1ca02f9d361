"""Steps that ask a scaler of losses for its scale: to return it, or to leave a scheduler alone behind an update that was skipped."""

from __future__ import annotations

import math

import eager
import pytest
import torch
from torch import nn


def returned(scaler, scheduler):
    scaler.update()
    return scaler.get_scale()


def compared(scaler, scheduler):
    before = scaler.get_scale()
    scaler.update()
    return before, before > scaler.get_scale()


def scheduled(scaler, scheduler):
    before = scaler.get_scale()
    scaler.update()
    if before <= scaler.get_scale():
        scheduler.step()
    return scheduler.get_last_lr()[0]


def scheduled_unless_skipped(scaler, scheduler):
    before = scaler.get_scale()
    scaler.update()
    was_skipped = before > scaler.get_scale()
    if not was_skipped:
        scheduler.step()
    return was_skipped


@pytest.mark.parametrize("update", [returned, compared, scheduled, scheduled_unless_skipped])
def test_a_scale_that_is_read_is_that_of_eager_pytorch(update, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))

    def make():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=2)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            return loss.detach().nan_to_num(0, 0, 0), update(scaler, scheduler)

        batches = [(torch.randn(3, 4) * (math.inf if number in (1, 4) else 1),) for number in range(6)]
        return eager.Training(model, optimizer, step, batches, visible=lambda: optimizer.param_groups[0]["lr"])

    eager.compare(make)


def test_a_count_that_is_read_behind_its_change_is_that_of_eager_pytorch():
    def make():
        model, seen = nn.Linear(4, 4), torch.tensor(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            seen.add_(len(x))
            return loss.detach(), seen.item(), seen.item() / 2

        return eager.Training(model, optimizer, step, [(torch.randn(3, 4),) for _ in range(3)])

    eager.compare(make)
