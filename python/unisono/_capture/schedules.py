"""Schedulers of learning rates that the step itself calls: they are called at each step, before it or after it as in the step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from unisono._capture.expressions import Expression, Read, evaluate
from unisono._capture.paths import Path, Walk, follow
from unisono._capture.places import user_line
from unisono._capture.readbacks import Readbacks
from unisono.errors import StepError


@dataclass
class Scheduled:
    """One call of a scheduler: where it is, its arguments, and whether it comes before the optimizer's step."""

    path: Path
    arguments: list[Expression]
    first: bool


class Schedules:
    """Notes which schedulers a step calls while it is traced.

    Attributes:
        calls: the calls, in order.
    """

    def __init__(self, walk: Walk, optimizers: Sequence[Optimizer], reads: Readbacks) -> None:
        """Takes the schedulers that can be reached."""
        self._found = [value for value, _ in walk.holders.values() if isinstance(value, LRScheduler)]
        self._paths, self._reads = walk.paths, reads
        self._steps = {id(optimizer): 0 for optimizer in optimizers}
        self._after: set[int] = set()
        self.calls: list[Scheduled] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Notes calls until it is left, instead of making them."""
        with contextlib.ExitStack() as stack:
            stack.callback(register_optimizer_step_post_hook(self._stepped).remove)
            for scheduler in self._found:
                own = vars(scheduler)
                for name, value in (("step", self._caller(scheduler)), ("get_last_lr", self._refuse_reading)):
                    stack.callback(
                        own.__setitem__ if name in own else lambda key, _, o=own: o.pop(key), name, own.get(name)
                    )
                    own[name] = value
            yield

    def _stepped(self, optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        if id(optimizer) in self._after:
            raise _between()
        self._steps[id(optimizer)] = self._steps.get(id(optimizer), 0) + 1

    def _caller(self, scheduler: LRScheduler) -> Callable[..., None]:
        def step(*arguments: Any, **named: Any) -> None:
            given = [self._expression(one) for one in (*arguments, *named.values())]
            owner = id(getattr(scheduler, "optimizer", None))
            first = self._steps.get(owner, 0) == 0
            if first and any(one[0] != "constant" for one in given):
                raise _between()
            if not first:
                self._after.add(owner)
            self.calls.append(Scheduled(self._paths[id(scheduler)], given, first))

        return step

    def _expression(self, argument: Any) -> Expression:
        found = self._reads.read("value", argument) if isinstance(argument, torch.Tensor) else None
        return found or self._reads.expression_of(argument) or ["constant", argument]

    def _refuse_reading(self) -> Any:
        raise _refused(
            "asks a scheduler for the learning rate",
            "the step's Python code runs once, when it is captured",
            "ask for it outside of the step",
        )


def run(root: Any, calls: Sequence[Scheduled], read: Read, *, first: bool) -> None:
    """Calls the schedulers that a step calls before its optimizers' steps, or after them."""
    for call in calls:
        if call.first == first:
            follow(root, call.path).step(*(evaluate(one, read) for one in call.arguments))


def _between() -> StepError:
    return _refused(
        "calls a scheduler between two steps of its optimizer",
        "the learning rate is read once for each step",
        "call `scheduler.step()` at the end of the training step, or outside of it",
    )


def _refused(what: str, cause: str, hint: str) -> StepError:
    return StepError(f"the step {what}", code="U0103", place=user_line(), cause=cause, hint=hint)
