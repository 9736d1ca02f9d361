"""Captured steps as seen from Python."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from unisono import _native
from unisono._amounts import bytes_of
from unisono._arguments import (
    Pipeline,
    cluster_text,
    plain_forbid,
    plain_pins,
    planned_mesh,
    reduce_dtype_of,
    require_offload,
    require_recompute,
)
from unisono._message import pack
from unisono.errors import ConfigurationError
from unisono.plans import Plan

if TYPE_CHECKING:
    import torch

    from unisono._capture import Capture


class StepGraph:
    """A captured training step: one flat, functional graph of ATen operations with global shapes."""

    def __init__(self, message: bytes, capture: Capture | None = None) -> None:
        """Wraps what :func:`unisono.capture` found: the graph as MessagePack and, where it is new, how to talk to it."""
        self.message, self._capture = message, capture

    @property
    def capture(self) -> Capture:
        """How to talk to the graph.

        Raises:
            ConfigurationError: it comes from the folder of an earlier capture, and stands for itself.
        """
        if self._capture is None:
            raise ConfigurationError(
                "a graph that was kept has no capture", code="U0120", hint="capture without `cache`"
            )
        return self._capture

    @property
    def has_capture(self) -> bool:
        """Whether it was captured here, and does not come from the folder of an earlier capture."""
        return self._capture is not None

    @functools.cached_property
    def native(self) -> _native.Graph:
        """The graph as the core holds it, decoded once."""
        return _native.Graph(self.message)

    def text(self) -> str:
        """The text form of the graph."""
        return self.native.text()

    def fingerprint(self) -> str:
        """What identifies the graph: of what it computes, whatever the lines of the code are."""
        return self.native.fingerprint()

    def plan(
        self,
        cluster: str | Path,
        *,
        mesh: Mapping[str, int] | str | None = None,
        ranks: int | None = None,
        stages: int | None = None,
        micro_batches: int | None = None,
        recompute: str | None = None,
        reduce_dtype: torch.dtype | str | None = None,
        offload: str | None = None,
        schedule: str | None = None,
        chunks: int | None = None,
        cuts: Sequence[int | str] | None = None,
        memory_limit: float | str | None = None,
        pins: Mapping[str, Mapping[str, str]] | None = None,
        forbid: Mapping[str, str | Sequence[str]] | Sequence[str] | str | None = None,
        fuse: bool = False,
    ) -> Plan:
        """Plans the step for a cluster, which need not be there.

        Args:
            cluster: a preset with its size, such as ``"h100:8x8"`` for 8 nodes of 8 (``unisono cluster`` lists them), a path to a
                description, or a description.
            mesh: the axes with their sizes, the outer one first. By default, or with ``"auto"``, the planner chooses among all ways to make
                one or two, called ``ranks``, or ``outer`` and ``inner``, and pipeline stages where these are faster; pins that name an axis
                have it choose among those with that axis.
            ranks: how many ranks there are; by default those of the mesh, or all that the cluster has.
            stages: how many pipeline stages there are, where the mesh is not given; by default as many as are fastest.
            micro_batches: how many slices of its batch each rank computes one after the other; by default one, unless only more keep the
                memory limit, or are faster under it.
            recompute: what of forward is computed again in backward: ``"none"``, ``"full"``, or by default what the memory limit asks for.
            reduce_dtype: the element type in which gradients are summed between ranks, as in :func:`unisono.parallelize`.
            offload: what is on the host while the device does not need it: ``"none"``, ``"activations"``, ``"optimizer"``, ``"full"``, as
                in :func:`unisono.parallelize`, or by default what the memory limit asks for where the cluster has a link to the host.
            schedule: in which order pipeline stages run their micro-batches, as in :func:`unisono.parallelize`.
            chunks: how many chunks of the program each stage has, as there.
            cuts: where the chunks begin, as there.
            memory_limit: the most bytes of a rank, as a number or an amount such as ``"4GiB"``; that of a preset's device by default.
            pins: placements by name pattern and axis, as in :func:`unisono.parallelize`.
            forbid: kinds of collectives that the plan does without, as there.
            fuse: whether the plan is predicted with groups of operations as kernels, as in :func:`unisono.parallelize`. Plans are compared
                without, and pipelines are predicted without.

        Returns:
            The plan, with its figures.

        Raises:
            ConfigurationError: the cluster, the mesh or a pin cannot be used.
            ResourceError: no plan keeps the limit.
        """
        require_recompute(recompute)
        require_offload(offload)
        pipeline = Pipeline(schedule, chunks, cuts)
        description = cluster_text(cluster)
        limit = bytes_of(memory_limit)
        settings = {
            **planned_mesh(mesh, ranks, stages, _native.cluster_ranks(description)),
            "micro_batches": micro_batches,
            "recompute": recompute,
            "reduce_dtype": reduce_dtype_of(reduce_dtype),
            "offload": offload,
            **pipeline.settings(),
            "memory_limit": limit,
            "pins": plain_pins(pins),
            "forbid": plain_forbid(forbid),
            "fuse": fuse,
        }
        return Plan(self.native.plan(description, pack(settings)), self.native, description, limit, settings)

    def decoded(self) -> dict[str, Any]:
        """The graph as plain Python data, with the field names of crate ``ir``."""
        return msgpack.unpackb(self.message)["graph"]
