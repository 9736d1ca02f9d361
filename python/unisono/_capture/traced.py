"""What one trace of a step has found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.fx

from unisono._capture.counting import Counts
from unisono._capture.effects import Effect
from unisono._capture.expressions import Expression
from unisono._capture.guards import Ending
from unisono._capture.paths import Path
from unisono._capture.schedules import Scheduled
from unisono._capture.settings import Answer
from unisono._tree import Structure


@dataclass
class Traced:
    """A traced step.

    Attributes:
        graph: the functional graph; its placeholders are the inputs, in order.
        returns: how the step's return value is put together; its tensor leaves are the first outputs of the graph.
        leaves: how many leaves it has.
        return_constants: leaves of the return value that are no tensors, by position.
        replaced: for each further output of the graph, the position of the input that it replaces.
        stale_gradients: how many placeholders follow those of the inputs: gradients that parameters may have when the step begins; a
            graph that reads one depends on earlier steps.
        untouched: which of those stay what they are but for their values: the optimizer sees them only if they are there.
        held: the parameters, by position, whose gradients the step goes on with in place.
        left: how many outputs, after the step's own, are tensors that the step leaves somewhere.
        numbers: how leaves of the return value that are read from tensors are computed, by position.
        reads: how many outputs, behind all that, are tensors that are read.
        effects: what is printed and logged.
        at_first: what the first step prints and logs instead, where that is something else.
        answers: what was asked of settings.
        schedules: the schedulers that the step calls.
        rates: the learning rates that it leaves, by the number of the group.
        counted: paths to the averages that take a step.
        places: where the step chooses by values; what decided are the outputs behind those that are read.
        choices: how it chooses there.
        endings: how it ends where it chooses otherwise, by the number of the choice; that of others is another way.
        tensors: how many outputs are what the step returns and leaves.
        known: paths to tensors from outside whose values are constants of the step.
        counts: what the step leaves beside tensors.
        clocks: the clocks that it reads.
        asked: where the user's code asks for a gradient that may be there when the step begins.
    """

    graph: torch.fx.GraphModule
    returns: Structure
    leaves: int
    return_constants: dict[int, Any] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)
    stale_gradients: int = 0
    untouched: set[int] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    left: int = 0
    numbers: dict[int, Expression] = field(default_factory=dict)
    reads: int = 0
    effects: list[Effect] = field(default_factory=list)
    at_first: list[Effect] | None = None
    answers: list[Answer] = field(default_factory=list)
    schedules: list[Scheduled] = field(default_factory=list)
    rates: list[tuple[int, Expression]] = field(default_factory=list)
    counted: list[Path] = field(default_factory=list)
    places: list[str | None] = field(default_factory=list)
    choices: tuple[bool, ...] = ()
    endings: dict[int, Ending] = field(default_factory=dict)
    tensors: int = 0
    known: list[Path] = field(default_factory=list)
    asked: str | None = None
    counts: Counts = field(default_factory=Counts)
    clocks: list[str] = field(default_factory=list)
