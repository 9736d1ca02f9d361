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
from unisono._capture.settings import groups_of, is_count, may_be_counted

_KEY = "lr"


class Rates:
    """The learning rates that a step sets while it is traced."""

    def __init__(self, optimizers: Sequence[Optimizer], reads: Readbacks) -> None:
        """Takes the optimizers, whose groups have the traced rates."""
        self._groups, self._reads = groups_of(optimizers), reads
        self._given = [group.get(_KEY) for group in self._groups]
        #: The groups whose rates are numbers that the step counts with.
        self._counted = {id(group) for group in self._groups if isinstance(group.get(_KEY), int | float)}
        self._numbers = [{key: one for key, one in group.items() if may_be_counted(key, one)} for group in self._groups]
        states = (values for optimizer in optimizers for values in optimizer.state.values())
        self._counts = [(values, key) for values in states for key, one in values.items() if is_count(key, one)]
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
            if type(rate) is Number and id(group) not in self._counted:
                self._instead.append((group, rate))
                tensor = self._reads.scalar(rate.expression)
                group[_KEY] = rate.settled() if tensor is None else tensor.double()

    def _ends(self, _optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        for group, rate in self._instead:
            group[_KEY] = rate
        self._instead.clear()

    def settle(self) -> None:
        """Lets numbers be where the step has put tensors in the place of numbers: what it computes of rates."""
        of_groups = [
            (group, key) for group, numbers in zip(self._groups, self._numbers, strict=False) for key in numbers
        ]
        for values, key in (*of_groups, *self._counts):
            value = values.get(key)
            if isinstance(value, torch.Tensor) and not value.dim() and value.is_floating_point():
                values[key] = Number(self._reads, self._reads.read("value", value))

    def left(self) -> list[tuple[int, Expression]]:
        """The rates that the step leaves: the number of the group, and how it is computed."""
        groups = ((index, group) for index, group in enumerate(self._groups) if id(group) not in self._counted)
        now = [(index, group.get(_KEY)) for index, group in groups]
        left = [(index, rate) for index, rate in now if rate is not self._given[index]]
        plainly = [(index, rate) for index, rate in left if not isinstance(rate, torch.Tensor)]
        return [(index, self._reads.expression_of(rate) or ["constant", plain(rate)]) for index, rate in plainly]


def leave(groups: Sequence[dict[str, Any]], left: Sequence[tuple[int, Any]]) -> None:
    """Sets the rates that a step has set."""
    for index, rate in left:
        groups[index][_KEY] = rate
