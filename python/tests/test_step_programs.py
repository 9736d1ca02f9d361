"""Training steps made at random give, captured and run on one rank, what eager PyTorch gives, over five steps."""

from __future__ import annotations

import functools
import warnings

import pytest
import step_programs
from eager import compare

PROGRAMS = 100
TOGETHER = 10


@pytest.mark.parametrize("first", range(0, PROGRAMS, TOGETHER))
def test_programs_give_what_eager_gives(first):
    for seed in range(first, first + TOGETHER):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                compare(functools.partial(step_programs.make, seed))
            except Exception as error:
                raise AssertionError(f"program {seed}: {step_programs.habits_of(seed)}") from error
