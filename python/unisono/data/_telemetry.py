"""What was predicted and what was measured, per step, as plain records."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.data._plan import Step


@dataclass(frozen=True)
class StepRecord:
    """One step.

    Attributes:
        step: its number.
        predicted: time of every rank, in units of the cost.
        measured: seconds of every rank; empty if not measured.
        predicted_imbalance: predicted step over mean rank; 1 is perfect.
        measured_imbalance: slowest measured rank over the mean; 0 if not measured.
        bound: predicted step over its lower bound; 1 is optimal.
        tokens_max: most tokens of any rank in one micro-batch.
        tokens_cap: what a rank can hold, or 0.
        delay: most windows that one of the samples waited.
        solve_ms: milliseconds that planning the step took.
        samples: samples of the step over all ranks.
        hash: the plan's, as 16 hexadecimal digits.
    """

    step: int
    predicted: tuple[float, ...]
    measured: tuple[float, ...]
    predicted_imbalance: float
    measured_imbalance: float
    bound: float
    tokens_max: int
    tokens_cap: int
    delay: int
    solve_ms: float
    samples: int
    hash: str


def record_step(
    step: Step, seconds: float | None = None, *, tokens_cap: int | None = None, group: Any = None
) -> StepRecord:
    """The record of a step.

    Args:
        step: its plan.
        seconds: what this rank's own work took, waiting excluded.  Where ``torch.distributed`` is initialised, it is
            gathered from all ranks, so all of them must call this.
        tokens_cap: what a rank can hold.
        group: the process group of the ranks.
    """
    measured = () if seconds is None else _gather(seconds, group)
    mean = sum(measured) / len(measured) if measured else 0.0
    return StepRecord(
        step=step.step,
        predicted=step.loads,
        measured=measured,
        predicted_imbalance=step.imbalance,
        measured_imbalance=max(measured) / mean if mean else 0.0,
        bound=step.makespan / step.lower_bound if step.lower_bound else 1.0,
        tokens_max=step.tokens_max,
        tokens_cap=tokens_cap or 0,
        delay=step.delay,
        solve_ms=step.solve_seconds * 1e3,
        samples=len(step.samples),
        hash=f"{step.hash:016x}",
    )


def _gather(seconds: float, group: Any) -> tuple[float, ...]:
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return (seconds,)
    own = torch.tensor([seconds], dtype=torch.float64)
    everyone = [torch.zeros_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(everyone, own, group=group)
    return tuple(float(one) for one in everyone)


class JsonLines:
    """Appends records to a file, one JSON object per line."""

    def __init__(self, path: str | Path) -> None:
        """Opens or creates the file."""
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, record: StepRecord) -> None:
        """Appends a record; it is on disk's side when this returns."""
        print(json.dumps(asdict(record)), file=self._file, flush=True)

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


def log_to_tensorboard(writer: Any, record: StepRecord, *, tag: str = "balance") -> None:
    """Adds the record's scalars to a ``SummaryWriter`` (or anything with its ``add_scalar``)."""
    names = ("predicted_imbalance", "measured_imbalance", "bound", "tokens_max", "delay", "solve_ms", "samples")
    for name in names:
        writer.add_scalar(f"{tag}/{name}", getattr(record, name), record.step)
    for rank, seconds in enumerate(record.measured):
        writer.add_scalar(f"{tag}/seconds/rank{rank}", seconds, record.step)
