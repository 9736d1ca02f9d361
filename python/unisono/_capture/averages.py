"""Averages of a model that count their steps themselves and compute their decay from the count, as ``EMAModel`` of diffusers does.

The decay is a number that is read anew at each step, like a learning rate; the count goes up after it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from unisono._capture.paths import Path, Step, Walk
from unisono._capture.places import user_line, user_place
from unisono.errors import StepError

_COUNT, _DECAY = "optimization_step", "cur_decay_value"
#: What a path to the decay of an average ends in.
DECAY: Step = ("attr", _DECAY)
#: What an average changes by itself.
CHANGES: tuple[Step, ...] = (("attr", _COUNT), DECAY)


def decay_of(average: Any) -> torch.Tensor:
    """The decay of the next step."""
    decay = type(average).get_decay(average, getattr(average, _COUNT) + 1)
    return torch.tensor(decay, dtype=torch.float64)


def count(average: Any) -> None:
    """Counts a step that is over."""
    setattr(average, _DECAY, decay_of(average).item())
    setattr(average, _COUNT, getattr(average, _COUNT) + 1)


def decays(walk: Walk) -> list[Path]:
    """A path to the decay of each average that can be reached."""
    library = sys.modules.get("diffusers.training_utils")
    kind = getattr(library, "EMAModel", None)
    if kind is None:
        return []
    return [(*walk.paths[key], DECAY) for key, (value, _) in walk.holders.items() if isinstance(value, kind)]


class Averages:
    """The averages that a step can reach, while it is traced.

    Attributes:
        counted: paths to the averages that took a step.
    """

    def __init__(self, walk: Walk, decays: Mapping[Path, torch.Tensor]) -> None:
        """Takes the traced decays by their paths."""
        by_path = {path: walk.holders[key][0] for key, path in walk.paths.items()}
        self._found = [(path[:-1], by_path[path[:-1]], decay) for path, decay in decays.items()]
        self.counted: list[Path] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Notes steps until it is left, and leaves the averages as they were."""
        before = [dict(vars(average)) for _, average, _ in self._found]
        for path, average, decay in self._found:
            vars(average).update({_COUNT: _Count(), "get_decay": self._reader(path, decay)})
        try:
            yield
        finally:
            for (_, average, _), was in zip(self._found, before, strict=True):
                for name in (_COUNT, _DECAY, "get_decay"):
                    vars(average).pop(name, None)
                vars(average).update({name: was[name] for name in (_COUNT, _DECAY, "get_decay") if name in was})

    def _reader(self, path: Path, decay: torch.Tensor) -> Any:
        def get_decay(_count: Any) -> torch.Tensor:
            if path in self.counted:
                # Called by the average's own code, which the user's calls.
                file, line = user_place(sys._getframe(1).f_back)
                raise _refused("lets an average take two steps", f"{file}:{line}")
            self.counted.append(path)
            return decay

        return get_decay


class _Count:
    """Stands for the count of an average, which goes up at each step and is nothing to compute with."""

    def __add__(self, one: int) -> _Count:
        return self

    def _read(self, *_arguments: Any) -> Any:
        raise _refused("reads how many steps an average has taken")

    __int__ = __index__ = __float__ = __bool__ = __repr__ = __str__ = __format__ = _read
    __sub__ = __mul__ = __mod__ = __floordiv__ = __truediv__ = __radd__ = __rsub__ = __rmul__ = _read
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _read
    __hash__ = None  # type: ignore[assignment]


def _refused(what: str, place: str | None = None) -> StepError:
    return StepError(
        f"the step {what}",
        code="U0103",
        place=place or user_line(),
        cause="the step's Python code runs once, when it is captured, and the count would stay as it is",
        hint="do that outside of the step",
    )
