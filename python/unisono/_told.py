"""What rank 0 tells the other ranks of a capture, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from unisono import _agreement
from unisono._capture import Capture
from unisono._capture.counting import Counts
from unisono._capture.expressions import Expression, Read, evaluate
from unisono._capture.guards import Ending
from unisono._capture.paths import Path, paths_of
from unisono._capture.schedules import Scheduled
from unisono._capture.traced import Traced
from unisono._tree import plain
from unisono.errors import StepError


@dataclass
class Way:
    """One way through a step, as all ranks know it.

    Attributes:
        numbers: how leaves of what the step returns that are no tensors are computed, by position.
        reads: how many tensors it reads.
        answers: the answers to the questions that it asks.
        schedules: the schedulers that it calls.
        rates: the learning rates that it leaves, by the number of the group.
        counted: paths to averages that take a step.
        endings: how the step ends where a question is answered otherwise, by the number of the question.
        counts: what it leaves beside tensors.
        clocks: the clocks that it reads.
        effects: what it prints and logs, on the rank that does.
        at_first: what it prints and logs when it runs first, where that is something else.
    """

    numbers: dict[int, Any]
    reads: int
    answers: tuple[bool, ...]
    schedules: list[Scheduled]
    rates: list[tuple[int, Expression]]
    counted: list[Path]
    endings: dict[int, Ending]
    counts: Counts = field(default_factory=Counts)
    clocks: list[str] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    at_first: list[Any] | None = None

    @classmethod
    def from_plain(cls, data: dict[str, Any], classes: Mapping[str, type]) -> Way:
        """The way that :func:`told` tells of; for ``classes`` see :func:`unisono._tree.from_plain`."""
        calls = [Scheduled(paths_of([path])[0], *others) for path, *others in data["schedules"]]
        counted, endings = (
            paths_of(data["counted"]),
            {at: Ending.from_plain(one, classes) for at, one in data["endings"]},
        )
        counts = Counts.from_plain(data["counts"], classes)
        return cls(
            dict(data["numbers"]),
            data["reads"],
            tuple(data["answers"]),
            calls,
            [(index, expression) for index, expression in data["rates"]],
            counted,
            endings,
            counts,
            data["clocks"],
        )

    def has(self, position: int) -> bool:
        """Whether a leaf of what the step returns is no tensor."""
        return position in self.numbers

    def leaf(self, position: int, read: Read) -> Any:
        """A leaf that is no tensor, for what the step has read."""
        return evaluate(self.numbers[position], read)


def told(captured: Capture) -> dict[str, Any]:
    """What other ranks must know of a capture beside what changed by itself."""
    constants = [i for i in captured.inputs.inputs if i.cls == "constant"]
    return {
        "graph": captured.message,
        "inputs": _agreement.described(captured.inputs),
        "returns": plain(captured.returns),
        "leaves": captured.leaves,
        "ways": [_way(way) for way in captured.ways],
        "answers": [list(vars(answer).values()) for answer in captured.traced.answers],
        "constants": [
            [i.name, str(i.tensor.dtype).removeprefix("torch."), list(i.tensor.shape), i.tensor.device.type, i.paths]
            for i in constants
        ],
        "kept": [*captured.kept.replaced, *captured.kept.written],
        "read": captured.kept.read(),
        "replaced": captured.kept.replaced,
        "left": captured.kept.left,
        "gradients": captured.kept.gradients,
        "premises": [[one.expression, one.value] for one in captured.kept.premises.found.values()],
        "given": captured.kept.premises.given.rows,
        "counted": captured.kept.counts,
        "scalars": captured.kept.premises.inputs(),
        "varying": sorted(captured.inputs.varying),
        "held": [captured.inputs.inputs[position].name for position in captured.traced.held],
        "dropped": captured.kept.dropped,
        "accumulates": captured.kept.accumulates,
        "arguments": captured.kept.arguments,
        "known": [*dict.fromkeys(path for way in captured.ways for path in way.known)],
    }


def _way(way: Traced) -> dict[str, Any]:
    for position, value in way.return_constants.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise StepError(f"the step returns a {type(value).__name__} (leaf {position})", code="U0121")
    return {
        "numbers": [*way.numbers.items(), *((at, ["constant", value]) for at, value in way.return_constants.items())],
        "reads": way.reads,
        "answers": way.choices,
        "counted": way.counted,
        "counts": way.counts.plain(),
        "clocks": way.clocks,
        "rates": way.rates,
        "schedules": [list(vars(call).values()) for call in way.schedules],
        "endings": [[at, ending.plain()] for at, ending in way.endings.items()],
    }
