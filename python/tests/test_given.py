"""Values of the batch that a step's Python code goes on with: they are known before the step, which is captured for each."""

from __future__ import annotations

import json
import linecache
import warnings

import given_steps
import launch
import pytest
import torch
from machines import DEAR_COMPUTING
from torch import nn

import unisono
from unisono.errors import CaptureNotice, StepError


def parallelize(step, **how):
    return unisono.parallelize(step, cluster=DEAR_COMPUTING, **how)


@pytest.mark.parametrize("name", given_steps.NAMES)
def test_a_step_that_goes_on_with_values_of_the_batch_is_captured_for_each_of_two(name):
    expected, weight, _ = given_steps.trained(given_steps.NAMES[name])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CaptureNotice)
        found, now, _ = given_steps.trained(given_steps.NAMES[name], parallelize)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(now, weight)
    notices = [str(one.message) for one in caught if issubclass(one.category, CaptureNotice)]
    assert len(notices) == 1 and "what follows from more" in notices[0], notices


def test_ranks_that_are_given_the_whole_batch_agree_and_others_are_refused(tmp_path):
    for rank, one in enumerate(launch.run("given_ranks:compare", 2, tmp_path, 200)):
        assert one.status == 0, f"rank {rank}: {one.err[-3000:]}"
    for rank in range(2):
        found = json.loads((tmp_path / f"given{rank}.json").read_text())
        assert found["refused"].startswith("U0101") and 'batch="global"' in found["refused"]
        assert found["grids_as_lists"] < 1e-5 and found["what_a_mask_selects"] < 1e-5, found


def test_what_follows_from_parameters_is_refused_by_line():
    model = nn.Linear(4, 4)

    def step(x, grid):
        rows = model(x)[: int(grid[0, 1])]
        return rows[: int(rows.abs().max())].sum()

    with pytest.raises(StepError) as caught:
        parallelize(step, model=model, example=(torch.randn(12, 4), given_steps.GRIDS[0]))
    file, _, line = str(caught.value.place).rpartition(":")
    assert caught.value.code == "U0101" and "rows.abs()" in linecache.getline(file, int(line))


def test_a_value_that_is_computed_with_tensors_alone_takes_nothing_for_granted():
    model = nn.Linear(4, 4)

    def step(x, mask):
        return model(x).sum() / mask.sum().item()

    parallel = parallelize(step, model=model, example=(torch.randn(12, 4), given_steps.MASKS[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureNotice)
        for mask in given_steps.MASKS:
            x = torch.randn(12, 4)
            torch.testing.assert_close(parallel(x, mask), step(x, mask))


def test_a_step_that_is_another_one_at_each_call_says_so_and_keeps_no_more_than_it_may():
    loss = given_steps.NAMES["a_largest_number"]
    model, optimizer, step = given_steps.made(loss)
    parallel = parallelize(step, model=model, optimizer=optimizer, example=given_steps.batches(loss)[0], captures=2)
    notices = []
    for height in range(1, 5):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CaptureNotice)
            parallel(torch.randn(12, 4), torch.tensor([[1, height, 2]]).expand(2, 3))
        notices += [str(one.message) for one in caught if issubclass(one.category, CaptureNotice)]
    assert len(notices) == 4 and "the oldest is gone" in notices[-1]
    assert len(parallel._captured) == 2
