"""Settings of optimizers that may be others at each step: inputs of the captured step, as the learning rate is.

Where a setting decides what an optimizer does (``if momentum != 0``), the answer is taken for granted and asked again at each step.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

# Settings that choose an implementation, not the mathematics.
IMPLEMENTATION = ("foreach", "fused", "capturable")
# Settings that are no input of the step.
_NOT_GUARDED = ("params", "initial_lr", "param_names", "lr", *IMPLEMENTATION)
# Rates are inputs of the step, and what schedulers keep is theirs.
_NOT_COUNTED = (*_NOT_GUARDED, "max_lr", "min_lr")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


@dataclass(frozen=True)
class Answer:
    """What a comparison of a setting with a number has given: the setting's group and key, the operator and the number."""

    group: int
    key: str
    operator: str
    operand: float
    answer: bool

    def holds(self, groups: Sequence[dict[str, Any]]) -> bool:
        """Whether it gives the same now."""
        return getattr(operator, self.operator)(value_of(groups[self.group], self.key), self.operand) == self.answer


def groups_of(optimizers: Iterable[Optimizer]) -> list[dict[str, Any]]:
    """The parameter groups of all optimizers, in the order in which they are numbered."""
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def guarded_settings(
    optimizers: Iterable[Optimizer], live: Sequence[str] = (), counted: Container[tuple[int, str]] = ()
) -> list[dict[str, Any]]:
    """The settings of each group that become constants of the graph; those that are ``counted``, by group and key, do not.

    Nor do tensors that an optimizer puts beside its settings.
    """
    left_out = (*_NOT_GUARDED, *live)
    groups = [(optimizer, group) for optimizer in optimizers for group in optimizer.param_groups]
    return [
        {
            key: value
            for key, value in group.items()
            if key not in left_out
            and (number, key) not in counted
            and (key in optimizer.defaults or not isinstance(value, torch.Tensor))
        }
        for number, (optimizer, group) in enumerate(groups)
    ]


def may_be_counted(key: Any, value: Any) -> bool:
    """Whether an entry of a group is a number that a step may change: its count, a setting."""
    return (
        isinstance(key, str)
        and key not in _NOT_COUNTED
        and isinstance(value, int | float)
        and value.__class__ is not bool
    )


def is_pytorchs(optimizer: Optimizer) -> bool:
    """Whether PyTorch's own code takes its step, which takes tensors for rates, and with ``capturable=True`` asks none for its value."""
    kinds = type(optimizer).__mro__
    return any(kind is not Optimizer and kind.__module__.startswith("torch.optim.") for kind in kinds)


def has_number_for_rate(optimizer: Optimizer, group: dict[str, Any]) -> bool:
    """Whether a learning rate is a number that code of somebody's own may do with what it does with numbers."""
    return not is_pytorchs(optimizer) and isinstance(group.get("lr"), int | float)


def settings_of_pytorchs(optimizers: Iterable[Optimizer], found: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those of some numbers, by group and key, that are settings which PyTorch's own code computes with."""
    of_groups = [one for one in optimizers for _ in one.param_groups]
    return {(at, key) for at, key in found if is_pytorchs(of_groups[at]) and key in of_groups[at].defaults}


def is_count(key: Any, value: Any) -> bool:
    """Whether an entry of a parameter's state is a whole number, as counts are."""
    return isinstance(key, str) and isinstance(value, int) and value.__class__ is not bool


def cycled(optimizers: Iterable[Optimizer]) -> tuple[str, ...]:
    """The settings that a scheduler of PyTorch's says it changes at every step."""
    groups = [group for group in groups_of(optimizers) if "max_momentum" in group]
    return tuple(dict.fromkeys("betas" if "betas" in group else "momentum" for group in groups))


def may_be_live(before: Any, now: Any) -> bool:
    """Whether a setting is a number, or numbers, and so can be an input of the step."""
    if isinstance(before, tuple | list) and isinstance(now, tuple | list):
        return len(before) == len(now) and all(map(may_be_live, before, now))
    return all(isinstance(one, int | float) and not isinstance(one, bool) for one in (before, now))


def live_settings(group: dict[str, Any], live: Sequence[str]) -> Iterator[str]:
    """The keys of the settings of a group that are inputs, the entries of tuples one by one (``betas.0``)."""
    for key in ("lr", *live):
        value = group.get(key)
        if isinstance(value, tuple | list):
            yield from (f"{key}.{position}" for position in range(len(value)))
        elif isinstance(value, torch.Tensor) or may_be_live(value, value):
            yield key


def value_of(group: dict[str, Any], key: str) -> Any:
    """A setting of a group by its key."""
    name, _, position = key.partition(".")
    return group[name][int(position)] if position else group[name]


def tensor_of(group: dict[str, Any], key: str) -> torch.Tensor:
    """A setting of a group as a 0-dim tensor of double precision."""
    value = value_of(group, key)
    if isinstance(value, torch.Tensor):
        return value.detach().to(torch.float64)
    return torch.tensor(value, dtype=torch.float64)


def put(group: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Puts tensors in the place of settings, by their keys."""
    for key, tensor in tensors.items():
        name, _, position = key.partition(".")
        if position:
            group[name] = tuple(tensor if n == int(position) else v for n, v in enumerate(group[name]))
        else:
            group[name] = tensor


class Comparisons:
    """What an optimizer asks of settings while it is traced: answered by their values, and noted.

    Attributes:
        answers: what was asked.
    """

    def __init__(self, settings: dict[tuple[int, str], torch.Tensor], groups: Sequence[dict[str, Any]]) -> None:
        """Takes the tensors that stand for settings, by group and key, and the groups with the values."""
        self._of = {id(tensor): (setting, tensor) for setting, tensor in settings.items()}
        self._values = {(number, key): value_of(groups[number], key) for number, key in settings}
        self.answers: list[Answer] = []

    def answer(self, name: str, args: Sequence[Any]) -> bool | None:
        """What a comparison gives; ``None`` where it is not one of a setting with a number."""
        name = name.strip("_")
        found = self._of.get(id(args[0])) if args else None
        if found is None or (name != "bool" and (name not in _COMPARISONS or not isinstance(args[1], int | float))):
            return None
        name, operand = ("ne", 0) if name == "bool" else (name, args[1])
        value = self._values[found[0]]
        answer = bool(getattr(operator, name)(float(value), operand))
        noted = Answer(*found[0], name, operand, answer)
        if noted not in self.answers:
            self.answers.append(noted)
        return answer
