"""Training steps made at random from one seed: each is a handful of habits that people's training code has.

A habit is a function that adds to a program: parts of the model, what happens to the hidden values, to the gradients, between steps. All
that a program draws while it is made comes from its own generator, so that a seed and a set of habits name it.
"""

from __future__ import annotations

import random

from eager import Training

from step_programs import choices, hooks, layers, state, updates, values
from step_programs.program import HABITS, Program

__all__ = ["HABITS", "choices", "habits_of", "hooks", "layers", "make", "state", "updates", "values"]

#: These decide what the others make, so they come first.
_FIRST = ("automatic_casts", "a_scaler", "schedule_within")
#: How many habits programs have. Most have few: what goes wrong is mostly two habits that meet, and a short program takes less time.
COUNTS = (1,) * 2 + (2,) * 14 + (3,) * 3 + (4,)
#: How often those are chosen that take several times as long as others, which count as one. Choices are captured once for each answer.
SELDOM = {
    "recurrent_layers": 0.4,
    "attention": 0.5,
    "an_averaged_model": 0.5,
    **dict.fromkeys((name for name, made in HABITS.items() if made.__module__ == choices.__name__), 0.3),
}


def habits_of(seed: int) -> list[str]:
    """The habits of a seed's program, in the order in which they are added."""
    rng = random.Random(seed)
    weights = [SELDOM.get(name, 1.0) for name in HABITS]
    chosen = rng.choices(list(HABITS), weights, k=rng.choice(COUNTS))
    return sorted(dict.fromkeys(chosen), key=lambda name: name not in _FIRST)


def make(seed: int, habits: list[str] | None = None) -> Training:
    """The training of a seed, with its habits or with those that are given."""
    program = Program(random.Random(seed))
    for name in habits_of(seed) if habits is None else habits:
        HABITS[name](program)
    return program.training()
