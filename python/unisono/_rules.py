"""Rules that users register for their own operations: which dimensions may be sharded together."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unisono import _native
from unisono._message import unpack
from unisono.errors import ConfigurationError

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*|_|1|\.\.\.")
_HINT = 'write the dimensions of each tensor, operands before the arrow: "b s h, h d -> b s d"'


@dataclass(frozen=True)
class Rule:
    """How an operation may be sharded.

    Attributes:
        operator: its name, with the overload unless that is the default one.
        text: the rule as it was registered.
        operands: for each tensor argument the names of its dimensions, ``_`` where one is never sharded; ``...`` stands for all others.
        results: the same for each tensor that it returns.
        sample: makes arguments to examine it on.
    """

    operator: str
    text: str
    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    sample: Callable[[], Sequence[Any]] | None = None

    @classmethod
    def parsed(cls, operator: str, text: str) -> Rule:
        """The rule that a text says."""
        operands, results = _sides(text)
        return cls(operator, text, operands, results)

    def einsum(self) -> str:
        """The rule as crate ``aten`` reads it."""
        sides = (", ".join(" ".join(map(_starred, words)) for words in side) for side in (self.operands, self.results))
        return " -> ".join(sides)

    def given(self, present: Sequence[bool]) -> Rule:
        """The rule without operands that are absent."""
        operands = (one for one, there in zip(self.operands, present, strict=True) if there)
        return dataclasses.replace(self, operands=tuple(operands))

    def names(self, tensor: int, rank: int) -> list[str] | None:
        """The name of each dimension of an operand, or of the results behind them; ``None`` where the tensor has no such rank."""
        words = (*self.operands, *self.results)[tensor]
        left = rank - len(words) + ("..." in words)
        named = [name for word in words for name in ([f"...{i}" for i in range(left)] if word == "..." else [word])]
        return named if left >= 0 and len(named) == rank else None


#: The rules of this process. Rank 0 writes into a captured graph those that the graph needs; nothing else reads them.
_RULES: dict[str, Rule | None] = {}


def register_rule(
    operator: Any,
    rule: str | None,
    *,
    keep: Sequence[str] = (),
    reduce: str | None = "sum",
    sample: Callable[[], Sequence[Any]] | None = None,
) -> None:
    """Says how an operation of yours may be sharded, such as ``register_rule("mylib::op", "b s h, h d -> b s d")``.

    A name that operands and results share is sharded alike in all of them. A name that a result lacks is summed there: each rank computes
    its part of the sum. ``_`` stands for a dimension that is never sharded, ``...`` for all dimensions that are left, which are sharded
    like each other's. Arguments that are no tensors are left out.

    When a step that calls the operation is captured, the rule is examined: the operation runs on random values, once on all of them and
    once on the shards of each way to shard them, and must give the same. The rule becomes part of the captured step; ranks other than
    the first need none. Without a rule the operation runs replicated.

    Args:
        operator: the operation, or its name, ``"library::operation"``. An operation that it calls in backward has a name of its own.
        rule: the dimensions of each tensor, those of the arguments before the arrow; ``None`` to have it run replicated.
        keep: names of dimensions that are not sharded.
        reduce: what becomes of names that only operands have: ``"sum"``, or ``None`` where they are not sharded.
        sample: a function that makes arguments for the examination, where random values of the captured shapes will not do; whole numbers
            among those are 0 and 1.

    Raises:
        ConfigurationError: the rule cannot be read. That it does not hold is an error of the capture, with the operation, the dimension
            and the first difference.
    """
    name = _name_of(operator)
    if rule is None:
        _RULES[name] = None
        return
    if reduce not in ("sum", None):
        raise ConfigurationError(
            f"`reduce={reduce!r}` is neither `'sum'` nor `None`",
            code="U0012",
            hint="shards are added up, or the dimension is not sharded (`reduce=None`)",
        )
    operands, results = _sides(rule)
    known = {word for side in (operands, results) for words in side for word in words}
    for one in keep:
        if one not in known:
            raise _malformed(rule, f"it has no dimension `{one}` that could be kept")
    only_operands = known - {word for words in results for word in words}
    kept = {*keep, *(only_operands if reduce is None else ())}
    _RULES[name] = Rule(name, rule, _without(operands, kept), _without(results, kept), sample)


def rule_of(operator: str) -> Rule | None:
    """The rule of an operation, if one is registered."""
    return _RULES.get(operator)


def registered() -> list[str]:
    """All that is registered, as texts."""
    rules = ((name, rule.einsum() if rule else "") for name, rule in sorted(_RULES.items()))
    return [f"{name} {rule}" for name, rule in rules]


def is_settled(operator: str) -> bool:
    """Whether it is said how an operation is sharded, if only that it is not."""
    return operator in _RULES or operator in known()


@functools.cache
def known() -> frozenset[str]:
    """The operators of the operation table."""
    return frozenset(row["name"] for row in unpack(_native.operation_rows()))


def _name_of(operator: Any) -> str:
    """The name of an operation under which a graph has it."""
    if isinstance(operator, torch._ops.OpOverload):
        name = str(operator).replace(".", "::", 1)
    else:
        name = getattr(operator, "_qualname", None) or getattr(operator, "_qualified_op_name", None) or operator
    if not isinstance(name, str) or not re.fullmatch(r"\w+::\w+(\.\w+)?", name):
        raise ConfigurationError(
            f"{operator!r} is no name of an operation", code="U0012", hint='write "library::operation"'
        )
    name = name.removesuffix(".default")
    if name in known():
        raise ConfigurationError(f"the operation table has a rule for `{name}` already", code="U0012")
    return name


def _sides(rule: str) -> list[tuple[tuple[str, ...], ...]]:
    """The names of operands and of results."""
    sides = rule.split("->")
    if len(sides) != 2:
        raise _malformed(rule, "it has no arrow `->` between operands and results, or several")
    found = [tuple(tuple(tensor.split()) for tensor in side.split(",")) for side in sides]
    for words in (words for side in found for words in side):
        for word in words:
            if not _WORD.fullmatch(word):
                raise _malformed(rule, f"`{word}` is no name of a dimension")
        named = [word for word in words if word not in ("_", "1")]
        if len(named) != len(set(named)):
            raise _malformed(rule, f"a name comes twice in `{' '.join(words)}`")
    names = [{word for words in side for word in words} - {"_", "1"} for side in found]
    if names[1] - names[0]:
        raise _malformed(rule, f"no operand has the dimension `{min(names[1] - names[0])}` of the results")
    return found


def _without(side: tuple[tuple[str, ...], ...], kept: set[str]) -> tuple[tuple[str, ...], ...]:
    hidden = {*kept, "1"}
    return tuple(tuple("_" if word in hidden else word for word in words) for words in side)


def _starred(word: str) -> str:
    return "rest*" if word == "..." else word


def _malformed(rule: str, cause: str) -> ConfigurationError:
    return ConfigurationError(f"the rule {rule!r} cannot be read", code="U0207", cause=cause, hint=_HINT)
