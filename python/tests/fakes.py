"""Tensors without data that captures leave behind, of which there are to be none."""

from __future__ import annotations

import gc

from torch._subclasses.fake_tensor import FakeTensor


def fake_tensors() -> list[FakeTensor]:
    """Those that are alive in this process; other tests of it may hold captures."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is FakeTensor]


def new_among(now: list[FakeTensor], before: list[FakeTensor]) -> list[FakeTensor]:
    """Those that were not alive before."""
    known = {id(one) for one in before}
    return [one for one in now if id(one) not in known]
