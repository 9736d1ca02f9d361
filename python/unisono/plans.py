"""Plans as seen from Python: text files that can be read, kept and run again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono import _native
from unisono._message import pack, unpack
from unisono._placements import STAGES


@dataclasses.dataclass(frozen=True)
class WhyNot:
    """Why a plan is not another one; ``print`` shows it.

    Attributes:
        text: the answer for people.
        figures: the same in figures: one of the ``why_not`` of ``unisono plan --json`` (``docs/clusters.md``).
    """

    text: str = dataclasses.field(repr=False)
    figures: dict[str, Any]

    def __str__(self) -> str:
        """The answer for people."""
        return self.text


class Plan:
    """Which rank holds and computes what: a small text with a fingerprint.

    Attributes:
        text: the text form (TOML).
        native: the plan as the core holds it.
        graph: the graph that it is for, if it is known.
        cluster: the description of the cluster that it was made for, if it is known.
        memory_limit: the most bytes of a rank that were asked for; without, those of the device of a cluster that is not there.
        settings: what the planner was asked for, if it is known: its mesh, memory limit, pins and so on, as plain data.
    """

    def __init__(
        self,
        plan: str | _native.Plan,
        graph: _native.Graph | None = None,
        cluster: str | None = None,
        memory_limit: int | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Reads the text form; raises :class:`~unisono.errors.ConfigurationError` where it is none."""
        self.native = _native.Plan(plan) if isinstance(plan, str) else plan
        self.graph, self.cluster, self.memory_limit = graph, cluster, memory_limit
        self.settings = settings
        self.text, self.fingerprint = self.native.text(), self.native.fingerprint()
        self._content: dict[str, Any] = unpack(self.native.content())

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Reads a plan file."""
        return cls(Path(path).read_text())

    def save(self, path: str | Path) -> None:
        """Writes a plan file."""
        Path(path).write_text(self.text)

    @property
    def mesh(self) -> dict[str, int]:
        """Axis names with sizes."""
        return self._content["mesh"]

    @property
    def micro_batches(self) -> int:
        """How many slices of its batch each rank computes one after the other."""
        return self._content.get("micro_batches", 1)

    @property
    def layouts(self) -> dict[str, dict[str, str]]:
        """The layouts of inputs that are not replicated, by the input's name: a placement for each axis along which they are not.

        State that only some pipeline stages hold is ``stage(1)`` or ``stage(0, 2)`` along the axis ``stages``.
        """
        layouts = {name: dict(layout) for name, layout in self._content["inputs"].items()}
        for name, on in (self.stages or {}).get("state", {}).items():
            layouts.setdefault(name, {})[STAGES] = f"stage({', '.join(map(str, on))})"
        return layouts

    @property
    def stages(self) -> dict[str, Any] | None:
        """The pipeline: its ``schedule``, how many ``chunks`` each stage has (absent where one), the ``actions`` of each (absent where the
        schedule has a name), the positions in forward at which chunks begin (``cuts``), the stages that hold each ``state`` of
        which not all do, what each stage has on its host of what forward leaves (``offload``) and of state (``host_state``), as in
        `passes`, and what each stage is ``predicted`` to take; ``None`` without stages.
        """
        return self._content.get("stages")

    @property
    def actions(self) -> list[str] | None:
        """What each pipeline stage does, a text for each: the lines of a CSV file as ``torch.distributed.pipelining`` reads and writes it,
        such as ``0F0,0F1,0B0,0B1``; ``None`` without stages.
        """
        return self.native.actions()

    @property
    def passes(self) -> dict[str, Any]:
        """Settings of the passes: bytes of a bucket of collectives (``bucket_limit``) and gathered ahead (``prefetch_limit``), and by axis
        up to how many bytes each kind of collective is an exchange between all ranks in one round (``direct``; absent where none is),
        which operations of forward run again in backward, by position (``recompute``; absent where none do), in which element type
        gradients are summed between ranks (``reduce_dtype``; absent where it is their own), and which results of forward are on the host
        until backward, by the positions of what makes them, behind which their memory is free, and behind which their copy back starts
        (``offload``; absent where none are), and how many parameters' state that only the update reads is on the host, piece by piece
        (``host_state``; absent where none is).
        """
        return self._content["passes"]

    @property
    def prediction(self) -> dict[str, int]:
        """The expected cost: nanoseconds (``..._ns``), bytes (``..._bytes``), number of ``collectives``."""
        return self._content["prediction"]

    def explain(self) -> str:
        """What the plan does, what it is expected to cost, where time and memory go and what it was chosen over, for people."""
        if self.graph is None:
            raise ValueError("a plan that was read from a file is explained with its graph: `step.plan.explain()`")
        return self.graph.explain(self.native, self.cluster, self.memory_limit)

    def why_not(
        self, other: str | int | Mapping[str, int] = "", *, pins: Mapping[str, Mapping[str, str]] | None = None
    ) -> WhyNot:
        """Why this is not another plan: that one planned under the same settings, priced alike, and held against it.

        Args:
            other: a family, along any axis or one of them (``"tensor"``, ``"zero-3 on data"``), a runner-up by its name or its number,
                counted from 1, or another mesh (``{"data": 4, "tensor": 2}``).
            pins: instead, placements by name pattern and axis, as in :func:`unisono.parallelize`, behind those of the plan.

        Returns:
            What the other plan takes, the first difference that costs, and all differences by cause; or why there is none.

        Raises:
            ConfigurationError: nothing is called ``other``.
        """
        graph, cluster, settings = self._planner()
        asked = ",".join(f"{axis}={size}" for axis, size in other.items()) if isinstance(other, Mapping) else str(other)
        packed = None if pins is None else pack({pattern: dict(axes) for pattern, axes in pins.items()})
        text, figures = _native.why_not(graph, self.native, cluster, settings, asked, packed)
        return WhyNot(text, json.loads(figures))

    def sensitivity(self) -> list[dict[str, Any]]:
        """What 1 GiB more memory of a rank (where the limit keeps a faster plan out), links twice as fast and a device 10 % faster would
        give, answered by planning again: each with what, the ``label``, ``step_ms`` and the share of the time that it ``saves``.
        """
        graph, cluster, settings = self._planner()
        return json.loads(_native.sensitivity_json(graph, self.native, cluster, settings))

    def _planner(self) -> tuple[_native.Graph, str, bytes]:
        """What the planner is asked with."""
        if self.graph is None or self.cluster is None:
            raise ValueError("a plan that was read from a file is not planned again: ask `step.plan`")
        known = {"mesh": self.mesh, "memory_limit": self.memory_limit, "micro_batches": self.micro_batches}
        return self.graph, self.cluster, pack(self.settings or known)

    def figures(self) -> dict[str, Any]:
        """The plan in figures: what it is, what it takes, where time and memory go, what it was chosen over.

        Times (``..._ms``) are milliseconds of one step, bytes those of one rank. The fields are those of ``unisono plan --json``
        (``docs/clusters.md``).
        """
        if self.graph is None or self.cluster is None:
            raise ValueError("a plan that was read from a file has no figures: ask `step.plan.figures()`")
        return json.loads(self.graph.figures_json(self.native, self.cluster, self.memory_limit))

    def report(self, path: str | Path) -> None:
        """Writes one HTML page that shows the plan and needs no other file (``docs/clusters.md``)."""
        Path(path).write_text(self.page(), encoding="utf-8")

    def page(
        self,
        rank_graph: _native.Graph | None = None,
        measured: tuple[_native.Program, list[tuple[int, int, int]]] | None = None,
    ) -> str:
        """The page as HTML.

        Args:
            rank_graph: what rank 0 runs; by default its part of the plan's graph.
            measured: its program, and when each instruction of a step ran, which is then shown under the prediction.
        """
        if self.graph is None or self.cluster is None:
            raise ValueError("a plan that was read from a file has no page: call `step.report(path)`")
        shown = rank_graph or self.graph.program(self.native, 0)[0]
        return _native.plan_page(self.graph, self.native, self.cluster, self.memory_limit, shown, measured)

    def __repr__(self) -> str:
        """A line with what identifies the plan."""
        return f"Plan({self.fingerprint}, mesh={self.mesh})"
