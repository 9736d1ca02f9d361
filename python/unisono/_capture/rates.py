"""Learning rates that the step itself sets (``group["lr"] = rate(self.steps)``): its updates read them, and each step leaves them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from unisono._capture.expressions import Expression
from unisono._capture.followed import plain
from unisono._capture.number import Number
from unisono._capture.readbacks import Readbacks
from unisono._capture.settings import groups_of

_KEY = "lr"


class Rates:
    """The learning rates that a step sets while it is traced."""

    def __init__(self, optimizers: Sequence[Optimizer], reads: Readbacks) -> None:
        """Takes the optimizers, whose groups have the traced rates."""
        self._groups, self._reads = groups_of(optimizers), reads
        self._given = [group.get(_KEY) for group in self._groups]
        self._instead: list[tuple[dict[str, Any], Number]] = []

    @contextlib.contextmanager
    def standing_in(self) -> Iterator[None]:
        """Lets steps of optimizers find tensors, or numbers, where the step has put what stands for a number."""
        begins = register_optimizer_step_pre_hook(self._begins)
        ends = register_optimizer_step_post_hook(self._ends)
        try:
            yield
        finally:
            begins.remove()
            ends.remove()

    def _begins(self, optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        for group in optimizer.param_groups:
            rate = group.get(_KEY)
            if type(rate) is Number:
                self._instead.append((group, rate))
                tensor = self._reads.scalar(rate.expression)
                group[_KEY] = rate.settled() if tensor is None else tensor.double()

    def _ends(self, _optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        for group, rate in self._instead:
            group[_KEY] = rate
        self._instead.clear()

    def left(self) -> list[tuple[int, Expression]]:
        """The rates that the step leaves: the number of the group, and how it is computed."""
        now = [(index, group.get(_KEY)) for index, group in enumerate(self._groups)]
        left = [(index, rate) for index, rate in now if rate is not self._given[index]]
        plainly = [(index, rate) for index, rate in left if not isinstance(rate, torch.Tensor)]
        return [(index, self._reads.expression_of(rate) or ["constant", plain(rate)]) for index, rate in plainly]


def leave(groups: Sequence[dict[str, Any]], left: Sequence[tuple[int, Any]]) -> None:
    """Sets the rates that a step has set."""
    for index, rate in left:
        groups[index][_KEY] = rate
