"""Stand-ins for numbers that are known when a step is over."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from unisono._capture.expressions import Expression
from unisono._capture.followed import FollowedNumber, leaves_nothing, plain
from unisono._capture.places import read_back, user_line
from unisono.errors import StepError

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_UNARY = ("neg", "pos", "abs")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Asked(Protocol):
    """Who answers what is asked of a stand-in."""

    def token(self, expression: Expression, conversion: str, style: str) -> str:
        """A text that stands for a formatted value."""
        ...

    def text(self, expression: Expression) -> str:
        """The same of a text that is there before the step."""
        ...

    def refused(self, expression: Expression) -> StepError | None:
        """The error for what is done with a number that is counted; nothing for one that is read."""
        ...

    def decide_by(self, expression: Expression) -> bool:
        """The answer to a question."""
        ...


class Number:
    """Stands for a number that a step has read from a tensor, or for one at a place that it counts at."""

    __slots__ = ("expression", "kind", "place", "reads")

    is_known_later = True

    def __init__(self, reads: Asked, expression: Expression, kind: type = float) -> None:
        """Takes how it is computed, and the class of what that gives."""
        self.reads, self.expression, self.kind, self.place = reads, expression, kind, user_line()

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return self.kind

    def made(self, name: str, *operands: Any) -> Any:
        """What a function gives of this number and others."""
        if any(isinstance(one, torch.Tensor) for one in operands):
            raise self.refused()
        if not all(isinstance(one, bool | int | float) for one in operands):
            return NotImplemented
        if name == "mod" and operands[0] is self and leaves_nothing(self.kind, operands[1]):
            return 0
        return Number(self.reads, [name, *map(_expression, operands)], _kind_of(name, operands))

    def called(self, name: str, function: Callable[..., Any], operands: Sequence[Any]) -> Number:
        """What a function, which has a name with that of its module, gives of this number and others."""
        if not all(isinstance(one, bool | int | float) for one in operands):
            raise self.refused()
        return Number(self.reads, ["call", name, *map(_expression, operands)], _class_of(function, operands))

    def refused(self) -> StepError:
        """The error for what is done with it where only tensors and Python's own numbers will do."""
        return self.reads.refused(self.expression) or read_back(self.place)

    def __round__(self, digits: int | None = None) -> Any:
        return self.made("round", self) if digits is None else self.made("round", self, digits)

    def __format__(self, style: str) -> str:
        return self.reads.token(self.expression, "", style)

    def __str__(self) -> str:
        return self.reads.token(self.expression, "s", "")

    def __repr__(self) -> str:
        return self.reads.token(self.expression, "r", "")

    def _leaves(self) -> Any:
        raise self.reads.refused(self.expression) or read_back(user_line())

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return self._leaves()

    __float__ = __int__ = __index__ = __complex__ = _leaves
    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return self.reads.decide_by(self.expression)

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __copy__(self) -> Number:
        return self

    def __deepcopy__(self, _memo: Any) -> Number:
        return self


def is_of_numbers(error: BaseException) -> bool:
    """Whether an exception was raised by code that was given a stand-in."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    given = traceback.tb_frame.f_locals.values() if traceback is not None else ()
    return re.search(rf"\b{Number.__name__}\b", str(error)) is not None or any(type(one) is Number for one in given)


def _expression(operand: Any) -> Expression:
    """How a number is computed; one that is followed is said to be, for it is another one at the next call."""
    if type(operand) is Number:
        return operand.expression
    return ["followed", operand.mixed()] if type(operand) is FollowedNumber else ["constant", operand]


def _kind_of(name: str, operands: Sequence[Any]) -> type:
    """The class of what a function gives of numbers of these classes."""
    if name in ("float", "int"):
        return float if name == "float" else int
    return _class_of(round if name == "round" else getattr(operator, name), operands)


def _class_of(function: Callable[..., Any], operands: Sequence[Any]) -> type:
    try:
        return type(function(*(one.kind(1) if type(one) is Number else plain(one) for one in operands)))
    except (ArithmeticError, ValueError):
        return float


def _compares(name: str) -> Callable[[Number, Any], bool]:
    def compare(self: Number, other: Any) -> bool:
        made = self.made(name, self, other)
        return NotImplemented if made is NotImplemented else bool(made)

    return compare


def _operators() -> None:
    for name in _COMPARISONS:
        setattr(Number, f"__{name}__", _compares(name))
    for name in _BINARY:
        setattr(Number, f"__{name}__", lambda self, other, n=name: self.made(n, self, other))
        setattr(Number, f"__r{name}__", lambda self, other, n=name: self.made(n, other, self))
    for name in _UNARY:
        setattr(Number, f"__{name}__", lambda self, n=name: self.made(n, self))


_operators()
