"""The numbers, strings and gaps (``None``) that a step's code reads from outside: constants of the captured step, as long as they stay."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import types
from collections.abc import Callable, Container, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono._capture.places import is_the_users
from unisono._tree import Structure, classes_of

#: What has numbers that are looked after elsewhere, or that are none of the step's.
NOT_LOOKED_INTO = (
    nn.Module,
    Optimizer,
    torch.Tensor,
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
)
_PLAIN = (int, float, bool, str, type(None))
#: A variable's cell, or a dictionary and a key.
Place = tuple[Any, str]
_MOST_LEVELS = 3


class Outside:
    """What stands in the code of a step, of the functions of the user's that it names, and of modules' ``forward``, and is no tensor."""

    def __init__(self, train_step: Callable[..., Any], model: nn.Module | None) -> None:
        """Takes all of it as it is at this moment, before the step is captured."""
        reads = dict(_of_modules(model))
        function, owner = function_of(train_step)
        if function is not None:
            reads |= dict(_of_function(function, owner, set()))
        self._places = {name: place for name, place in reads.items() if isinstance(value_at(*place), _PLAIN)}
        self._captured = [value_at(*place) for place in self._places.values()]

    def changed_by_itself(self) -> list[str]:
        """The names of what the capture has changed: it does so once, as a warning says."""
        now = [value_at(*place) for place in self._places.values()]
        pairs = zip(self._places, self._captured, now, strict=True)
        return [name for name, was, value in pairs if _differ(was, value)]

    def leave_out(self, names: Container[str], renewed: Container[tuple[int, str]]) -> None:
        """Watches no longer what has these names, or is at places (the ``id`` of a holder, and a key) that each step fills."""
        kept = [
            (name, place, was)
            for (name, place), was in zip(self._places.items(), self._captured, strict=True)
            if name not in names and (id(place[0]), place[1]) not in renewed
        ]
        self._places = {name: place for name, place, _ in kept}
        self._captured = [was for *_, was in kept]

    def changed(self) -> tuple[str, Any, Any] | None:
        """Name, value when the step was captured, and value now of the first that has changed."""
        now = [value_at(holder, key) for holder, key in self._places.values()]
        if now != self._captured or any(type(a) is not type(b) for a, b in zip(now, self._captured, strict=True)):
            for name, was, value in zip(self._places, self._captured, now, strict=True):
                if _differ(was, value):
                    return name, was, value
        return None


def _differ(was: Any, now: Any) -> bool:
    return was is not now and (type(was) is not type(now) or was != now)


def value_at(holder: Any, key: str) -> Any:
    """What is at a place; ``None`` where nothing is."""
    if isinstance(holder, dict):
        return holder.get(key)
    try:
        return holder.cell_contents
    except ValueError:
        return None


def function_of(train_step: Any) -> tuple[types.FunctionType | None, Any]:
    """The function that a step is, and the object that it is a method of."""
    while isinstance(train_step, functools.partial):
        train_step = train_step.func
    if isinstance(train_step, types.FunctionType):
        return train_step, None
    method = train_step if inspect.ismethod(train_step) else getattr(train_step, "__call__", None)  # noqa: B004
    if inspect.ismethod(method) and isinstance(method.__func__, types.FunctionType):
        return method.__func__, method.__self__
    return None, None


def classes_at(train_step: Any, structure: Structure) -> Iterator[type]:
    """Classes of a structure, and those that the step's code names: what it returns may be of a class that no module has."""
    yield from classes_of(structure)
    function, _ = function_of(train_step)
    for _, place in _places(function) if function is not None else ():
        if isinstance(value_at(*place), type):
            yield value_at(*place)


def variables(function: types.FunctionType, owner: Any) -> Iterator[tuple[str, Any]]:
    """What a function's own code names outside of it."""
    if owner is not None:
        yield "self", owner
    for name, place in _places(function):
        yield name, value_at(*place)


def _places(function: types.FunctionType) -> Iterator[tuple[str, Place]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            _ = cell.cell_contents
            yield name, (cell, "")
    for name in _named(code, "LOAD_GLOBAL"):
        if name in function.__globals__:
            yield name, (function.__globals__, name)


@functools.lru_cache(maxsize=1024)  # many modules have one `forward`
def _named(code: types.CodeType, *operations: str) -> list[str]:
    """The names that code has for globals, or for attributes, in the order of their first use."""
    found = (instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in operations)
    return list(dict.fromkeys(found))


def _of_function(function: types.FunctionType, owner: Any, met: set[int]) -> Iterator[tuple[str, Place]]:
    met.add(id(function))
    if owner is not None:
        yield from _of_object("self", owner, function.__code__, _MOST_LEVELS)
    for name, place in _places(function):
        value = value_at(*place)
        yield name, place
        if isinstance(value, types.FunctionType):
            if id(value) not in met and is_the_users(value.__code__.co_filename):
                yield from _of_function(value, None, met)
        else:
            yield from _of_object(name, value, function.__code__, _MOST_LEVELS)


def _of_object(name: str, value: Any, code: types.CodeType, levels: int) -> Iterator[tuple[str, Place]]:
    """The entries of a dictionary, or the attributes of an object, that code names, and theirs."""
    if isinstance(value, dict):
        found = [(f"{name}[{key!r}]", value, key) for key in code.co_consts if isinstance(key, str) and key in value]
    elif not isinstance(value, NOT_LOOKED_INTO) and hasattr(value, "__dict__"):
        own = vars(value)
        found = [(f"{name}.{key}", own, key) for key in _named(code, "LOAD_ATTR", "STORE_ATTR") if key in own]
    else:
        return
    for longer, holder, key in found:
        yield longer, (holder, key)
        if levels > 1 and holder[key] is not value:
            yield from _of_object(longer, holder[key], code, levels - 1)


def _of_modules(model: nn.Module | None) -> Iterator[tuple[str, Place]]:
    for path, module in () if model is None else model.named_modules(prefix="model"):
        code = getattr(type(module).forward, "__code__", None)
        if code is None:
            continue
        for key in _named(code, "LOAD_ATTR"):
            if key in vars(module) and key != "training":
                yield f"{path}.{key}", (vars(module), key)
                yield from _of_object(f"{path}.{key}", vars(module)[key], code, _MOST_LEVELS - 1)
