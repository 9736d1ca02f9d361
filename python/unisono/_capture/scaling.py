"""PyTorch's loss scaler while a step is traced: an update that it would skip is undone by a choice between the old state and the new."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from unisono._capture.number import Number
from unisono._capture.paths import Walk, tensors_in
from unisono._capture.settings import may_be_counted
from unisono.errors import StepError

_aten = torch.ops.aten


def prepare(walk: Walk) -> None:
    """Lets the scalers that a step can reach have their scale, as their first use would make it."""
    device = next((tensor.device for tensor in walk.tensors.values()), torch.device("cpu"))
    for value, _ in walk.holders.values():
        if isinstance(value, GradScaler) and value._enabled and value._scale is None:
            value._lazy_init_scale_growth_tracker(device)


@contextlib.contextmanager
def traceable(optimizers: Sequence[Optimizer]) -> Iterator[None]:
    """Lets scalers skip updates by choices; the optimizers' own way of skipping is put aside."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(GradScaler, "_maybe_opt_step", _step_if_finite))
        for optimizer in optimizers:
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                stack.enter_context(mock.patch.object(optimizer, "_step_supports_amp_scaling", False))
        yield


def _step_if_finite(
    _scaler: GradScaler, optimizer: Optimizer, found: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """The optimizer's step where no infinity was found; its state, and the parameters, as they were where one was."""
    bad: Any = sum(found["found_inf_per_device"].values()) != 0
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    with torch.no_grad():
        before = [parameter.detach().clone() for parameter in parameters]
        state = [
            (values, key, one.clone())
            for values in _holders(optimizer)[:-1]
            for key, one in values.items()
            if isinstance(one, torch.Tensor) and key != "lr"
        ]
        held = [(one, one.clone()) for one in _in_containers(optimizer)]
    numbers = [(values, key, one) for values in _holders(optimizer) for key, one in _numbers_in(values)]
    optimizer.step(*args, **kwargs)
    if [id(one) for one in _in_containers(optimizer)] != [id(one) for one, _ in held]:
        raise StepError(
            f"{type(optimizer).__name__} puts other tensors into containers of its state, and a scaler may skip its update",
            code="U0103",
            cause="an update that is skipped leaves the state as it was, which is known of entries, and of tensors that are written into",
            hint="write into the tensors (`t.copy_(..)`), or take the step without a `GradScaler`",
        )
    for values, key, was in numbers:
        values[key] = _unless(bad, was, values.get(key, was))
    with torch.no_grad():
        for parameter, old in zip(parameters, before, strict=True):
            parameter.copy_(torch.where(bad, old, parameter))
        for values, key, old in state:
            values[key].copy_(torch.where(bad, old, values[key]))
        for one, old in held:
            one.copy_(torch.where(bad, old, one))


def _in_containers(optimizer: Optimizer) -> list[torch.Tensor]:
    """The tensors in containers and objects that an optimizer has in its groups and its state."""
    values = [one for held in _holders(optimizer)[:-1] for key, one in held.items() if key != "params"]
    met = set[int]()
    return [one for value in values if not isinstance(value, torch.Tensor) for one in tensors_in(value, met)]


def _holders(optimizer: Optimizer) -> list[dict[str, Any]]:
    """What an optimizer has numbers in that it may count with: its groups, its state, its attributes."""
    return [*optimizer.param_groups, *optimizer.state.values(), vars(optimizer)]


def _numbers_in(values: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, one) for key, one in values.items() if may_be_counted(key, one)]


def _unless(bad: torch.Tensor, was: Any, now: Any) -> Any:
    """A number as it was if a value is true, else as it is now; where neither is followed, as it is now."""
    stand_in = next((one for one in (was, now) if type(one) is Number), None)
    if now is was or stand_in is None or isinstance(now, torch.Tensor):
        return now
    reads: Any = stand_in.reads
    skipped: Any = Number(reads, reads.read("value", bad), int)
    return was + (now - was) * (1 - skipped)


def check_and_unscale(gradients: Sequence[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    """What ``_amp_foreach_non_finite_check_and_unscale_`` does, one gradient at a time."""
    for gradient in gradients:
        # Zero times a number that is not finite is not a number, and so is a sum with it.
        bad = _aten.ne.Scalar(_aten.sum.default(_aten.mul.Tensor(gradient, 0.0)), 0.0)
        _aten.copy_.default(found, _aten.where.self(bad, _aten.ones_like.default(found), found))
        _aten.mul_.Tensor(gradient, inverse)


def update_scale(
    scale: torch.Tensor, tracker: torch.Tensor, found: torch.Tensor, growth: float, backoff: float, interval: int
) -> torch.Tensor:
    """What ``_amp_update_scale_`` does, in operations that can be traced."""
    bad = _aten.gt.Scalar(found, 0.0)
    good = _aten.add.Tensor(tracker, 1)
    due = _aten.eq.Scalar(good, interval)
    larger = _aten.mul.Tensor(scale, growth)
    larger = _aten.where.self(_aten.isinf.default(larger), scale, larger)
    grown = _aten.where.self(due, larger, scale)
    nothing = _aten.zeros_like.default(tracker)
    _aten.copy_.default(tracker, _aten.where.self(bad, nothing, _aten.where.self(due, nothing, good)))
    _aten.copy_.default(scale, _aten.where.self(bad, _aten.mul.Tensor(scale, backoff), grown))
    return scale
