"""The state of an optimizer before its first step, as that step would make it, and whether the first step is like those behind it."""

from __future__ import annotations

import copy
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from unisono._capture import settings
from unisono.errors import StepError, UnisonoError, UnsupportedError

#: Settings that PyTorch accepts for parameters on ``meta``, and refuses when a step is taken.
NOT_ON_META = ("fused", "capturable")
#: The entry of a group that is not 0 as long as the optimizer has taken no step, where the first is another one than those behind it.
FIRST = "unisono_first"
#: Parameters of one group and one number of dimensions on which first steps are compared, the smallest ones.
_MOST_COMPARED = 2
_CONTAINERS = (list, dict, set, deque)
#: What a step leaves behind is compared after so many.
_STEPS = 2


class _WithoutMutation(TorchDispatchMode):
    """Runs operations that make tensors and leaves out those that change parameters, gradients and state.

    What is not in the state yet may be changed: it is being made. Scalars (step counters) are changed, because code may divide by what they
    become, and are put back by :meth:`restore`.

    Attributes:
        held: the memory of what is in the state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.held = set[int]()
        self._made = set[int]()
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def hold(self, value: Any) -> None:
        """Takes something for state from here on."""
        self.held |= {_memory(one) for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.inplace_view in func.tags:
            return func(*args, **kwargs)
        if not func._schema.is_mutable:
            # What the first step would fill (fused SGD's momentum) starts from zeros, not from whatever memory holds.
            made = func(*args, **kwargs)
            made = made.zero_() if "empty" in func._schema.name else made
            given = {_memory(one) for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
            self._made |= {_memory(one) for one in pytree.tree_leaves(made) if isinstance(one, torch.Tensor)} - given
            return made
        changed = args[0] if isinstance(args[0], list | tuple) else [args[0]]
        if all(tensor.dim() == 0 for tensor in changed):
            self._before += [(tensor, tensor.clone()) for tensor in changed]
            return func(*args, **kwargs)
        if all(_memory(tensor) in self._made - self.held for tensor in changed):
            return func(*args, **kwargs)
        return kwargs.get("out", args[0]) if func._schema.returns else None

    @torch.no_grad()
    def restore(self) -> None:
        """Puts the scalars, parameters among them, back to what they were."""
        for tensor, before in reversed(self._before):
            tensor.copy_(before)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


class _FirstValues(dict[str, Any]):
    """A dictionary that remembers the first value of each key that is not ``None``, and tells of it."""

    def __init__(self, hold: Callable[[Any], None]) -> None:
        super().__init__()
        self.first: dict[str, Any] = {}
        self._hold = hold

    def __setitem__(self, key: str, value: Any) -> None:
        if self.first.setdefault(key, value) is None:
            self.first[key] = value
        self._hold(value)
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


def begin(optimizer: Optimizer, missing: Sequence[torch.nn.Parameter]) -> None:
    """Makes the optimizer create the state that these parameters lack, as its first step would, without taking that step.

    The step is taken on stand-ins with zero gradients while every operation that changes a tensor is left out.

    Where a first step from that state is not the one that it takes from none, its groups say so (:data:`FIRST`).
    """
    groups = [dict(group) for group in optimizer.param_groups]
    # Of the same memory, and with a count of changes of their own: an operation that is left out counts as one.
    stand_ins = {id(p): torch.nn.Parameter(p.data) for p in missing}
    made = _made_by_first_step(optimizer, stand_ins)
    require_of_parameters(optimizer, made)
    optimizer.state.update({parameter: {**values} for parameter, values in made.items()})
    if not _begins_alike(optimizer, missing, groups):
        for group in optimizer.param_groups:
            group[FIRST] = 1


def require_alike(optimizer: Optimizer) -> None:
    """Refuses an optimizer whose first step, which is to come, is another one than those behind it."""
    if any(group.get(FIRST) for group in optimizer.param_groups):
        optimizer.state.clear()  # which was made for it
        for group in optimizer.param_groups:
            group.pop(FIRST, None)
        raise UnsupportedError(
            f"the first step of {type(optimizer).__name__} is not like the others",
            code="U0110",
            cause="what it makes its state from, the first gradient for instance, is not there before, and one graph is for all steps",
            hint="take one ordinary step before, load a state, or use `unisono.parallelize`, which captures both",
        )


@contextmanager
def first_steps(optimizers: Iterable[Optimizer]) -> Iterator[None]:
    """Lets optimizers whose first step is another one take it from no state, as long as they have taken none."""
    hidden = dict[int, list[dict[str, Any]]]()
    known = {id(one) for one in optimizers}

    def begins(optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        for group in optimizer.param_groups if id(optimizer) in known else ():
            if group.get(FIRST) is not None and group[FIRST]:
                for parameter in group["params"]:
                    optimizer.state.pop(parameter, None)
                hidden.setdefault(id(optimizer), []).append(group)

    def ends(optimizer: Optimizer, _arguments: Any, _settings: Any) -> None:
        for group in hidden.pop(id(optimizer), ()):
            group[FIRST] = 0

    handles = register_optimizer_step_pre_hook(begins), register_optimizer_step_post_hook(ends)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def require_of_parameters(optimizer: Optimizer, state: Mapping[Any, Any]) -> None:
    """Refuses a state that is not of parameters alone."""
    for key, values in state.items():
        if not (isinstance(key, torch.Tensor) and isinstance(values, dict)):
            raise UnsupportedError(
                f"{type(optimizer).__name__} keeps `{key}` in its state, which is of no parameter",
                code="U0111",
                cause="the state of an optimizer is captured as that of its parameters",
                hint="use an optimizer that keeps such in its groups, or in attributes of its own",
            )


def _made_by_first_step(optimizer: Optimizer, stand_ins: dict[int, torch.nn.Parameter]) -> dict[Any, Any]:
    """The state that a first step makes, by parameter, or by what else it keeps it; counts in groups begin to count."""
    of = {id(stand_in): key for key, stand_in in stand_ins.items()}
    parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    made, behind = _first_step(optimizer, stand_ins)
    for number, (group, after) in enumerate(zip(optimizer.param_groups, behind, strict=True)):
        added = {key: value for key, value in after.items() if key not in group}
        group.update(added)
        for key in added:
            if settings.may_be_counted(key, added[key]):
                _begin_count(optimizer, stand_ins, number, key)
    return {
        parameters[of[id(key)]] if id(key) in of else key: values.first if type(values) is _FirstValues else values
        for key, values in made.items()
    }


def _first_step(
    optimizer: Optimizer, stand_ins: dict[int, torch.nn.Parameter]
) -> tuple[dict[Any, Any], list[dict[str, Any]]]:
    """The state, and the groups, that a first step makes of none and of the groups as they are; all is put back."""
    for stand_in in stand_ins.values():
        stand_in.grad = torch.zeros_like(stand_in)
    mutations = _WithoutMutation()
    with _on_stand_ins(optimizer, stand_ins, defaultdict(lambda: _FirstValues(mutations.hold)), without_decay=True):
        try:
            with mutations:
                _take_step(optimizer)
        finally:
            mutations.restore()
        return optimizer.state, [dict(group) for group in optimizer.param_groups]


def _begin_count(optimizer: Optimizer, stand_ins: dict[int, torch.nn.Parameter], number: int, key: str) -> None:
    """Sets a number that the first step has made in a group to what it counts from, where it is a count.

    What a step makes of a number that is there says how it counts. A number that the first step would not make of the one found so is taken
    away, and the step that makes it is refused.
    """
    group = optimizer.param_groups[number]
    made = group[key]
    with suppress(StepError, TypeError, ArithmeticError):
        again = _first_step(optimizer, stand_ins)[1][number].get(key)
        if again == made:
            return
        group[key] = made - (again - made)
        if _first_step(optimizer, stand_ins)[1][number].get(key) == made:
            return
    del group[key]


@contextmanager
def _on_stand_ins(
    optimizer: Optimizer,
    stand_ins: dict[int, torch.nn.Parameter],
    state: defaultdict[Any, Any],
    *,
    without_decay: bool = False,
) -> Iterator[None]:
    """Gives the optimizer a state and stand-ins in the place of parameters, by their ``id``; others it does not see.

    Without decay it sees those that are not trained, too, which it may count or compute with: nothing is changed then. What it changes in
    its groups and in plain attributes and containers of its own is put back. Without decay gradients of zeros, and a momentum that starts
    from them, stay zero.
    """
    real_state, real_groups = optimizer.state, [dict(group) for group in optimizer.param_groups]
    put_back = _attributes(optimizer)
    try:
        optimizer.state = state
    except AttributeError as error:  # a property
        raise UnsupportedError(
            f"the state of {type(optimizer).__name__} is another optimizer's",
            code="U0111",
            cause=f"it is captured with other tensors in its place: {error}",
            hint="pass the optimizer that it wraps, and call that",
        ) from None
    for group in optimizer.param_groups:
        own: list[torch.nn.Parameter] = group["params"]
        seen = [p for p in own if id(p) in stand_ins or (without_decay and not p.requires_grad)]
        group["params"] = [stand_ins.get(id(p), p) for p in seen]
        if without_decay and "weight_decay" in group:
            group["weight_decay"] = 0.0
        if any(p.is_meta for p in group["params"]):
            # PyTorch refuses both there, and the state is the same but for where its count lies.
            group.update({key: False for key in NOT_ON_META if group.get(key)})
    try:
        yield
    finally:
        optimizer.state = real_state
        del optimizer.param_groups[len(real_groups) :]
        for group, real in zip(optimizer.param_groups, real_groups, strict=True):
            group.clear()
            group.update(real)
        put_back()


def _attributes(optimizer: Optimizer) -> Callable[[], None]:
    """What puts numbers, texts, switches, and what is in containers, of an optimizer's own attributes back to what they are now."""
    kinds = (bool, int, float, str, tuple, type(None))
    plain = {name: value for name, value in vars(optimizer).items() if isinstance(value, kinds)}
    own = {name: value for name, value in vars(optimizer).items() if name not in ("param_groups", "state")}
    held = [(value, copy.copy(value)) for value in own.values() if type(value) in _CONTAINERS]

    def put_back() -> None:
        for name in [name for name, value in vars(optimizer).items() if isinstance(value, kinds) and name not in own]:
            del optimizer.__dict__[name]
        optimizer.__dict__.update(plain)
        for container, before in held:
            container.clear()
            (container.extend if isinstance(container, list | deque) else container.update)(before)

    return put_back


def _take_step(optimizer: Optimizer) -> None:
    try:
        with torch.no_grad():
            type(optimizer).step(optimizer)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise StepError(
            f"{type(optimizer).__name__} cannot take a step: {reason}",
            code="U0111",
            cause="its first step, which creates its state, was tried with gradients of zeros and without arguments",
            hint="if PyTorch alone refuses it too, change the optimizer's settings; an optimizer that needs a closure is not supported",
        ) from error


# Whether the first step is like the others.


def _begins_alike(
    optimizer: Optimizer, missing: Sequence[torch.nn.Parameter], groups: Sequence[dict[str, Any]]
) -> bool:
    """Whether the first step is the same from the state that was made as from none, which ``groups`` are for.

    Both are taken, with random gradients, on copies of a few small parameters of each kind. Of PyTorch's optimizers it is known.
    """
    if type(optimizer).__module__.startswith("torch.optim."):
        return not any(group.get("momentum") and group.get("dampening") for group in optimizer.param_groups)
    some = [p for p in _smallest(optimizer, missing) if not p.is_meta]
    if not some:
        return True
    with torch.random.fork_rng(devices=[]):
        try:
            expected = _behind_steps(optimizer, some, groups, None)
        except StepError:
            return True  # as PyTorch alone
        with suppress(StepError):
            found = _behind_steps(optimizer, some, groups, _made_by_first_step)
            return all(map(_are_close, found, expected))
    return False


def changed_numbers(optimizers: Sequence[Optimizer]) -> set[tuple[int, str]]:
    """The numbers in groups and attributes that a step of optimizers changes which are not PyTorch's own.

    Each by the number of the group among all and the key; of an attribute the first group, and its name behind a dot. One step is taken,
    with random gradients, on copies of a few small parameters and of their state.
    """
    first, found = 0, set[tuple[int, str]]()
    for optimizer in optimizers:
        some = (
            []
            if settings.is_pytorchs(optimizer)
            else _smallest(optimizer, [p for g in optimizer.param_groups for p in g["params"]])
        )
        if some and not any(p.is_meta or not p.requires_grad for p in some):
            with suppress(UnisonoError), torch.random.fork_rng(devices=[]):  # a capture says it, with the line
                found |= {(first + at, key) for at, key in _changed_by_step(optimizer, some)}
        first += len(optimizer.param_groups)
    return found


def _changed_by_step(optimizer: Optimizer, some: Sequence[torch.nn.Parameter]) -> Iterator[tuple[int, str]]:
    copies = {id(p): torch.nn.Parameter(p.detach().clone()) for p in some}
    state = defaultdict[Any, Any](dict)
    state.update({copies[id(p)]: copy.deepcopy(optimizer.state[p]) for p in some if optimizer.state.get(p)})
    before = [dict(group) for group in optimizer.param_groups]
    attributes = _numbers_of(optimizer)
    with _on_stand_ins(optimizer, copies, state):
        _give_gradients(copies.values(), torch.Generator().manual_seed(1))
        _take_step(optimizer)
        after = [dict(group) for group in optimizer.param_groups]
        yield from ((0, f".{key}") for key, one in _numbers_of(optimizer).items() if attributes.get(key, one) != one)
    for at, (was, now) in enumerate(zip(before, after, strict=False)):
        yield from ((at, key) for key, one in now.items() if settings.may_be_counted(key, one) and was.get(key) != one)


def _numbers_of(optimizer: Optimizer) -> dict[str, Any]:
    return {key: one for key, one in vars(optimizer).items() if settings.may_be_counted(key, one)}


def _give_gradients(parameters: Iterable[torch.nn.Parameter], generator: torch.Generator) -> None:
    for one in parameters:
        one.grad = torch.randn(one.shape, generator=generator).to(one.device, one.dtype)


def _smallest(optimizer: Optimizer, missing: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Of each group the smallest parameters of each number of dimensions."""
    wanted, found = {id(p) for p in missing}, list[torch.nn.Parameter]()
    for group in optimizer.param_groups:
        own = sorted((p for p in group["params"] if id(p) in wanted), key=lambda p: p.numel())
        for count in dict.fromkeys(p.dim() for p in own):
            found += [p for p in own if p.dim() == count][:_MOST_COMPARED]
    return found


def _behind_steps(
    optimizer: Optimizer,
    some: Sequence[torch.nn.Parameter],
    groups: Sequence[dict[str, Any]],
    begin_by: Callable[[Optimizer, dict[int, torch.nn.Parameter]], dict[Any, Any]] | None,
) -> list[torch.Tensor]:
    """Copies of parameters behind a few steps from no state, or from one that is begun with."""
    torch.manual_seed(0)
    now = [dict(group) for group in optimizer.param_groups]
    copies = {id(p): torch.nn.Parameter(p.detach().clone()) for p in some}
    for group, before in zip(optimizer.param_groups, groups, strict=True):
        group.clear()
        group.update(before)
    try:
        state = defaultdict(dict)
        if begin_by is not None:
            begun = begin_by(optimizer, {key: torch.nn.Parameter(one.data) for key, one in copies.items()})
            state.update({copies.get(id(key), key): {**values} for key, values in begun.items()})
        torch.manual_seed(0)
        with _on_stand_ins(optimizer, copies, state):
            generator = torch.Generator().manual_seed(1)
            for _ in range(_STEPS):
                _give_gradients(copies.values(), generator)
                _take_step(optimizer)
    finally:
        for group, real in zip(optimizer.param_groups, now, strict=True):
            group.clear()
            group.update(real)
    return [one.detach() for one in copies.values()]


def _are_close(one: torch.Tensor, other: torch.Tensor) -> bool:
    scale = float(other.abs().max()) if other.numel() else 0.0
    tolerance = 1e-4 if other.dtype in (torch.float16, torch.bfloat16) else 1e-6
    return torch.allclose(one, other, rtol=1e-4, atol=tolerance * max(scale, 1e-3), equal_nan=True)
