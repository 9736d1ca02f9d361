"""Pipeline stages in one process: their programs run side by side, and wait for each other as over gloo."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgpack
import side_by_side
import torch
from machines import machine

import unisono
from unisono import _native
from unisono.errors import ConfigurationError

#: A machine on which sending takes its time.
MACHINE = machine(memory_bandwidth=1e10, flops=1e10, latency_ns=1e3, bandwidth=1e9)


def plan(graph: unisono.StepGraph, stages: int, micro_batches: int, **settings: Any) -> _native.Plan:
    """A plan with so many stages on their own."""
    settings |= {"mesh": {"stages": stages}, "micro_batches": micro_batches, "effort": "quick"}
    return graph.native.plan(MACHINE, msgpack.packb(settings))


def forward_length(graph: unisono.StepGraph) -> int:
    """How many operations of forward a step has in canonical form, as the refusal of a cut behind all of them says."""
    try:
        plan(graph, 2, 1, cuts=[10**6])
    except ConfigurationError as error:
        return int(str(error).partition("has ")[2].split()[0])
    raise AssertionError("a cut behind all operations is accepted")


def train(
    graph: unisono.StepGraph, plan: _native.Plan, batches: Sequence[Sequence[torch.Tensor]]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Trains a captured step by a plan; what each step returns (the same on every stage), and the parameters after the last."""
    return side_by_side.train(graph, plan, batches, random.Random(0))
