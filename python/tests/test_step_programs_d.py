"""Training steps made at random give what eager PyTorch gives: the last quarter."""

from __future__ import annotations

import pytest
from step_programs.check import TOGETHER, blocks, compare_all


@pytest.mark.parametrize("first", blocks(3))
def test_programs_give_what_eager_gives(first):
    compare_all(range(first, first + TOGETHER))
