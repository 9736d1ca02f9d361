"""Training steps made at random give, captured and run on one rank, what eager PyTorch gives, over five steps."""

from __future__ import annotations

import functools
import warnings

import pytest
import step_programs
from eager import compare

#: As many as take about four minutes of one core; ``benches/step_programs.py`` runs more.
PROGRAMS = 1000
TOGETHER = 20
#: How many are run with less memory too.
SMALLER = 40
#: Habits under which rounding decides: gradients of which only the sign counts, sums in bfloat16.
ROUNDED = {"gradients_are_set", "automatic_casts"}


@pytest.mark.parametrize("first", range(0, PROGRAMS, TOGETHER))
def test_programs_give_what_eager_gives(first):
    for seed in range(first, first + TOGETHER):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compare(functools.partial(step_programs.make, seed))
            except Exception as error:
                raise AssertionError(f"program {seed}: {step_programs.habits_of(seed)}") from error


@pytest.mark.parametrize("settings", [{"micro_batches": 2}, {"recompute": "full"}], ids=["sliced", "recomputed"])
@pytest.mark.parametrize("first", range(0, SMALLER, TOGETHER))
def test_programs_with_less_memory_give_what_eager_gives(first, settings):
    for seed in range(first, first + TOGETHER):
        if ROUNDED & set(step_programs.habits_of(seed)):
            continue

        def make(seed=seed):
            training = step_programs.make(seed)
            training.settings.update(settings)
            return training

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                step = compare(make)
            except Exception as error:
                raise AssertionError(f"program {seed}: {step_programs.habits_of(seed)}") from error
        assert step.plan.micro_batches in (1, 2)
