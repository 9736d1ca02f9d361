"""Training steps made at random, compared with eager PyTorch."""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Iterable
from typing import Any

from eager import Training, compare

from step_programs import habits_of, make

#: How many programs the tests run, in files that workers share. One takes some 0.13 CPU s, most of it in PyTorch: 1.7 traces of 60
#: operations each. ``benches/step_programs.py`` runs more.
PROGRAMS, FILES, TOGETHER = 10_000, 4, 50


def blocks(file: int) -> range:
    """The first seeds of each test of a file, by its number."""
    each = PROGRAMS // FILES
    return range(file * each, (file + 1) * each, TOGETHER)


def compare_all(seeds: Iterable[int], settings: dict[str, Any] | None = None) -> list[Any]:
    """Asserts that each program gives what eager PyTorch gives; returns the parallel steps."""
    # Libraries and earlier tests are not looked through for cycles, and what programs leave is once.
    gc.freeze()
    gc.disable()
    try:
        return [_compared(seed, settings or {}) for seed in seeds]
    finally:
        gc.enable()
        gc.collect()


def _compared(seed: int, settings: dict[str, Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compare(functools.partial(_made, seed, settings))
        except Exception as error:
            raise AssertionError(f"program {seed}: {habits_of(seed)}") from error


def _made(seed: int, settings: dict[str, Any]) -> Training:
    training = make(seed)
    training.settings.update(settings)
    return training
