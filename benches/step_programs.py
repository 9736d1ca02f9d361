"""Captures training steps made at random and compares each with eager PyTorch: ``step_programs.py [first] [count]``.

What differs or is refused is made as small as it gets and printed, with the habits that it takes.
"""

from __future__ import annotations

import functools
import sys
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python" / "tests"))

import step_programs
from eager import compare


def problem(seed: int, habits: list[str]) -> str | None:
    """What is wrong with a program, in one line; its first line is the kind of error."""
    try:
        compare(functools.partial(step_programs.make, seed, habits))
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:400]}"
    return None


def smallest(seed: int, habits: list[str]) -> tuple[list[str], str | None]:
    """The habits that are left when each is taken away without which the program is still wrong."""
    found = problem(seed, habits)
    for one in list(habits):
        fewer = [other for other in habits if other != one]
        still = problem(seed, fewer)
        if still is not None:
            habits, found = fewer, still
    return habits, found


def main(first: int = 0, count: int = 10_000) -> None:
    warnings.simplefilter("ignore")
    start, wrong = time.process_time(), 0
    for seed in range(first, first + count):
        habits = step_programs.habits_of(seed)
        if problem(seed, habits) is not None:
            wrong += 1
            fewest, found = smallest(seed, habits)
            print(f"seed {seed}: {fewest}\n    {found}", flush=True)
        if (seed - first + 1) % 100 == 0:
            print(
                f"{seed - first + 1} programs in {time.process_time() - start:.0f} CPU s, {wrong} wrong",
                file=sys.stderr,
            )
    print(f"{count} programs in {time.process_time() - start:.0f} CPU s, {wrong} wrong")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
