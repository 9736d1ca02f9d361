"""The optimizer during capture: its state as it would create it, and settings under which it can be traced."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from unisono._capture import adafactor, beginnings, settings
from unisono._capture.beginnings import NOT_ON_META
from unisono._capture.kernels import fuses
from unisono._capture.paths import tensors_in
from unisono._capture.places import user_line
from unisono._capture.target import Target
from unisono.errors import ConfigurationError, StepError, UnsupportedError

# What torch.optim calls those parts of a parameter's state that are numbers of the step and no tensors in the parameter's shape.
_NUMBERS = ("step", "mu", "mu_product", "eta")


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
    return tuple(map(_within, several))


def _within(optimizer: Optimizer) -> Optimizer:
    """The optimizer that one wraps, where both have the same groups and the same state, or itself; accelerate and Fabric make such."""
    for held in vars(optimizer).values():
        if isinstance(held, Optimizer) and held is not optimizer and held.state is optimizer.state:
            groups = held.param_groups, optimizer.param_groups
            if len(groups[0]) == len(groups[1]) and all(map(operator.is_, *groups)):
                return _within(held)
    return optimizer


def group_name(optimizers: Sequence[Optimizer], number: int) -> str:
    """What messages call a group."""
    if len(optimizers) == 1:
        return f"parameter group {number}"
    names = [
        f"parameter group {index} of {type(o).__name__}" for o in optimizers for index in range(len(o.param_groups))
    ]
    return names[number]


@contextmanager
def refusing_others(optimizers: Iterable[Optimizer], twins: Iterable[torch.Tensor]) -> Iterator[None]:
    """Refuses steps of optimizers that neither are among some, nor have their groups, nor are made within: they would keep no state."""
    known = {id(twin) for twin in twins}
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    made, begin = [], Optimizer.__init__

    def begins(optimizer: Optimizer, *arguments: Any, **named: Any) -> None:
        made.append(optimizer)
        begin(optimizer, *arguments, **named)

    def refuse(optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        is_made = any(one is optimizer for one in made)
        if is_made and all(id(p) in known for group in optimizer.param_groups for p in group["params"]):
            return
        if all(any(group is one for one in groups) for group in optimizer.param_groups):
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
        with mock.patch.object(Optimizer, "__init__", begins):
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
    beginnings.require_of_parameters(optimizer, optimizer.state)
    missing = [p for g in optimizer.param_groups for p in g["params"] if p.requires_grad and not optimizer.state.get(p)]
    if missing:
        beginnings.begin(optimizer, missing)
    _count_on_devices(optimizer)


def _count_on_devices(optimizer: Optimizer) -> None:
    """Puts step counts on the device of their parameters where one kernel does the update, which takes them by their address.

    PyTorch makes them on the host unless the user asks for that kernel, which it refuses for parameters on ``meta``.
    """
    for group in optimizer.param_groups:
        asked = any(group.get(key) for key in NOT_ON_META)
        for p in group["params"]:
            if not (can_be_fused(group, Target()) or (asked and p.is_meta)):
                continue
            count = optimizer.state.get(p, {}).get("step")
            if isinstance(count, torch.Tensor) and count.device != p.device:
                optimizer.state[p]["step"] = count.to(p.device)


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


def is_one_kernel(group: dict[str, Any], number: int, of_the_step: Collection[tuple[int, str]], target: Target) -> bool:
    """Whether an optimizer's update of a group, by its number, is one kernel: that takes none of the step's for settings."""
    stood_for = {key for at, key in of_the_step if at == number}
    return can_be_fused(group, target) and stood_for <= {"lr"}


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
    followed: Container[int] = (),
    *,
    of_the_step: Collection[tuple[int, str]] = (),
    rates_by_number: bool = False,
) -> Iterator[None]:
    """Puts traced twins in the place of parameters, state and settings, and chooses traceable implementations.

    Args:
        optimizers: the user's optimizers; they are as before when the context is left.
        twins: the traced twin of each parameter, by the parameter's ``id``.
        state: the traced state of each parameter, by the parameter's ``id``.
        live: the traced settings, by the group's number and their keys.
        target: what the step is captured for.
        followed: the optimizers that the step can reach, by their ``id``: numbers that it changes in their groups, and counts in their
            state, stay for who looks for what it changes.
        of_the_step: what stands for settings, tensors or numbers of the step, by the group's number and their keys.
        rates_by_number: whether rates of those that are not PyTorch's own are such numbers, too.
    """
    first = 0
    with ExitStack() as stack:
        stack.enter_context(adafactor.traceable())
        for optimizer in optimizers:
            own: list[dict[str, torch.Tensor]] = [
                {key: tensor for (group, key), tensor in live.items() if group == first + index}
                for index in range(len(optimizer.param_groups))
            ]
            is_followed = id(optimizer) in followed
            if rates_by_number and is_followed:
                pairs = zip(own, optimizer.param_groups, strict=True)
                own = [_without_rate(optimizer, group, tensors) for tensors, group in pairs]
            fused = [
                is_one_kernel(group, first + index, of_the_step, target)
                for index, group in enumerate(optimizer.param_groups)
            ]
            stack.enter_context(_on_twins(optimizer, twins, state, own, fused, is_followed=is_followed))
            first += len(optimizer.param_groups)
        yield


def _without_rate(
    optimizer: Optimizer, group: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The tensors that stand for settings of a group but for a rate that stays a number."""
    left_out = ("lr",) if settings.has_number_for_rate(optimizer, group) else ()
    return {key: tensor for key, tensor in tensors.items() if key not in left_out}


@contextmanager
def _on_twins(
    optimizer: Optimizer,
    twins: dict[int, torch.Tensor],
    state: dict[int, dict[str, Any]],
    live: list[dict[str, torch.Tensor]],
    fused: list[bool],
    *,
    is_followed: bool,
) -> Iterator[None]:
    real_state, real_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    attributes = dict(optimizer.__dict__)
    optimizer.state = made = defaultdict(dict)
    for index, group in enumerate(optimizer.param_groups):
        optimizer.state.update({twins[id(p)]: state[id(p)] for p in group["params"] if id(p) in state})
        group["params"] = [twins[id(p)] for p in group["params"]]
        settings.put(group, live[index])
        if "fused" in group:
            group["fused"] = fused[index]
        if "foreach" in group and settings.is_pytorchs(optimizer):
            group["foreach"] = False
        if "capturable" in group and settings.is_pytorchs(optimizer):
            group["capturable"] = True
    given = [dict(group) for group in optimizer.param_groups]
    # What are tensors in the graph take new values as others do.
    numbers = {
        id(parameter): _numbers(values) | {key: one for key, one in values.items() if isinstance(one, torch.Tensor)}
        for parameter, values in made.items()
    }
    tensors = {id(parameter): _tensors(values) for parameter, values in made.items()}
    called: list[str | None] = []
    calls = register_optimizer_step_pre_hook(lambda one, *_: called.append(user_line()) if one is optimizer else None)
    try:
        yield
        _require_settings(optimizer, given, is_followed=is_followed)
        _require_numbers(made, numbers, is_followed=is_followed)
        _require_tensors(made, tensors, is_followed=is_followed)
    except StepError as error:
        error.place = error.place or (called[-1] if called else None)
        raise
    finally:
        calls.remove()
        del optimizer.param_groups[len(real_groups) :]
        for group, real, before in zip(optimizer.param_groups, real_groups, given, strict=True):
            counted = {key: group[key] for key in group if is_followed and _is_counted(group, before, key)}
            group.clear()
            group.update({**real, **counted})
        # What it counts in attributes of its own is seen by who looks for what the step changes.
        changed = {name for name, value in optimizer.__dict__.items() if isinstance(value, int | float | str | tuple)}
        optimizer.__dict__.update({name: value for name, value in attributes.items() if name not in changed})
        optimizer.state = real_state
        for parameter, real in real_state.items() if is_followed else ():
            own = made.get(twins.get(id(parameter), parameter), {})
            real.update({key: own[key] for key in real if key in own and _is_another_count(real, own, key)})


def _is_counted(group: dict[str, Any], before: dict[str, Any], key: str) -> bool:
    """Whether a step has put another number, or what stands for one, in the place of one, or where nothing was what is known behind it."""
    if key not in before:
        return settings.may_be_counted(key, group[key]) and _is_known_later(group[key])
    are_numbers = all(settings.may_be_counted(key, one) for one in (before[key], group[key]))
    # Where a rate is a tensor, who looks after rates leaves what the step sets it to.
    stands = key == "lr" and isinstance(before.get(key), int | float) and isinstance(group[key], int | float)
    return (are_numbers or stands) and group[key] is not before[key]


def _is_another_count(real: dict[str, Any], own: dict[str, Any], key: str) -> bool:
    """Whether a step has put another number, or what stands for one, in the place of a count in the state of a parameter."""
    return settings.is_count(key, real[key]) and isinstance(own[key], int | float) and own[key] is not real[key]


def _require_settings(optimizer: Optimizer, given: list[dict[str, Any]], *, is_followed: bool) -> None:
    """Refuses a step that changes a setting that is no number which is followed, or adds groups."""
    if len(optimizer.param_groups) != len(given):
        raise _changed_once("adds a parameter group", "add it before `parallelize`")
    for number, (group, before) in enumerate(zip(optimizer.param_groups, given, strict=True)):
        for key, value in group.items():
            was = before.get(key)
            if key == "params" or (key == "lr" and not isinstance(value, torch.Tensor)):
                continue  # what the step sets a learning rate to is set behind each step
            if is_followed and _is_counted(group, before, key):
                continue
            if is_followed and isinstance(value, torch.Tensor) and (key not in before or isinstance(was, torch.Tensor)):
                continue  # the same
            is_known = not (isinstance(value, torch.Tensor) or _is_known_later(value))
            if value is not was and not (is_known and value == was):
                which = f"parameter group {number} of {type(optimizer).__name__}"
                raise _changed_once(f"changes `{key}` of {which}", "change it outside of the training step")


def _require_numbers(
    made: Mapping[torch.Tensor, dict[str, Any]], before: dict[int, dict[str, Any]], *, is_followed: bool
) -> None:
    """Refuses a step that keeps numbers in the optimizer's state that are none of the captured state."""
    for parameter, values in made.items():
        was = before.get(id(parameter), {})
        numbers = _numbers(values).items()
        others = (
            (key, number)
            for key, number in numbers
            if not (is_followed and settings.is_count(key, was.get(key))) and not isinstance(was.get(key), torch.Tensor)
        )
        changed = next((key for key, number in others if _is_known_later(number) or number != was.get(key)), None)
        if changed is not None:
            raise _changed_once(f"keeps a number in the optimizer's state (`{changed}`)", "keep it as a tensor")


def _is_known_later(value: Any) -> bool:
    """Whether something stands for a number that is known when the step is over, and must not be compared."""
    return getattr(type(value), "is_known_later", False)


def _require_tensors(
    made: Mapping[torch.Tensor, dict[str, Any]], before: dict[int, dict[str, list[int]]], *, is_followed: bool
) -> None:
    """Refuses a step that keeps tensors in the optimizer's state that are none of the captured state."""
    for parameter, values in made.items():
        was = before.get(id(parameter), {})
        for key, found in _tensors(values).items():
            is_entry = isinstance(values[key], torch.Tensor | int | float) and len(was.get(key, ())) == 1
            # What is in containers and objects is seen by who looks for what the step changes.
            is_seen = is_followed and not isinstance(values[key], torch.Tensor) and len(was.get(key, ())) == len(found)
            if (
                found != was.get(key, []) and not is_entry and not is_seen
            ):  # what takes an entry's place is its new value
                raise _changed_once(
                    f"keeps a tensor in the optimizer's state (`{key}`) that its first step has not made, or in a container",
                    "let the first step make it, as an entry of the parameter's state",
                )


def _tensors(values: dict[str, Any]) -> dict[str, list[int]]:
    """The tensors of each entry, by their ``id``; of objects those in their attributes, too."""
    return {key: [id(one) for one in tensors_in(value, set())] for key, value in values.items()}


def _numbers(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if isinstance(value, int | float | str)}


def _changed_once(what: str, hint: str) -> StepError:
    return StepError(
        f"the step {what}",
        code="U0103",
        cause="its Python code runs once, when it is captured, and so would this",
        hint=hint,
    )
