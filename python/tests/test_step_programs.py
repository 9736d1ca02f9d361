"""Training steps made at random give, captured and run on one rank, what eager PyTorch gives, over five steps; with less memory too."""

from __future__ import annotations

import pytest
import step_programs
from step_programs.check import TOGETHER, blocks, compare_all

#: How many are run with less memory too.
SMALLER = 50
#: Habits under which rounding decides: gradients of which only the sign counts, sums in bfloat16.
ROUNDED = {"gradients_are_set", "automatic_casts"}


@pytest.mark.parametrize("first", blocks(0))
def test_programs_give_what_eager_gives(first):
    compare_all(range(first, first + TOGETHER))


@pytest.mark.parametrize("settings", [{"micro_batches": 2}, {"recompute": "full"}], ids=["sliced", "recomputed"])
@pytest.mark.parametrize("first", range(0, SMALLER, TOGETHER))
def test_programs_with_less_memory_give_what_eager_gives(first, settings):
    seeds = [seed for seed in range(first, first + TOGETHER) if not ROUNDED & set(step_programs.habits_of(seed))]
    for step in compare_all(seeds, settings):
        assert step.plan.micro_batches in (1, 2)
