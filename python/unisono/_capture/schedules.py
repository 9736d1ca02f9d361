"""Schedulers of learning rates that the step itself calls: they are called at each step, before it or after it as in the step.

What the step reads of rates behind such a call stands for what they are when the step is over.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from unisono._capture.expressions import Expression, Read, evaluate
from unisono._capture.number import Number
from unisono._capture.paths import Path, Walk, follow, paths_of
from unisono._capture.places import is_the_users, user_line
from unisono._capture.readbacks import Readbacks
from unisono._capture.settings import groups_of
from unisono.errors import StepError

#: The settings that PyTorch's schedulers change and that are single numbers.
_SCHEDULED = ("lr", "momentum")
#: What a scheduler changes of itself when it is called, and code that wraps it may name.
CHANGES = ("_step_count", "last_epoch", "_last_lr")


@dataclass
class Scheduled:
    """One call of a scheduler: where it is, its arguments, and whether it comes before the optimizer's step.

    Of what it changes of itself, the step's code asks for what is ``asked``.
    """

    path: Path
    arguments: list[Expression]
    first: bool
    asked: list[str]

    def unasked(self) -> list[Path]:
        """Paths to what the scheduler changes of itself, and the step does not ask for."""
        return [(*self.path, ("attr", name)) for name in CHANGES if name not in self.asked]

    def watched(self) -> list[Path]:
        """Paths to what the step asks for."""
        return [(*self.path, ("attr", name)) for name in self.asked]


class _Noting:
    """An attribute of schedulers, who notes which of them the user's code asks for it."""

    def __init__(self, name: str, asked: dict[int, list[str]]) -> None:
        self._name, self._asked = name, asked

    def __get__(self, scheduler: Any, _kind: type) -> Any:
        if scheduler is None:
            return self
        asked = self._asked.setdefault(id(scheduler), [])
        if self._name not in asked and is_the_users(sys._getframe(1).f_code.co_filename):
            asked.append(self._name)
        try:
            return vars(scheduler)[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, scheduler: Any, value: Any) -> None:
        vars(scheduler)[self._name] = value


class Schedules:
    """Notes which schedulers a step calls while it is traced.

    Attributes:
        calls: the calls, in order.
    """

    def __init__(self, walk: Walk, optimizers: Sequence[Optimizer], reads: Readbacks) -> None:
        """Takes the schedulers that can be reached."""
        self._groups, self._set = groups_of(optimizers), list[tuple[dict[str, Any], str, Any]]()
        self._found = [value for value, _ in walk.holders.values() if isinstance(value, LRScheduler)]
        self._paths, self._reads = walk.paths, reads
        self._steps = {id(optimizer): 0 for optimizer in optimizers}
        self._after: set[int] = set()
        self._asked: dict[int, list[str]] = {}
        self.calls: list[Scheduled] = []

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Notes calls until it is left, instead of making them."""
        with contextlib.ExitStack() as stack:
            stack.callback(register_optimizer_step_pre_hook(self._begins).remove)
            stack.callback(register_optimizer_step_post_hook(self._stepped).remove)
            stack.callback(lambda: [group.__setitem__(key, value) for group, key, value in reversed(self._set)])
            for name in CHANGES:
                noting = _Noting(name, self._asked)
                stack.enter_context(mock.patch.object(LRScheduler, name, noting, create=True))
            for scheduler in self._found:
                own = vars(scheduler)
                reading = functools.partial(self._rates, scheduler)
                for name, value in (("step", self._caller(scheduler)), ("get_last_lr", reading)):
                    stack.callback(
                        own.__setitem__ if name in own else lambda key, _, o=own: o.pop(key), name, own.get(name)
                    )
                    own[name] = value
            yield

    def _begins(self, optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        if id(optimizer) in self._after:
            raise _between()

    def _stepped(self, optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
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
                self._set_later(getattr(scheduler, "optimizer", None))
            asked = self._asked.setdefault(id(scheduler), [])
            self.calls.append(Scheduled(self._paths[id(scheduler)], given, first, asked))

        return step

    def _expression(self, argument: Any) -> Expression:
        found = self._reads.read("value", argument) if isinstance(argument, torch.Tensor) else None
        return found or self._reads.expression_of(argument) or ["constant", argument]

    def _set_later(self, optimizer: Any) -> None:
        """Lets what is in the groups of an optimizer stand for what is there when the step is over."""
        for index, group in enumerate(self._groups):
            if any(group is one for one in getattr(optimizer, "param_groups", ())):
                for key in _SCHEDULED:
                    value = self._reads.number_of(group.get(key))
                    if type(value) is Number or isinstance(value, int | float):
                        self._set.append((group, key, group[key]))
                        group[key] = Number(self._reads, ["setting", index, key])

    def _rates(self, scheduler: LRScheduler) -> list[Any]:
        """What stands for the rates that a scheduler has set last."""
        path = self._paths[id(scheduler)]
        called = any(call.path == path for call in self.calls)
        count = len(type(scheduler).get_last_lr(scheduler))
        return [Number(self._reads, ["rate", path, number, called]) for number in range(count)]


def run(root: Any, calls: Sequence[Scheduled], read: Read, *, first: bool) -> None:
    """Calls the schedulers that a step calls before its optimizers' steps, or after them."""
    for call in calls:
        if call.first == first:
            follow(root, call.path).step(*(evaluate(one, read) for one in call.arguments))


def rates(root: Any, calls: Sequence[Scheduled]) -> dict[Path, list[Any]]:
    """The rates of the schedulers that a step calls behind its optimizers' steps, before they are called."""
    return {call.path: follow(root, call.path).get_last_lr() for call in calls if not call.first}


def reading(
    root: Any, groups: Sequence[dict[str, Any]], before: Mapping[Path, list[Any]]
) -> dict[str, Callable[..., Any]]:
    """What gives settings and rates when a step is over; ``before`` is what :func:`rates` has given."""

    def rate(path: Any, number: int, called: bool) -> Any:
        (path,) = paths_of([path])
        found = follow(root, path).get_last_lr() if called or path not in before else before[path]
        return _number(found[number])

    return {"setting": lambda index, key: _number(groups[index][key]), "rate": rate}


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def _between() -> StepError:
    return _refused(
        "calls a scheduler between two steps of its optimizer",
        "the learning rate is read once for each step",
        "call `scheduler.step()` at the end of the training step, or outside of it",
    )


def _refused(what: str, cause: str, hint: str) -> StepError:
    return StepError(f"the step {what}", code="U0103", place=user_line(), cause=cause, hint=hint)
