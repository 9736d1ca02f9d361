"""What a captured step takes for granted of numbers that are there before it: how its code chooses by what it counts and by arguments.

A step that asks (``if self.steps % 100 == 0:``) is captured once for each answer. Each capture serves the calls that give its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from unisono._capture.expressions import Expression, Read, evaluate, places_in
from unisono._capture.given import Given, Row, Values, leaves_of
from unisono._capture.paths import Missing, Path, follow, shown
from unisono._capture.places import user_line

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OPERATORS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "**",
    **_COMPARISONS,
}
_SIGNS = {"neg": "-{}", "pos": "+{}", "abs": "abs({})"}
_COMPUTED = frozenset((*_OPERATORS, *_SIGNS, "round", "float", "int", "leaf", "call"))


class Premise(NamedTuple):
    """One of them: an expression, what it gives or whether that is true, and the user's line that was the first to need it."""

    expression: Expression
    value: Any
    line: str | None


@dataclass
class Premises:
    """What the traces of a step take for granted.

    Attributes:
        are_looked_at: whether they are looked at before each step; if not, nothing can be taken for granted.
        found: each of them, by its text.
        scalars: expressions that the step computes tensors with, whatever they give.
        most: how many of the places that the step counts at, the first ones, may have numbers that are inputs of it; all if ``None``. If it
            is less than 0, arguments are no inputs either.
        given: what follows from the tensors of the call.
    """

    are_looked_at: bool = False
    found: dict[str, Premise] = field(default_factory=dict)
    scalars: list[Expression] = field(default_factory=list)
    most: int | None = None
    given: Given = field(default_factory=Given)

    def inputs(self) -> list[Expression]:
        """The expressions that are inputs of the step."""
        most = self.most
        return [one for one in self.scalars if most is None or (most >= 0 and all(at < most for at in places_in(one)))]

    def take(self, expression: Expression, value: Any) -> None:
        """Takes something for granted."""
        text = repr((expression, value))
        if text not in self.found:
            self.found[text] = Premise(expression, value, user_line())


@dataclass(frozen=True)
class Looked:
    """What is looked at before each call of a captured step.

    Attributes:
        premises: expressions and what they give.
        scalars: expressions that are inputs of it, and the class of what they give.
        paths: where it counts.
        names: the names of the leaves of its arguments.
        rows: what computes values of the tensors among them.
    """

    premises: Sequence[tuple[Expression, Any]]
    scalars: Sequence[tuple[Expression, type]]
    paths: Sequence[Path]
    names: Sequence[str]
    rows: Sequence[Row] = ()

    def hold(self, root: Any, arguments: Sequence[Any]) -> bool:
        """Whether all is as the step takes it for granted."""
        return next(self._otherwise(root, arguments), None) is None

    def otherwise(self, root: Any, arguments: Sequence[Any]) -> tuple[str, Any, Any] | None:
        """In words, what is not as the step takes it for granted, what it was, and what it is for these arguments."""
        found = next(self._otherwise(root, arguments), None)
        return None if found is None else (self._in_words(found[0]), *found[1:])

    def _otherwise(self, root: Any, arguments: Sequence[Any]) -> Iterator[tuple[Expression, Any, Any]]:
        if not (self.premises or self.scalars):
            return
        read = before(root, self.paths, arguments, self.rows)
        for expression, value in self.premises:
            now = _given(expression, read)
            if not _is(now, value):
                yield expression, value, bool(now) if isinstance(value, bool) else now
        for expression, kind in self.scalars:
            now = _given(expression, read)
            if type(now) is not kind:
                yield expression, kind, now

    def _in_words(self, expression: Expression) -> str:
        kind, *rest = expression
        match kind:
            case "constant":
                return repr(rest[0])
            case "place":
                return shown(self.paths[rest[0]])
            case "argument":
                return str(self.names[rest[0]])
            case "leaf":
                return f"{self._in_words(rest[0])}[{rest[1]}]"
            case "given":
                leaves = dict.fromkeys(self.names[at] for at in leaves_of(self.rows, rest[1]))
                return f"what follows from {' and '.join(leaves)}"
        parts = [self._in_words(one) for one in _parts(expression)]
        if kind in _OPERATORS:
            within = _OPERATORS if kind not in _COMPARISONS else _COMPARISONS
            nested = [f"({part})" if one[0] in within else part for part, one in zip(parts, rest, strict=True)]
            return f" {_OPERATORS[kind]} ".join(nested)
        if kind in _SIGNS:
            return _SIGNS[kind].format(*parts)
        return f"{rest[0] if kind == 'call' else kind}({', '.join(parts)})"


class _Places(Sequence[Any]):
    """What is at places, as far as it is asked for."""

    def __init__(self, root: Any, paths: Sequence[Path]) -> None:
        self._root, self._paths = root, paths

    def __getitem__(self, number: Any) -> Any:
        return follow(self._root, self._paths[number])

    def __len__(self) -> int:
        return len(self._paths)


def before(root: Any, paths: Sequence[Path], arguments: Sequence[Any], rows: Sequence[Row] = ()) -> Read:
    """What is known before a step that counts at some places."""
    return Read(places=_Places(root, paths), arguments=arguments, given=Values(rows, arguments).read)


def is_known_before(expression: Expression, firm: Collection[int]) -> bool:
    """Whether an expression is computed of arguments, and of what is at ``firm`` places, alone."""
    kind, *rest = expression
    if kind in ("argument", "constant", "given"):
        return True
    if kind == "place":
        return rest[0] in firm
    return kind in _COMPUTED and all(is_known_before(one, firm) for one in _parts(expression))


def another_at_the_next(
    premises: Premises, places: Sequence[Any], behind: Callable[[int], Any]
) -> tuple[Expression, str | None] | None:
    """The first premise on a number, and not on an answer, that no longer holds behind the step, and the line that needs it.

    Args:
        premises: those of the step.
        places: what is at the places before it.
        behind: gives what is at a place behind it; ``Missing`` where that follows from values of tensors.
    """
    for expression, value, line in premises.found.values():
        numbers = places_in(expression)
        if not numbers or isinstance(value, bool):
            continue
        after = [behind(number) if number in numbers else was for number, was in enumerate(places)]
        unknown = any(after[number] is Missing for number in numbers)
        if unknown or not _is(_given(expression, Read(places=after)), value):
            return expression, line
    return None


def _given(expression: Expression, read: Read) -> Any:
    """What an expression gives; ``Missing`` where it gives nothing."""
    try:
        return evaluate(expression, read)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return Missing


def _is(now: Any, value: Any) -> bool:
    if now is Missing:
        return False
    return bool(now) == value if isinstance(value, bool) else type(now) is type(value) and now == value


def _parts(expression: Expression) -> Iterator[Expression]:
    """The expressions that one is computed of."""
    kind, *rest = expression
    if kind == "leaf":
        yield rest[0]
    elif kind == "call":
        yield from rest[1:]
    elif kind in _COMPUTED:
        yield from rest
