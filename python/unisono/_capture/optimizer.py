"""The optimizer during capture: its state as it would create it, and settings under which it can be traced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from unisono.errors import StepError, UnsupportedError

# Settings that choose an implementation, not the mathematics.
_IMPLEMENTATION = ("foreach", "fused", "capturable")
# Settings that a scheduler may change from step to step without a new capture.
LIVE = ("lr",)
# Settings that are no input of the step.
_NOT_GUARDED = ("params", "initial_lr", "param_names", *_IMPLEMENTATION, *LIVE)


class _WithoutMutation(TorchDispatchMode):
    """Runs operations that make tensors and leaves out those that change one.

    Scalars (step counters) are changed, because code may divide by what they become, and are put back by :meth:`restore`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func._schema.is_mutable:
            # What the first step would fill (fused SGD's momentum) starts from zeros, not from whatever memory holds.
            made = func(*args, **kwargs)
            return made.zero_() if "empty" in func._schema.name else made
        changed = args[0] if isinstance(args[0], list | tuple) else [args[0]]
        if all(tensor.dim() == 0 for tensor in changed):
            self._before += [(tensor, tensor.clone()) for tensor in changed]
            return func(*args, **kwargs)
        return kwargs.get("out", args[0]) if func._schema.returns else None

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the scalars, parameters among them, back to what they were."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)


class _FirstValues(dict[str, Any]):
    """A dictionary that remembers the first value of each key."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}

    def __setitem__(self, key: str, value: Any) -> None:
        self.first.setdefault(key, value)
        super().__setitem__(key, value)


def create_state(optimizer: Optimizer) -> None:
    """Makes the optimizer create the state that it lacks, as its first step would, without taking that step.

    The step is taken on stand-ins with zero gradients while every operation that changes a tensor is left out.
    """
    missing = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad and not optimizer.state.get(p)]
    if not missing:
        return
    for group in optimizer.param_groups:
        if group.get("momentum") and group.get("dampening"):
            raise UnsupportedError(
                "the first step of SGD with dampening is not like the others",
                code="U0110",
                cause="its momentum starts from the first gradient undamped",
                hint="take one ordinary step before `parallelize`, load a state, or set dampening to 0",
            )
    stand_ins = {id(p): torch.nn.Parameter(p.detach()) for p in missing}
    for stand_in in stand_ins.values():
        stand_in.grad = torch.zeros_like(stand_in)
    real_state, real_params = optimizer.state, [group["params"] for group in optimizer.param_groups]
    optimizer.state = defaultdict(_FirstValues)
    for group, params in zip(optimizer.param_groups, real_params, strict=True):
        group["params"] = [stand_ins[id(p)] for p in params if id(p) in stand_ins]
    try:
        with torch.no_grad(), _WithoutMutation() as mutations:
            type(optimizer).step(optimizer)
        mutations.restore()
        made = optimizer.state
    except TypeError as error:
        raise StepError(
            f"{type(optimizer).__name__} cannot take a step by itself: {error}",
            code="U0111",
            hint="optimizers that need a closure are not supported",
        ) from error
    finally:
        optimizer.state = real_state
        for group, params in zip(optimizer.param_groups, real_params, strict=True):
            group["params"] = params
    for p in missing:
        if stand_ins[id(p)] in made:
            optimizer.state[p] = dict(made[stand_ins[id(p)]].first)


def guarded_settings(optimizer: Optimizer | None) -> list[dict[str, Any]]:
    """The settings of each group that become constants of the graph."""
    groups = optimizer.param_groups if optimizer is not None else []
    return [{key: value for key, value in group.items() if key not in _NOT_GUARDED} for group in groups]


def can_be_fused(group: dict[str, Any]) -> bool:
    """Whether PyTorch has one kernel for the whole update of this group, and the user has not declined it."""
    supported = all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in group["params"])
    return "fused" in group and group["fused"] is not False and not group.get("differentiable") and supported


@contextmanager
def traceable(
    optimizer: Optimizer,
    twins: dict[int, torch.Tensor],
    state: dict[int, dict[str, Any]],
    rates: dict[int, torch.Tensor],
) -> Iterator[None]:
    """Puts traced twins in the place of parameters, state and learning rates, and chooses traceable implementations.

    Args:
        optimizer: the user's optimizer; it is as before when the context is left.
        twins: the traced twin of each parameter, by the parameter's ``id``.
        state: the traced state of each parameter, by the parameter's ``id``.
        rates: the traced learning rate of each group that has one, by the group's number.
    """
    real_state, real_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    attributes = dict(optimizer.__dict__)
    optimizer.state = defaultdict(dict)
    for index, group in enumerate(optimizer.param_groups):
        fused = can_be_fused(group)
        optimizer.state.update({twins[id(p)]: state[id(p)] for p in group["params"] if id(p) in state})
        group["params"] = [twins[id(p)] for p in group["params"]]
        if index in rates:
            group["lr"] = rates[index]
        if "fused" in group:
            group["fused"] = fused
        if "foreach" in group:
            group["foreach"] = False
        if "capturable" in group:
            group["capturable"] = True
    try:
        yield
    finally:
        for group, real in zip(optimizer.param_groups, real_groups, strict=True):
            group.clear()
            group.update(real)
        optimizer.__dict__.update(attributes)
        optimizer.state = real_state
