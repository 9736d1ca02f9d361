"""The optimizer during capture: its state as it would create it, and settings under which it can be traced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from unisono._capture import adafactor, settings
from unisono._capture.kernels import fuses
from unisono._capture.places import user_line
from unisono._capture.target import Target
from unisono.errors import ConfigurationError, StepError, UnsupportedError

# What torch.optim calls those parts of a parameter's state that are numbers of the step and no tensors in the parameter's shape.
_NUMBERS = ("step", "mu", "mu_product", "eta")

# Settings that PyTorch accepts for parameters on ``meta``, and refuses when a step is taken.
_NOT_ON_META = ("fused", "capturable")


class _WithoutMutation(TorchDispatchMode):
    """Runs operations that make tensors and leaves out those that change one.

    Scalars (step counters) are changed, because code may divide by what they become, and are put back by :meth:`restore`.
    """

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
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

    def setdefault(self, key: str, default: Any = None) -> Any:
        """As of any dictionary, which does not ask ``__setitem__``."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *given: Any, **named: Any) -> None:  # type: ignore[override]
        """The same."""
        for key, value in dict(*given, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> _FirstValues:  # type: ignore[override, misc]
        self.update(other)
        return self


def together(given: Optimizer | Sequence[Optimizer] | None) -> tuple[Optimizer, ...]:
    """The optimizers of a step, in one form."""
    several: tuple[Any, ...] = tuple(given) if isinstance(given, list | tuple) else (given,)
    if given is None:
        return ()
    for one in several:
        if not isinstance(one, Optimizer):
            raise ConfigurationError(
                f"`optimizer` is or holds {one!r}, which is no torch.optim.Optimizer",
                code="U0012",
                hint="pass the optimizer that the step calls, or a list of those",
            )
    return several


def group_name(optimizers: Sequence[Optimizer], number: int) -> str:
    """What messages call a group."""
    if len(optimizers) == 1:
        return f"parameter group {number}"
    names = [
        f"parameter group {index} of {type(o).__name__}" for o in optimizers for index in range(len(o.param_groups))
    ]
    return names[number]


@contextmanager
def refusing_others(twins: Iterable[torch.Tensor]) -> Iterator[None]:
    """Refuses steps of optimizers that do not hold traced twins: on the user's own parameters they would do nothing, and never again."""
    known = {id(twin) for twin in twins}

    def refuse(optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        if all(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            return
        raise StepError(
            f"the step calls {type(optimizer).__name__}.step, and was made without this optimizer",
            code="U0126",
            place=user_line(),
            cause="its update, and its state, would not be part of the captured step",
            hint="pass every optimizer that the step calls: `optimizer=[first, second]`",
        )

    handle = register_optimizer_step_pre_hook(refuse)
    try:
        yield
    finally:
        handle.remove()


def state_of(optimizers: Iterable[Optimizer], parameter: torch.Tensor) -> dict[str, Any]:
    """The state of a parameter, of the one optimizer that has any."""
    return next((o.state[parameter] for o in optimizers if parameter in o.state), {})


def create_state(optimizer: Optimizer) -> None:
    """Makes the optimizer create the state that it lacks, as its first step would, without taking that step.

    The step is taken on stand-ins with zero gradients while every operation that changes a tensor is left out.
    """
    _refuse_by_nature(optimizer)
    _make_state(optimizer)
    _count_on_devices(optimizer)


def _count_on_devices(optimizer: Optimizer) -> None:
    """Puts step counts on the device of their parameters where one kernel does the update, which takes them by their address.

    PyTorch makes them on the host unless the user asks for that kernel, which it refuses for parameters on ``meta``.
    """
    for group in optimizer.param_groups:
        asked = any(group.get(key) for key in _NOT_ON_META)
        for p in group["params"]:
            if not (can_be_fused(group, Target()) or (asked and p.is_meta)):
                continue
            count = optimizer.state.get(p, {}).get("step")
            if isinstance(count, torch.Tensor) and count.device != p.device:
                optimizer.state[p]["step"] = count.to(p.device)


def _make_state(optimizer: Optimizer) -> None:
    missing = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad and not optimizer.state.get(p)]
    if not missing:
        return
    _refuse_dampening(optimizer)
    # Of the same memory, and with a count of changes of their own: an operation that is left out counts as one.
    stand_ins = {id(p): torch.nn.Parameter(p.data) for p in missing}
    for stand_in in stand_ins.values():
        stand_in.grad = torch.zeros_like(stand_in)
    with _on_stand_ins(optimizer, stand_ins):
        _take_first_step(optimizer)
        made = optimizer.state
    for p in missing:
        if stand_ins[id(p)] in made:
            optimizer.state[p] = dict(made[stand_ins[id(p)]].first)


@contextmanager
def _on_stand_ins(optimizer: Optimizer, stand_ins: dict[int, torch.nn.Parameter]) -> Iterator[None]:
    """Gives the optimizer an empty state and stand-ins in the place of parameters, by their ``id``; others it does not see."""
    real_state, real_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    optimizer.state = defaultdict(_FirstValues)
    for group in optimizer.param_groups:
        group["params"] = [stand_ins[id(p)] for p in group["params"] if id(p) in stand_ins]
        if "weight_decay" in group:
            group["weight_decay"] = 0.0  # or the gradients, and a momentum that starts from them, would not be zero
        if any(p.is_meta for p in group["params"]):
            # PyTorch refuses both there, and the state is the same but for where its count lies.
            group.update({key: False for key in _NOT_ON_META if group.get(key)})
    try:
        yield
    finally:
        optimizer.state = real_state
        for group, real in zip(optimizer.param_groups, real_groups, strict=True):
            group.update(real)


def _take_first_step(optimizer: Optimizer) -> None:
    mutations = _WithoutMutation()
    try:
        with torch.no_grad(), mutations:
            type(optimizer).step(optimizer)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise StepError(
            f"{type(optimizer).__name__} cannot take a step: {reason}",
            code="U0111",
            cause="its first step, which creates its state, was tried with gradients of zeros and without arguments",
            hint="if PyTorch alone refuses it too, change the optimizer's settings; an optimizer that needs a closure is not supported",
        ) from error
    finally:
        mutations.restore()


# Optimizers that no graph of one step can hold: why, and what to do.
_BY_NATURE: dict[type[Optimizer], tuple[str, str]] = {
    torch.optim.LBFGS: (
        "it calls its closure as often as the values of the loss ask for, and a captured step is the same at every call",
        "use an optimizer that takes one step for one gradient, such as torch.optim.AdamW",
    ),
    torch.optim.SparseAdam: (
        "the size of a sparse gradient depends on data, and all shapes of a captured step are known beforehand",
        "use dense gradients (`nn.Embedding(.., sparse=False)`) with torch.optim.Adam",
    ),
}


def _refuse_by_nature(optimizer: Optimizer) -> None:
    for kind, (cause, hint) in _BY_NATURE.items():
        if isinstance(optimizer, kind):
            raise UnsupportedError(f"{kind.__name__} cannot be captured", code="U0111", cause=cause, hint=hint)


def _refuse_dampening(optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        if group.get("momentum") and group.get("dampening"):
            raise UnsupportedError(
                "the first step of SGD with dampening is not like the others",
                code="U0110",
                cause="its momentum starts from the first gradient undamped",
                hint="take one ordinary step before `parallelize`, load a state, or set dampening to 0",
            )


def rate_changed(which: str, place: str | None = None) -> StepError:
    """The error for a step that changes a learning rate: that would happen once, at capture, and never again."""
    return StepError(
        f"the step changes the learning rate {which}",
        code="U0103",
        place=place,
        cause="the step's Python code runs once, when it is captured",
        hint="call `scheduler.step()` outside of the training step; the learning rate is read anew at every step",
    )


def can_be_fused(group: dict[str, Any], target: Target) -> bool:
    """Whether PyTorch has one kernel for the whole update of this group there, and the user has not declined it.

    In half precision the kernel gives what the operations one by one do not, which round in between: there the user must ask for it.
    """
    types = (
        (torch.float32, torch.float64)
        if not group.get("fused")
        else (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    )
    supported = all(p.dtype in types and fuses(target, p) for p in group["params"])
    return "fused" in group and group["fused"] is not False and not group.get("differentiable") and supported


def _is_pytorchs(optimizer: Optimizer) -> bool:
    """Whether PyTorch's own code takes the optimizer's step, which with ``capturable=True`` asks no tensor for its value."""
    kinds = type(optimizer).__mro__
    return any(kind is not Optimizer and kind.__module__.startswith("torch.optim.") for kind in kinds)


def is_number(parameter: torch.Tensor, key: str, value: torch.Tensor) -> bool:
    """Whether a part of a parameter's state is a number of the step (its count, say), even if it is kept as a tensor."""
    return value.dim() == 0 and value.is_floating_point() and (parameter.dim() > 0 or key in _NUMBERS)


@contextmanager
def traceable(
    optimizers: Iterable[Optimizer],
    twins: dict[int, torch.Tensor],
    state: dict[int, dict[str, Any]],
    live: dict[tuple[int, str], torch.Tensor],
    target: Target,
) -> Iterator[None]:
    """Puts traced twins in the place of parameters, state and settings, and chooses traceable implementations.

    Args:
        optimizers: the user's optimizers; they are as before when the context is left.
        twins: the traced twin of each parameter, by the parameter's ``id``.
        state: the traced state of each parameter, by the parameter's ``id``.
        live: the traced settings, by the group's number and their keys.
        target: what the step is captured for.
    """
    first = 0
    with ExitStack() as stack:
        stack.enter_context(adafactor.traceable())
        for optimizer in optimizers:
            own: list[dict[str, torch.Tensor]] = [
                {key: tensor for (group, key), tensor in live.items() if group == first + index}
                for index in range(len(optimizer.param_groups))
            ]
            stack.enter_context(_on_twins(optimizer, twins, state, own, target))
            first += len(optimizer.param_groups)
        yield


@contextmanager
def _on_twins(
    optimizer: Optimizer,
    twins: dict[int, torch.Tensor],
    state: dict[int, dict[str, Any]],
    live: list[dict[str, torch.Tensor]],
    target: Target,
) -> Iterator[None]:
    real_state, real_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    attributes = dict(optimizer.__dict__)
    optimizer.state = made = defaultdict(dict)
    for index, group in enumerate(optimizer.param_groups):
        fused = can_be_fused(group, target) and set(live[index]) <= {"lr"}
        optimizer.state.update({twins[id(p)]: state[id(p)] for p in group["params"] if id(p) in state})
        group["params"] = [twins[id(p)] for p in group["params"]]
        settings.put(group, live[index])
        if "fused" in group:
            group["fused"] = fused
        if "foreach" in group:
            group["foreach"] = False
        if "capturable" in group and _is_pytorchs(optimizer):
            group["capturable"] = True
    given = [dict(group) for group in optimizer.param_groups]
    numbers = {id(values): _numbers(values) for values in made.values()}
    tensors = {id(values): _tensors(values) for values in made.values()}
    try:
        yield
        _require_settings(optimizer, given)
        _require_numbers(made, numbers)
        _require_tensors(made, tensors)
    finally:
        del optimizer.param_groups[len(real_groups) :]
        for group, real in zip(optimizer.param_groups, real_groups, strict=True):
            group.clear()
            group.update(real)
        # What it counts in attributes of its own is seen by who looks for what the step changes.
        changed = {name for name, value in optimizer.__dict__.items() if isinstance(value, int | float | str | tuple)}
        optimizer.__dict__.update({name: value for name, value in attributes.items() if name not in changed})
        optimizer.state = real_state


def _require_settings(optimizer: Optimizer, given: list[dict[str, Any]]) -> None:
    """Refuses a step that changes a setting, or adds groups."""
    if len(optimizer.param_groups) != len(given):
        raise _changed_once("adds a parameter group", "add it before `parallelize`")
    for number, (group, before) in enumerate(zip(optimizer.param_groups, given, strict=True)):
        for key, value in group.items():
            was = before.get(key)
            if key == "params" or (key == "lr" and not isinstance(value, torch.Tensor)):
                continue  # what the step sets a learning rate to is set behind each step
            if value is not was and (isinstance(value, torch.Tensor) or value != was):
                which = f"parameter group {number} of {type(optimizer).__name__}"
                raise _changed_once(f"changes `{key}` of {which}", "change it outside of the training step")


def _require_numbers(made: Mapping[torch.Tensor, dict[str, Any]], before: dict[int, dict[str, Any]]) -> None:
    """Refuses a step that keeps numbers in the optimizer's state that are none of the captured state."""
    for values in made.values():
        was = before.get(id(values), {})
        changed = next((key for key, number in _numbers(values).items() if number != was.get(key)), None)
        if changed is not None:
            raise _changed_once(f"keeps a number in the optimizer's state (`{changed}`)", "keep it as a tensor")


def _require_tensors(made: Mapping[torch.Tensor, dict[str, Any]], before: dict[int, dict[str, list[int]]]) -> None:
    """Refuses a step that keeps tensors in the optimizer's state that are none of the captured state."""
    for values in made.values():
        was = before.get(id(values), {})
        for key, found in _tensors(values).items():
            is_entry = isinstance(values[key], torch.Tensor) and len(was.get(key, ())) == 1
            if found != was.get(key, []) and not is_entry:  # what takes an entry's place is its new value
                raise _changed_once(
                    f"keeps a tensor in the optimizer's state (`{key}`) that its first step has not made, or in a container",
                    "let the first step make it, as an entry of the parameter's state",
                )


def _tensors(values: dict[str, Any]) -> dict[str, list[int]]:
    """The tensors of each entry, by their ``id``."""
    leaves = {
        key: [one for one in pytree.tree_iter(value) if isinstance(one, torch.Tensor)] for key, value in values.items()
    }
    return {key: [*map(id, found)] for key, found in leaves.items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if isinstance(value, int | float | str)}


def _changed_once(what: str, hint: str) -> StepError:
    return StepError(
        f"the step {what}",
        code="U0103",
        cause="its Python code runs once, when it is captured, and so would this",
        hint=hint,
    )
