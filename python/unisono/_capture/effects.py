"""Calls of a step that only tell people and files something: they are made when it is over."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unisono._capture.expressions import Expression, Read, evaluate, evaluated
from unisono._capture.telling import Opened
from unisono._tree import flatten, unflatten


class Later:
    """A value that is known after the step; no dataclass, of which a tree would be made."""

    __slots__ = ("expression",)

    def __init__(self, expression: Expression) -> None:
        """Takes how it is computed."""
        self.expression = expression

    def __repr__(self) -> str:
        """Says how it is computed."""
        return repr(self.expression)


@dataclass(frozen=True)
class Effect:
    """A call that only tells, which is made when a step is over.

    Attributes:
        function: what is called.
        arguments: what it is given, values that are known after the step among that.
        named: the same of named arguments.
        lines: the lines of the user's code that call it.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    lines: tuple[tuple[str, int], ...]

    def leaves(self) -> list[Any]:
        """All that the call is given."""
        return flatten((self.arguments, self.named))[0]

    def is_told_by(self, other: Effect) -> bool:
        """Whether another call is given the same numbers and texts, as far as they are known before the step is over."""
        ours, theirs = self.leaves(), other.leaves()
        known = ((one, same) for one, same in zip(ours, theirs, strict=False) if isinstance(same, str | int | float))
        return len(ours) == len(theirs) and all(repr(one) == repr(same) for one, same in known)

    def is_of_an_opened_file(self) -> bool:
        """Whether it does something to a file that the step opens, which is another one in each trace."""
        return isinstance(getattr(self.function, "__self__", None), Opened)

    def with_leaves(self, value_of: Callable[[Any], Any]) -> Effect:
        """The same call with other values."""
        leaves, structure = flatten((self.arguments, self.named))
        given = unflatten(structure, map(value_of, leaves), (self.arguments, self.named))
        return replace(self, arguments=given[0], named=given[1])


def perform(effects: Sequence[Effect], read: Read, *, whole: bool = True) -> None:
    """Prints and logs what a step has printed and logged, with the values that it has read: all, or not the ``whole`` of them."""
    value = evaluate if whole else evaluated
    for effect in effects:
        known = effect.with_leaves(lambda leaf: value(leaf.expression, read) if isinstance(leaf, Later) else leaf)
        known.function(*known.arguments, **known.named)


def told_at_first(first: Sequence[Effect], later: Sequence[Effect]) -> list[Effect] | None:
    """What a step tells that runs first, by its first trace and by what later calls tell; ``None`` if it is what these tell.

    What later calls compute when the step is over is right in the first one too, and better: what it is computed from may be another one
    then than it was in the trace.
    """
    waiting: dict[tuple[tuple[str, int], ...], deque[Effect]] = {}
    for effect in later:
        waiting.setdefault(effect.lines, deque()).append(effect)
    at_first = []
    for effect in first:
        there = waiting.get(effect.lines)
        same = there.popleft() if there else None
        at_first.append(same if same is not None and effect.is_told_by(same) else effect)
    if len(at_first) == len(later) and all(map(operator.is_, at_first, later)):
        return None
    return [*first] if any(effect.is_of_an_opened_file() for effect in first) else at_first
