"""Stand-ins for numbers that are known when a step is over."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from unisono._capture.expressions import Expression
from unisono._capture.followed import OF_TEXTS, FollowedNumber, leaves_nothing, methods_of, plain
from unisono._capture.places import user_line
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

    def settled(self, expression: Expression, place: str | None) -> Any:
        """What an expression gives, where that is known before the step and can be taken for granted; ``place`` is what needs it."""
        ...

    def beside(self, name: str, operands: Sequence[Any]) -> Any:
        """What an operator gives of tensors and stand-ins."""
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
            return self.reads.beside(name, operands)
        if not all(isinstance(one, bool | int | float) for one in operands):
            return NotImplemented
        if name == "mod" and operands[0] is self and leaves_nothing(self.kind, operands[1]):
            return 0
        return Number(self.reads, [name, *map(_expression, operands)], _kind_of(name, operands))

    def called(self, name: str, function: Callable[..., Any], operands: Sequence[Any]) -> Number:
        """What a function, which has a name with that of its module, gives of this number and others."""
        if not all(isinstance(one, bool | int | float) for one in operands):
            return function(*(one.settled(one.place) if type(one) is Number else one for one in operands))
        return Number(self.reads, ["call", name, *map(_expression, operands)], _class_of(function, operands))

    def settled(self, place: str | None = None) -> Any:
        """The number itself, where only tensors and Python's own numbers will do; ``place`` if that is not the user's line.

        Raises:
            StepError: it is not known before the step, or another one at each call.
        """
        return self.reads.settled(self.expression, place or user_line())

    def __round__(self, digits: int | None = None) -> Any:
        return self.made("round", self) if digits is None else self.made("round", self, digits)

    def __format__(self, style: str) -> str:
        return self.reads.token(self.expression, "", style)

    def __str__(self) -> str:
        return self.reads.token(self.expression, "s", "")

    def __repr__(self) -> str:
        return self.reads.token(self.expression, "r", "")

    def __float__(self) -> float:
        return float(self.settled())

    def __int__(self) -> int:
        return int(self.settled())

    def __index__(self) -> int:
        return operator.index(self.settled())

    def __complex__(self) -> complex:
        return complex(self.settled())

    def __hash__(self) -> int:
        return hash(self.settled())

    def __reduce_ex__(self, _protocol: Any) -> Any:
        value = self.settled()
        return type(value), (value,)

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


class LaterText(str):
    """Stands for a text that is known when the step is over: it can be shown, kept and made a part of others."""

    refused: Callable[[], StepError]

    def __new__(cls, value: str, refused: Callable[[], StepError]) -> LaterText:
        """Takes what stands in its place, and what gives the error for anything else that is done with it."""
        made = super().__new__(cls, value)
        made.refused = refused
        return made

    def __str__(self) -> str:
        return self

    def __format__(self, style: str) -> str:
        if style:
            raise self.refused()  # by its length
        return self

    def __add__(self, other: str) -> LaterText:
        return LaterText(str.__add__(self, other), self.refused)

    def __radd__(self, other: str) -> LaterText:
        return LaterText(str.__add__(other, self), self.refused)

    def __deepcopy__(self, _memo: Any) -> LaterText:
        return self

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise self.refused()


def _refusing(*_given: Any, **_named: Any) -> Any:
    raise _given[0].refused()


for _name in methods_of(str, OF_TEXTS):
    setattr(LaterText, _name, _refusing)


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
        made = function(*(one.kind(1) if type(one) is Number else plain(one) for one in operands))
        return type(made.item() if hasattr(made, "item") else made)  # NumPy has classes of its own
    except (ArithmeticError, ValueError):
        return float


def _compares(name: str) -> Callable[[Number, Any], Any]:
    def compare(self: Number, other: Any) -> Any:
        made = self.made(name, self, other)
        return made if made is NotImplemented or isinstance(made, torch.Tensor) else bool(made)

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
