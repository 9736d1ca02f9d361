"""The proof of a rule: what follows from it for one call holds for random values, or the rule is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unisono._capture.calls import CustomCall, tensors_of, undisturbed
from unisono._capture.exam import Question, questions
from unisono._capture.places import warn_user
from unisono._capture.values import Untried, tried
from unisono._rules import Rule
from unisono.errors import ConfigurationError, RuleNotice

#: Over so many ranks shards are made.
_RANKS = (2, 3)
#: By how much, of the largest value, results may differ: sums are made in another order.
_TOLERANCE = {torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-4, torch.complex64: 1e-4}
_ROUGH = 3e-2
_HINT = 'leave `{0}` out of the rule: write `_` in its place, or `keep=["{0}"]`'
_ON_RANDOM = "an operation that draws random numbers runs replicated: leave the rule out"
_ON_OPERANDS = "give it operands that it takes: `sample=` is a function that makes arguments"


def prove(rule: Rule, call: CustomCall) -> None:
    """Examines a rule for a call.

    Raises:
        ConfigurationError: the rule does not fit the call, or is wrong.
    """
    with undisturbed(call):
        if call.has_lists():
            raise _refused(rule, call, "it takes or returns a list of tensors, and rules are for tensors", None)
        own = _fitting(rule, call, call.args, call.tensors())
        try:
            args, made = _tried(own, call)
        except Untried as reason:
            if not call.elsewhere:
                raise _refused(rule, call, str(reason), _ON_OPERANDS) from None
            message = f"the rule for `{call.name}` was not examined, because here {reason}"
            warn_user(f"{message}; it is where the step runs", RuleNotice)
            return
        own = _fitting(rule, call, args, tensors_of(args))
        _require_shapes(own, call, made, "result", own.results)
        _require_sizes(own, call, [*tensors_of(args), *made])
        again = call.run(args)
        for one, other in zip(made, again, strict=True):
            if difference(one, other, exact=True):
                raise _refused(rule, call, "it gives other results when it is called again", _ON_RANDOM)
        for ranks in _RANKS:
            for question in questions(call.target, rule.einsum(), args, made, ranks):
                _ask(own, call, args, made, question)


def _fitting(rule: Rule, call: CustomCall, args: Sequence[Any], tensors: Sequence[Any]) -> Rule:
    """The rule without operands that are absent among ``args``; refuses one that does not fit the tensors that are there."""
    present = call.present(args)
    if len(present) != len(rule.operands):
        cause = f"it has {len(present)} tensors as operands, and the rule is for {len(rule.operands)}"
        raise _refused(rule, call, cause, None)
    own = rule.given(present)
    _require_shapes(own, call, tensors, "operand", own.operands)
    return own


def _require_shapes(rule: Rule, call: CustomCall, tensors: Sequence[Any], what: str, sides: Sequence[Any]) -> None:
    """Refuses a rule for another number of tensors, or for tensors with other dimensions."""
    if len(tensors) != len(sides):
        cause = f"it has {len(tensors)} tensors as {what}s, and the rule is for {len(sides)}"
        raise _refused(rule, call, cause, None)
    first = 0 if what == "operand" else len(rule.operands)
    for number, tensor in enumerate(tensors):
        if rule.names(first + number, len(tensor.shape)) is None:
            cause = f"{what} {number} has {len(tensor.shape)} dimensions, and the rule says `{' '.join(sides[number])}`"
            raise _refused(rule, call, cause, None)


def _require_sizes(rule: Rule, call: CustomCall, tensors: Sequence[torch.Tensor]) -> None:
    """Refuses a name that stands for dimensions of several sizes; one of size 1 may be repeated along the others."""
    sizes: dict[str, int] = {}
    for number, tensor in enumerate(tensors):
        for name, size in zip(rule.names(number, tensor.dim()) or [], tensor.shape, strict=True):
            if name != "_" and size != 1 and sizes.setdefault(name, size) != size:
                cause = f"`{name}` stands for dimensions of sizes {sizes[name]} and {size}"
                raise _refused(rule, call, cause, "give dimensions that differ names of their own")


def _tried(rule: Rule, call: CustomCall) -> tuple[list[Any], list[torch.Tensor]]:
    """Arguments of which the operation computes numbers, and these."""
    if rule.sample is not None:
        args = list(rule.sample())
        return args, call.run(args)
    return tried(call, lambda number, one: rule.names(number, len(one.shape)) or [])


def _ask(rule: Rule, call: CustomCall, args: list[Any], made: list[torch.Tensor], question: Question) -> None:
    """Refuses a rule by which shards give something else than the whole."""
    name = question.dimension(rule, [*tensors_of(args), *made])
    what = f"with `{name}` sharded over {question.ranks} ranks"
    pieces = []
    for rank in range(question.ranks):
        try:
            pieces.append(call.run(question.operands_of(args, rank)))
        except Exception as error:  # whatever the user's code raises
            raise _refused(rule, call, f"{what}, the operation fails: {error}", _HINT.format(name)) from error
    for number, wanted in enumerate(made):
        for found in question.combined(number, [made_here[number] for made_here in pieces]):
            wrong = difference(found, wanted)
            if wrong:
                cause = f"{what}, result {number} is not that of one device: {wrong}"
                raise _refused(rule, call, cause, _HINT.format(name))


def difference(found: torch.Tensor, wanted: torch.Tensor, exact: bool = False) -> str | None:
    """The first difference between two tensors, in words."""
    if found.shape != wanted.shape:
        return f"its shape is {list(found.shape)}, and not {list(wanted.shape)}"
    if found.dtype != wanted.dtype:
        return f"its type is {found.dtype}, and not {wanted.dtype}"
    if not wanted.numel():
        return None
    if exact or not (wanted.is_floating_point() or wanted.is_complex()):
        wrong = found != wanted
    else:
        type_ = torch.complex128 if wanted.is_complex() else torch.float64
        one, other = found.to(type_), wanted.to(type_)
        wrong = (one - other).abs() > _TOLERANCE.get(wanted.dtype, _ROUGH) * other.abs().max()
        wrong |= one.isnan() != other.isnan()
    if not bool(wrong.any()):
        return None
    at = wrong.nonzero()[0].tolist()
    return f"element {at} is {found[tuple(at)].item():.6g}, and not {wanted[tuple(at)].item():.6g}"


def _refused(rule: Rule, call: CustomCall, cause: str, hint: str | None) -> ConfigurationError:
    return ConfigurationError(
        f"the rule {rule.text!r} that is registered for `{call.name}` is wrong",
        code="U0207",
        place=call.place,
        cause=cause,
        hint=hint,
    )
