"""Whether all that a captured step rests on beside values is still as it was: a step that serves a call gives what eager PyTorch gives."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono._call import Call
from unisono._capture.compared import MOST_ENTRIES, Array
from unisono._capture.inputs import StepInput
from unisono._capture.optimizer import group_name
from unisono._capture.outside import Outside
from unisono._capture.settings import Answer, groups_of, guarded_settings, may_be_live, tensor_of
from unisono._modes import Modes
from unisono.errors import StepError

_OTHER_STATE = 'load its state before `parallelize`, or let the step be captured again (`on_change="capture"`)'
_OTHER_MODE = 'change it back, or let the step be captured again (`on_change="capture"`)'
_OTHER_CALL = 'call it as before, or let the step be captured again (`on_change="capture"`)'
_OTHER_BATCH = 'pad to the captured shape, or let the step be captured again (`on_change="capture"`)'
_OTHER_VALUE = "change it back, or make it an argument of the step: a tensor if it is another one at each step"


class Unchanged:
    """What was taken for granted when a step was captured."""

    def __init__(
        self,
        model: nn.Module | None,
        optimizers: Sequence[Optimizer],
        *,
        live: Sequence[str],
        counted: Set[tuple[int, str]],
        answers: Sequence[Answer],
        accumulated: Sequence[StepInput],
        outside: Outside,
        known: Sequence[tuple[str, Callable[[], Any]]],
        counts: Sequence[Callable[[], tuple[str, str, Any] | None]],
    ) -> None:
        """Takes everything as it is at this moment.

        Args:
            model: its modules' modes are looked at.
            optimizers: their states and settings are looked at.
            live: the settings that are inputs of the step, and so may change.
            counted: the settings that a step of the session changes, by group and key; there may be more later.
            answers: what was asked of those.
            accumulated: the parameters that the step adds to the gradients of.
            outside: what the step's code reads from outside.
            known: the tensors from outside whose values it goes on with: a name, and what gives it.
            counts: what says where there is no longer what it counts with: name, what was there, and what is there now.
        """
        self._optimizers, self._live, self._answers, self._outside = optimizers, live, answers, outside
        self._left_out, self._counted = frozenset(counted), counted
        self._settings = self._guarded()
        self._gradients = [(item.name, item.tensor, item.tensor.grad is not None) for item in accumulated]
        self._known = [(name, now, _values(now())) for name, now in known]
        self._counts = counts
        self._modes, self._states = Modes(model), [optimizer.state for optimizer in optimizers]

    def require(self) -> None:
        """Raises U0122 for the first that is otherwise now."""
        self._require_states()
        self._require_settings()
        self._require_answers()
        self._require_gradients()
        self._require_known()
        self._require_counts()
        outside = self._outside.changed()
        if outside is not None:
            name, was, now = outside
            raise _changed(f"`{name}` is {_shown(now)}", f"it was {_shown(was)}", _OTHER_VALUE)
        otherwise = self._modes.changed()
        if otherwise is not None:
            raise _changed(*otherwise, _OTHER_MODE)

    def has_its_states(self) -> bool:
        """Whether the optimizers have the states that they had."""
        return all(one.state is state for one, state in zip(self._optimizers, self._states, strict=True))

    def changed_numbers(self) -> tuple[str, ...]:
        """The settings of optimizers, numbers all of them, that are not as they were."""
        pairs = enumerate(zip(self._guarded(), self._settings, strict=False))
        changed = [
            (key, was[key], now[key])
            for number, (now, was) in pairs
            for key in now
            if key in was and now[key] != was[key] and (number, key) not in self._counted
        ]
        return tuple(dict.fromkeys(key for key, was, now in changed if may_be_live(was, now)))

    def _guarded(self) -> list[dict[str, Any]]:
        return guarded_settings(self._optimizers, self._live, self._left_out)

    def _require_states(self) -> None:
        for optimizer, state in zip(self._optimizers, self._states, strict=True):
            if optimizer.state is not state:
                what = f"{type(optimizer).__name__} has another state, which `load_state_dict` makes"
                raise _changed(what, "the step goes on with the tensors that it had", _OTHER_STATE)

    def _require_settings(self) -> None:
        now = self._guarded()
        if now == self._settings:
            return
        for index, (group, before) in enumerate(zip(now, self._settings, strict=False)):
            for key in group:
                if group[key] != before.get(key):
                    what = f"`{key}` of {group_name(self._optimizers, index)} is {group[key]}"
                    raise _changed(what, f"it was {before.get(key)}", _OTHER_MODE)
        raise _changed("the optimizer's parameter groups changed", "they were others", _OTHER_MODE)

    def _require_answers(self) -> None:
        if not self._answers:
            return
        groups = groups_of(self._optimizers)
        for answer in self._answers:
            if not answer.holds(groups):
                now = tensor_of(groups[answer.group], answer.key).item()
                what = f"`{answer.key}` of {group_name(self._optimizers, answer.group)} is {now}"
                raise _changed(what, "the optimizer did something else with the value that it had", _OTHER_MODE)

    def _require_known(self) -> None:
        for name, now, values in self._known:
            if _values(now()) != values:
                raise _changed(
                    f"the values of `{name}` are others", "the step went on with those that it had", _OTHER_VALUE
                )

    def _require_counts(self) -> None:
        for found in filter(None, (changed() for changed in self._counts)):
            name, kind, now = found
            raise _changed(f"`{name}` is {_shown(now)}", f"it was a {kind}, which each step counts with", _OTHER_VALUE)

    def _require_gradients(self) -> None:
        for name, parameter, there in self._gradients:
            if (parameter.grad is not None) != there:
                now, before = ("a", "none") if not there else ("no", "one")
                raise _changed(f"`{name}` has {now} gradient", f"it had {before}", _OTHER_MODE)


def has_ended(how: str) -> StepError:
    """The error for a step behind one that has ended with an exception of the user's code."""
    return StepError(
        f"the step before this one has ended with an exception: {how}",
        code="U0131",
        cause="what it checks is known when it is over: parameters and optimizer state are those behind its update",
        hint="load a state or a checkpoint (`step.load_state_dict(..)`, `step.load(..)`), or check outside of the step and before it",
    )


def other_choice(what: str, was: Any, now: Any) -> StepError:
    """The error for a step that chose by something, in words, which has another value now."""
    return _changed(f"`{what}` is {_shown(now)}", f"it was {_shown(was)}", _OTHER_CALL)


def other_call(call: Call, before: Call, paths: Sequence[str], varying: Collection[int] = ()) -> StepError:
    """The error for a call that is not like the captured one; ``paths`` are those of its leaves, of which ``varying`` ones may differ."""
    if call.structure != before.structure:
        return _changed(f"the step is called as `{call.shown()}`", f"it was `{before.shown()}`", _OTHER_CALL)
    pairs = enumerate(zip(call.kinds, before.kinds, strict=True))
    at = next(n for n, (one, same) in pairs if one != same and not (n in varying and one[0] is same[0]))
    path, now, was = paths[at], call.leaves[at], before.leaves[at]
    if not isinstance(was, torch.Tensor):
        return _changed(f"argument `{path}` is {now!r}", f"it was {was!r}", _OTHER_BATCH)
    return _changed(f"`batch.{path}` is {_described(now)}", f"it was {_described(was)}", _OTHER_BATCH)


def _values(tensor: Any) -> Any:
    """What is compared of a tensor: its values, or which one it is and how often written into, if it is large or on a device."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    if tensor.device.type == "cpu" and tensor.numel() <= MOST_ENTRIES:
        return tensor.dtype, tensor.shape, bytes(tensor.detach().reshape(-1).view(torch.uint8).tolist())
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _described(leaf: Any) -> str:
    if not isinstance(leaf, torch.Tensor):
        return f"a {type(leaf).__name__}"
    return f"{leaf.dtype} of shape {list(leaf.shape)} on {leaf.device}"


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    if isinstance(value, types.CodeType):
        return f"the function `{value.co_name}` of line {value.co_firstlineno}"
    if isinstance(value, type):
        return f"the class `{value.__qualname__}`"
    if isinstance(value, Array):
        return f"an array of {value.kind} of shape {list(value.shape)}, with other numbers"
    return f"a {type(value).__name__}"


def _changed(what: str, before: str, hint: str) -> StepError:
    return StepError(what, code="U0122", cause=f"{before} when the step was captured", hint=hint)
