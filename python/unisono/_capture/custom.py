"""The rules of the user's own operations in a captured step: those that are registered, and those that are found by trying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from unisono._capture.calls import CustomCall, undisturbed
from unisono._capture.places import warn_user
from unisono._capture.probe import found_rule
from unisono._capture.prove import difference, prove
from unisono._capture.values import Untried, tried
from unisono._rules import Rule, is_settled, rule_of
from unisono.errors import ConfigurationError, RuleNotice

#: The rules that were proved, each with the call.
_PROVED: set[Any] = set()
#: What was found by trying, for each call.
_PROBED: dict[Any, str | None] = {}


def proved_rules(calls: Sequence[CustomCall]) -> dict[str, str]:
    """The rules of the operations that are called, by their names, each proved for every call.

    Raises:
        ConfigurationError: a rule does not fit a call, or is wrong.
    """
    by_name: dict[str, list[CustomCall]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call)
    found = {name: _registered(named) if is_settled(name) else _found(named) for name, named in by_name.items()}
    return {name: rule.einsum() for name, rule in found.items() if rule is not None}


def _registered(calls: Sequence[CustomCall]) -> Rule | None:
    """The rule that is registered for an operation, if one is."""
    rule = rule_of(calls[0].name)
    if rule is not None:
        for call in calls:
            _prove_once(rule, call)
    return rule


def _found(calls: Sequence[CustomCall]) -> Rule | None:
    """The rule that is found by trying for an operation without one, if there is one that holds for all its calls."""
    key = calls[0].key()
    if key not in _PROBED:
        _PROBED[key] = _probed(calls[0]) if _may_be_probed(calls[0]) else None
    text = _PROBED[key]
    if text is None:
        return None
    rule = Rule.parsed(calls[0].name, text)
    try:
        for call in calls:
            _prove_once(rule, call)
    except ConfigurationError:
        return None
    warn_user(
        f"no rule is registered for `{rule.operator}`, which is sharded by {text!r}, found by trying it on random values; "
        "`unisono.register_rule` takes this rule, or `None` to have the operation run replicated",
        RuleNotice,
    )
    return rule


def _prove_once(rule: Rule, call: CustomCall) -> None:
    key = rule, call.key()
    if key not in _PROVED:
        prove(rule, call)
        _PROVED.add(key)


def _may_be_probed(call: CustomCall) -> bool:
    """Whether what an operation does can be seen from what it computes of random numbers: whole numbers may mean anything."""
    floating = all(one.dtype.is_floating_point or one.dtype.is_complex for one in call.tensors())
    random = torch.Tag.nondeterministic_seeded in call.target.tags
    plain = bool(call.tensors()) and all(call.present(call.args)) and not call.has_lists()
    return plain and floating and not random and not call.elsewhere


def _probed(call: CustomCall) -> str | None:
    with undisturbed(call):
        try:
            args, made = tried(call, lambda _, one: [str(size) for size in one.shape])
        except Untried:
            return None
        again = call.run(args)
        if any(difference(one, two, exact=True) for one, two in zip(made, again, strict=True)):
            return None
        return found_rule(args, made, call.run, difference)
