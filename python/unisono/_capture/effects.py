"""Calls of a step that only tell people and files something: they are made when it is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from unisono._capture.expressions import Expression, Read, evaluate, evaluated
from unisono._capture.followed import plain
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


def told_later(first: Sequence[Effect], later: Sequence[Effect]) -> list[Effect] | None:
    """What later calls of a step tell, by one that was traced behind the first; ``None`` if it is what the first tells."""
    plainly = [effect.with_leaves(plain) for effect in later]
    texts = [[(effect.lines, repr(effect.leaves())) for effect in effects] for effects in (first, plainly)]
    return None if texts[0] == texts[1] else plainly
