"""What the captured steps of one model have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from unisono import _devices
from unisono._arguments import Fuse, Pipeline
from unisono._capture.inputs import StepInput
from unisono._captures import Captures
from unisono._deferred.models import Deferred
from unisono._placements import Layout, full_tensor
from unisono._ranks import Ranks
from unisono._state import State
from unisono._watch import Watch

if TYPE_CHECKING:
    from unisono._captured_step import CapturedStep

#: The classes of inputs that stay from step to step.
STATE = ("parameter", "buffer", "optimizer", "constant")


class Seconds(NamedTuple):
    """What it took to make a step, in seconds.

    Attributes:
        capture: to capture it, and to give every rank its state and graph.
        measurement: to measure the machine, or to read what was measured before.
        plan: to plan, and to prepare this rank's program.
    """

    capture: float
    measurement: float
    plan: float


@dataclass
class Session:
    """What the captured steps of one model have in common.

    Attributes:
        ranks: the ranks that run them.
        mesh: the axes of the ranks.
        model: the user's model.
        optimizers: the user's optimizers.
        state: the tensors that the steps share.
        memory_limit: most bytes of one rank.
        cluster: a description of the machine, or where it is, if the user gives one.
        pins: the user's placements by name pattern.
        compare_every: after how many steps the ranks compare what they are given.
        keep_grads: whether gradients are left to the user.
        active: the captured step that has run last.
        live: the settings of optimizers that are inputs of steps beside the learning rate.
        counted: the numbers in groups and attributes of optimizers that steps change themselves, by group and key.
        batch: whether each rank is given the global batch, or its shard (``local``).
        steps: the captured steps of each function.
        captures: where they are kept for other processes, if anywhere.
        device_mesh: the mesh as PyTorch has it, made when it is first needed.
        searches_mesh: whether the first plan decides which axes the ranks make.
        recompute: what of forward is computed again in backward, if the user says so.
        reduce_dtype: the element type in which gradients are summed between ranks, if the user says so.
        offload: what is on the host while the device does not need it, if the user says so.
        forbid: kinds of collectives that plans do without, by axis.
        pipeline: what the user says of pipeline stages.
        fuse: whether groups of operations run as kernels: all that move less, or (``"auto"``) those that take no longer.
        match_eager: whether kernels give the bits of eager PyTorch.
        key: the seed and the number of the step, if random operations draw by a counter.
        synchronous: whether each instruction is waited for.
        graphs: whether steps are graphs of a device where they can be (``auto``), or not (``off``).
        home: the device that its state is on, which batches of the host are given to.
        deferred: the tensors that have no memory before there is a plan.
        made: how many captured steps have been made, or begun.
        watch: what looks for ranks that stand still.
        ended: what has ended the last step, whose state is that behind it.
    """

    ranks: Ranks
    mesh: dict[str, int]
    model: nn.Module | None
    optimizers: tuple[Optimizer, ...]
    state: State
    memory_limit: int | None
    cluster: str | Path | None
    pins: dict[str, dict[str, str]]
    compare_every: int
    keep_grads: bool
    active: Any = None
    live: tuple[str, ...] = ()
    counted: set[tuple[int, str]] = field(default_factory=set)
    batch: str = "global"
    steps: list[list[CapturedStep]] = field(default_factory=list)
    captures: Captures | None = None
    device_mesh: Any = None
    searches_mesh: bool = False
    recompute: str | None = None
    reduce_dtype: str | None = None
    offload: str | None = None
    forbid: dict[str, list[str]] = field(default_factory=dict)
    pipeline: Pipeline = field(default_factory=Pipeline)
    fuse: Fuse = False
    match_eager: bool = False
    key: torch.Tensor | None = None
    ended: str | None = None
    synchronous: bool = False
    graphs: str = "off"
    home: torch.device = _devices.HOST
    deferred: Deferred | None = None
    made: int = 0
    watch: Watch = field(init=False)

    def take_mesh(self, mesh: Mapping[str, int]) -> None:
        """Takes the axes that the first plan has found, for all that has the mesh of the session."""
        self.mesh.clear()
        self.mesh.update(mesh)
        self.searches_mesh = False

    def full(self, item: StepInput, layout: Layout, shard: torch.Tensor) -> torch.Tensor:
        """The global tensor, gathered from the local ones of all ranks."""
        if self.ranks.count == 1:
            return shard.clone()
        return full_tensor(self.state.gathered(item.name, shard, layout, item.tensor.shape), layout, self.mesh)
