"""What ran beside what a cluster description says of it: which of its figures are wrong, right ones, and what is planned by these."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from unisono import _native, _operations
from unisono._ranks import Ranks
from unisono.plans import Plan


@dataclass(frozen=True)
class Refit:
    """What timelines say of a cluster description; ``print`` shows it.

    Attributes:
        text: the answer for people.
        cluster: a description that tells what ran: give it as ``cluster=``, or keep it with :meth:`save`.
        figures: the answer in figures. The number of ``ranks``; nanoseconds of all that was seen: ``measured_ns``, ``predicted_ns`` and, by
            the new description, ``now_ns``; the ``error`` of a kind of call in the middle, as a part of what one takes, and
            ``error_now``; the ``terms`` that were wrong (the ``name`` in the description, ``before``, ``after``, how many times as long
            as it says what it tells takes (``slower``), how many ``calls`` that is, and for each kind of them its bytes and how many
            times as long as predicted it took (``sizes``)); calls that are ``left_out``, and why; nanoseconds of operations that are none
            of the step (``unknown_ns``); all ``kinds`` of calls, each with what one took and what the old and the new description say.
        replanned: what planning by the new description gives, with the ``label``, ``before_ms`` and ``now_ms`` of the plan that there was,
            whether it is the plan ``still``, and the ``label`` and ``now_ms`` of the ``best``; ``None`` without a step to plan.
    """

    text: str = field(repr=False)
    cluster: str = field(repr=False)
    figures: dict[str, Any]
    replanned: dict[str, Any] | None = None

    def save(self, path: str | Path) -> None:
        """Writes the new description."""
        Path(path).write_text(self.cluster, encoding="utf-8")

    def __str__(self) -> str:
        """The answer for people."""
        return self.text


def refitted(
    description: str,
    runs: Sequence[Sequence[Path]],
    graph: _native.Graph | None = None,
    mesh: Mapping[str, int] | None = None,
) -> Refit:
    """What the timelines of runs say of a description.

    Args:
        description: the description (TOML).
        runs: for each run the timelines of its ranks, or folders of them: those of ``step.write_timelines``, or a profiler's.
        graph: the captured step, to find its calls in a profiler's traces.
        mesh: the axes of the ranks, along which calls may have been divided there.

    Raises:
        ConfigurationError: the timelines cannot be read, were predicted, or show nothing of the step.
    """
    graphs: list[_native.Graph] = []
    if graph is not None:
        graphs = [graph, *(one.alone for one in _operations.programs(graph, description, mesh or {}))]
    cluster, text, figures = _native.refit_description(description, [list(run) for run in runs], graphs)
    return Refit(text, cluster, json.loads(figures))


def replanned(refit: Refit, plan: Plan) -> Refit:
    """The same, with what planning again by the new description gives; ``plan`` has been made by the old one."""
    graph, _, settings = plan._planner()
    best = Plan(graph.plan(refit.cluster, settings), graph, refit.cluster, plan.memory_limit)
    before, after = plan.figures(), best.figures()
    now_ms = graph.simulated_ns(plan.native, refit.cluster) / 1e6
    found = {
        "label": before["label"],
        "before_ms": before["step_ms"],
        "now_ms": now_ms,
        "still": after["step_ms"] >= now_ms,
        "best": {"label": after["label"], "now_ms": after["step_ms"]},
    }
    return Refit(f"{refit.text}\n{_said(found)}", refit.cluster, refit.figures, found)


def _said(found: Mapping[str, Any]) -> str:
    """What planning again gives, in words."""
    was = f"the plan, {found['label']}: {found['before_ms']:.4g} ms predicted before, {found['now_ms']:.4g} now"
    if found["still"]:
        return f"{was}; it is still the best"
    best = found["best"]
    return f"{was}\nplanned again: {best['label']}, {best['now_ms']:.4g} ms"


def of_texts(description: str, runs: Iterable[Sequence[str]]) -> Refit:
    """The same of timelines as texts, one for each rank."""
    with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
        files = []
        for number, texts in enumerate(runs):
            run = Path(folder, str(number))
            run.mkdir()
            for rank, text in enumerate(texts):
                Path(run, f"rank{rank}.json").write_text(text, encoding="utf-8")
            files.append([run])
        return refitted(description, files)


def gathered(text: str, ranks: Ranks) -> list[str]:
    """The texts that ranks pass, in their order, on every rank."""
    if ranks.count == 1:
        return [text]
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = [int(size) for size in ranks.gathered(torch.tensor([len(mine)]))]
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(mine)] = mine
    parts = ranks.gathered(padded)
    return [part[:size].numpy().tobytes().decode() for part, size in zip(parts, sizes, strict=True)]
