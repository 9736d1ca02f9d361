"""What is computed in Python when a step is over, of what it has read and of what it counts: as plain data, which other ranks are told."""

from __future__ import annotations

import builtins
import json
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from unisono._tree import flatten, from_plain, unflatten

#: ``["value", n]`` for the number in the n-th tensor that is read, ``["tensor", n]`` for that tensor, ``["place", n]`` for what is at the
#: n-th place that the step counts at when it begins, ``["argument", n]`` for the n-th leaf of its arguments, ``["leaf", expression, n]``
#: for the n-th leaf of a tuple or another tree, ``["given", what, n]`` for what the n-th row of operations gives for the tensors among
#: them: the ``number``, its ``shape``, or its ``values`` (:mod:`given`), ``["clock", "perf_counter", at]`` for what a clock says when the
#: step begins (0) or is over (1), ``["setting", n, key]`` for what is in the n-th group of the optimizers when schedulers have been
#: called, ``["rate", path, n, called]`` for the n-th rate of a scheduler when it has been, or before it is, ``["text", [part, ..]]`` where
#: a part is a text or ``[expression, conversion, format]``, ``["constant", value]``, ``["call", "math.exp", argument, ..]``, ``["json",
#: structure, [leaf, ..], settings]`` and ``[operator, argument, ..]``. While a step is traced once more, ``["followed", value]`` is a
#: number that may be another one then.
Expression = list[Any]


@dataclass(frozen=True)
class Read:
    """What is known when a step is over.

    Attributes:
        tensors: the tensors that it has read.
        places: what was at the places that it counts at when it began.
        clocks: what clocks said when it began and what they say now, by their names.
        settings: what gives ``["setting", ..]`` and ``["rate", ..]``.
        arguments: the leaves of its arguments.
        given: gives ``["given", ..]``.
    """

    tensors: Sequence[torch.Tensor] = ()
    places: Sequence[Any] = ()
    clocks: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)
    settings: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    arguments: Sequence[Any] = ()
    given: Callable[[str, int], Any] | None = None


def evaluate(expression: Expression, read: Read) -> Any:
    """What an expression gives for what a step has read."""
    kind, *rest = expression
    match kind:
        case "constant":
            return rest[0]
        case "value":
            return read.tensors[rest[0]].item()
        case "tensor":
            return read.tensors[rest[0]]
        case "place":
            return read.places[rest[0]]
        case "argument":
            return read.arguments[rest[0]]
        case "given":
            assert read.given is not None
            return read.given(*rest)
        case "clock":
            return read.clocks[rest[0]][rest[1]]
        case "setting" | "rate":
            return read.settings[kind](*rest)
        case "leaf":
            return flatten(evaluate(rest[0], read))[0][rest[1]]
        case "text":
            return "".join(part if isinstance(part, str) else _formatted(part, read) for part in rest[0])
        case "call":
            module, _, name = rest[0].rpartition(".")
            return getattr(sys.modules[module], name)(*(evaluate(one, read) for one in rest[1:]))
        case "json":
            structure, leaves, named = rest
            value = unflatten(from_plain(structure, {}), iter([evaluate(one, read) for one in leaves]))
            return json.dumps(value, **named)
        case "round" | "float" | "int":
            return getattr(builtins, kind)(*(evaluate(one, read) for one in rest))
        case _:
            return getattr(operator, kind)(*(evaluate(one, read) for one in rest))


def evaluated(expression: Expression, read: Read) -> Any:
    """The same where not all tensors are there that it is computed from: a question mark is in the place of what is not known."""
    kind, *rest = expression
    if kind == "text" and len(rest[0]) > 1:
        return "".join(part if isinstance(part, str) else evaluated(["text", [part]], read) for part in rest[0])
    try:
        return evaluate(expression, read)
    except IndexError:
        return "?"


def alike(one: Any, other: Any) -> bool:
    """Whether expressions are the same, but for numbers that are followed in the other one."""
    if isinstance(other, list | tuple) and isinstance(one, list | tuple):
        if len(other) == 2 and other[0] == "followed":
            return len(one) == 2 and one[0] in ("constant", "followed")
        return len(one) == len(other) and all(map(alike, one, other))
    return repr(one) == repr(other)


def places_in(expression: Any) -> set[int]:
    """The numbers of the places that an expression is computed from."""
    if not isinstance(expression, list | tuple):
        return set()
    if len(expression) == 2 and expression[0] == "place":
        return {expression[1]}
    if expression and expression[0] == "constant":
        return set()
    return set[int]().union(*(places_in(part) for part in expression))


def values_in(expression: Any) -> set[int]:
    """The numbers of the tensors that an expression is computed from."""
    if not isinstance(expression, list | tuple) or (expression and expression[0] == "constant"):
        return set()
    if len(expression) == 2 and expression[0] == "value":
        return {expression[1]}
    return set[int]().union(*(values_in(part) for part in expression))


def _formatted(part: Sequence[Any], read: Read) -> str:
    expression, conversion, style = part
    value = evaluate(expression, read)
    return repr(value) if conversion == "r" else str(value) if conversion == "s" else format(value, style)
