"""The plan of a captured step: found on rank 0 under what the user asks for, or given."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono import _native, _profile
from unisono._arguments import given_plan
from unisono._capture.inputs import StepInput
from unisono._message import pack
from unisono._placements import STAGES
from unisono.errors import ConfigurationError, UnisonoError
from unisono.plans import Plan
from unisono.session import STATE, Session


@dataclass(frozen=True)
class Planning:
    """What a captured step is planned by.

    Attributes:
        session: what the user asks for, and where state is.
        inputs: the inputs of the step.
        cluster: the description of the machine.
        fuse: whether groups of operations run as kernels.
        narrow: the element types whose products kernels compute in `f32`.
        micro_batches: numbers of slices, of which the first is taken that the step can be made into.
    """

    session: Session
    inputs: Sequence[StepInput]
    cluster: str
    fuse: bool
    narrow: Sequence[str]
    micro_batches: Sequence[int | None]

    def plan(self, graph: _native.Graph, given: Plan | str | Path | None) -> Plan:
        """The plan that rank 0 finds, or was given; a mesh that it has found becomes that of the session."""
        session, found = self.session, None
        answer: Any = None
        limit, pins, forbid = session.memory_limit, session.pins, session.forbid
        if session.ranks.rank == 0:
            settings = {"mesh": session.mesh, "memory_limit": limit, "pins": pins, "forbid": forbid}
            try:
                found = given_plan(given, graph, session.mesh, any_mesh=session.searches_mesh)
                found = found or self._new_plan(graph, settings)
                answer = found.text
            except UnisonoError as error:
                answer = error
        text = session.ranks.tell(answer)
        found = found or Plan(text, graph)
        found.cluster, found.memory_limit = self.cluster, limit
        asked = {"memory_limit": limit, "pins": pins, "forbid": forbid, "fuse": self.fuse, "narrow": self.narrow}
        found.settings = found.settings or {"mesh": found.mesh, "micro_batches": found.micro_batches, **asked}
        if session.searches_mesh:
            session.take_mesh(found.mesh)
        return found

    def _new_plan(self, graph: _native.Graph, settings: dict[str, Any]) -> Plan:
        """A plan under which state stays where it is, if there is one that the user's settings allow."""
        session, found = self.session, None
        if session.searches_mesh:
            wanted = {"mesh": {}, "ranks": session.ranks.count, "stages": session.pipeline.stages}
            found = self._found_plan(graph, settings | wanted)
            session.take_mesh(found.mesh)
        here = session.state.layouts()
        axes = [axis for axis in session.mesh if axis != STAGES]
        kept = {
            item.name: {axis: here[item.name].get(axis, "replicate") for axis in axes}
            for item in self.inputs
            if item.name in here and item.cls in STATE
        }
        # Gradients are set to zero in place by whoever has them.
        kept |= {item.name: dict.fromkeys(axes, "replicate") for item in self.inputs if item.is_gradient}
        if kept and session.ranks.count > 1:
            with contextlib.suppress(UnisonoError):
                return self._found_plan(graph, settings | {"pins": {**settings["pins"], **kept}})
        return found or self._found_plan(graph, settings)

    def _found_plan(self, graph: _native.Graph, settings: dict[str, Any]) -> Plan:
        *most, last = self.micro_batches
        for count in most:
            with contextlib.suppress(ConfigurationError):
                return self._sliced_plan(graph, settings, count)
        return self._sliced_plan(graph, settings, last)

    def _sliced_plan(self, graph: _native.Graph, settings: dict[str, Any], count: int | None) -> Plan:
        session = self.session
        settings = settings | {
            "micro_batches": count,
            "recompute": session.recompute,
            "offload": session.offload,
            "reduce_dtype": session.reduce_dtype,
            "fuse": self.fuse,
            "narrow": self.narrow,
        }
        if session.mesh.get(STAGES, 1) > 1 or settings.get("stages"):
            settings |= session.pipeline.settings()
        elif session.pipeline.said():
            raise ConfigurationError(
                "a schedule, chunks or cuts of pipeline stages, and no stages",
                code="U0205",
                hint='give the mesh an axis of them, as in mesh={"stages": 2, "data": 4}, or leave them out',
            )
        native = graph.plan(self.cluster, pack(settings), _profile.cache_folder(), _say)
        return Plan(native, graph, settings=settings)


def _say(line: str) -> None:
    """Says what a long search for a plan is at."""
    print(f"unisono, planning: {line.lstrip()}", file=sys.stderr, flush=True)
