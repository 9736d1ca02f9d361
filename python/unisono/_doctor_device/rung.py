"""What a rung of the ladder is, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from unisono._doctor_device.steps import Training
from unisono.errors import UnisonoError

#: What a rung is that does not apply, or needs another one that failed.
SKIPPED = "skipped"


class Result(NamedTuple):
    """What a rung has found; the hint stands in for that of the rung."""

    status: str
    text: str
    hint: str | None = None


@dataclass
class Tried:
    """A device that is tried, and what later rungs go on with.

    Attributes:
        device: the device.
        steps: the training and Unisono's step of it, by name.
    """

    device: torch.device
    steps: dict[str, tuple[Training, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rung:
    """One thing that is tried.

    Attributes:
        name: what it is called in the report.
        run: tries it; what it raises is a failure.
        hint: what to do where it failed.
        needs: the rung without which it cannot be tried.
    """

    name: str
    run: Callable[[Tried], Result]
    hint: str
    needs: str | None = None


def words(error: Exception) -> str:
    """The first line of an error, with its cause."""
    if isinstance(error, UnisonoError):
        cause = (error.cause or "").strip().splitlines()
        return f"[{error.code}] {error.message}" + (f": {cause[0]}" if cause else "")
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['nothing is said'])[0]}"


def on_the_host(elements: int) -> torch.Tensor:
    """Memory of the host, pinned where the device can pin it."""
    try:
        return torch.zeros(elements, pin_memory=True)
    except RuntimeError:
        return torch.zeros(elements)
