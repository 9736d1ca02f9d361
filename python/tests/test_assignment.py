"""Losses that match predictions to targets in the middle of a step, as those of detectors do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from eager import Training, compare, compare_shards
from scipy.optimize import linear_sum_assignment
from torch import nn

import unisono
from unisono import _assignment as _assignment  # the operation

BATCH, QUERIES, TARGETS = 4, 6, 3


def matched(boxes: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss of ``[batch, queries, 4]`` boxes, each target's best one, against ``[batch, targets, 4]``."""
    with torch.no_grad():
        costs = torch.cdist(boxes, targets, p=1).cpu()
    pairs = [linear_sum_assignment(cost) for cost in costs]
    pairs = [(torch.as_tensor(i, dtype=torch.int64), torch.as_tensor(j, dtype=torch.int64)) for i, j in pairs]
    sample = torch.cat([torch.full_like(i, at) for at, (i, _) in enumerate(pairs)])
    found = boxes[sample, torch.cat([i for i, _ in pairs])]
    return F.l1_loss(found, torch.cat([one[j] for one, (_, j) in zip(targets, pairs, strict=True)]))


def detector() -> Training:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, QUERIES * 4), nn.Unflatten(1, (QUERIES, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-4)

    def step(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = matched(model(x), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    batches: list[tuple[Any, ...]] = [(torch.randn(BATCH, 8), torch.rand(BATCH, TARGETS, 4)) for _ in range(5)]
    return Training(model, optimizer, step, batches)


def test_a_step_that_matches_predictions_to_targets_gives_what_eager_gives():
    compare(detector)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_that_have_shards_of_the_batch_match_as_one_does(ranks):
    torch.manual_seed(3)
    given = detector()
    compare_shards(given, ranks)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("shape", [(6, 3), (3, 6), (4, 4), (0, 3)])
def test_the_operation_is_scipys_in_values_and_types(shape, maximize):
    cost = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    found = torch.ops.unisono.assignment(cost, maximize)
    expected = linear_sum_assignment(cost.numpy(), maximize)
    without = torch.ops.unisono.assignment(cost.to("meta"), maximize)
    for one, wanted, meta in zip(found, expected, without, strict=True):
        assert torch.equal(one, torch.as_tensor(wanted))
        assert (one.shape, one.dtype) == (meta.shape, meta.dtype)


def test_costs_that_no_assignment_has_end_the_step_as_scipy_does():
    with pytest.raises(ValueError, match="infeasible"):
        torch.ops.unisono.assignment(torch.full((2, 2), torch.inf), False)


def test_costs_without_two_dimensions_are_refused_as_scipy_does():
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(linear_sum_assignment(x)[0])

    with pytest.raises(ValueError, match="expected a matrix"):
        step(torch.randn(3, 4, 5))
    with pytest.raises(ValueError, match="expected a matrix"):
        unisono.capture(step, example=(torch.randn(3, 4, 5),))
