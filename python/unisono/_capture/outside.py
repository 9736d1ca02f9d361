"""The numbers that a step's code reads from outside: constants of the captured step, whatever becomes of them later."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from unisono._capture.places import is_the_users

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
_Read = Callable[[], Any]


class Outside:
    """The numbers that stand in the code of a step, of the functions of the user's that it names, and of modules' ``forward``."""

    def __init__(self, train_step: Callable[..., Any], model: nn.Module | None) -> None:
        """Takes them as they are at this moment."""
        reads = dict(_of_modules(model))
        function, owner = function_of(train_step)
        if function is not None:
            reads |= dict(_of_function(function, owner, set()))
        self._reads = {name: read for name, read in reads.items() if type(read()) in (int, float, bool)}
        self._captured = {name: read() for name, read in self._reads.items()}
        self._seen = list(self._captured.values())
        self._told: set[str] = set()

    def changed(self) -> list[tuple[str, Any, Any]]:
        """Name, value when the step was captured, and value now of what has changed; each is told once."""
        with contextlib.suppress(ValueError):  # a variable that is gone
            now = [read() for read in self._reads.values()]
            if now != self._seen:
                self._seen = now
                pairs = zip(self._captured.items(), now, strict=True)
                found = [(name, was, value) for (name, was), value in pairs if value != was and name not in self._told]
                self._told.update(name for name, *_ in found)
                return found
        return []


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


def variables(function: types.FunctionType, owner: Any) -> Iterator[tuple[str, _Read]]:
    """What a function's own code names outside of it, and how to read it."""
    if owner is not None:
        yield "self", lambda: owner
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # an empty cell
            _ = cell.cell_contents
            yield name, functools.partial(getattr, cell, "cell_contents")
    for name in _named(code, "LOAD_GLOBAL"):
        if name in function.__globals__:
            yield name, functools.partial(function.__globals__.get, name)


@functools.lru_cache(maxsize=1024)  # many modules have one `forward`
def _named(code: types.CodeType, *operations: str) -> list[str]:
    """The names that code has for globals, or for attributes, in the order of their first use."""
    found = (instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in operations)
    return list(dict.fromkeys(found))


def _of_function(function: types.FunctionType, owner: Any, met: set[int]) -> Iterator[tuple[str, _Read]]:
    met.add(id(function))
    code = function.__code__
    for name, read in variables(function, owner):
        value = read()
        yield name, read
        if isinstance(value, types.FunctionType):
            if id(value) not in met and is_the_users(value.__code__.co_filename):
                yield from _of_function(value, None, met)
        elif isinstance(value, dict):
            for key in code.co_consts:
                if isinstance(key, str) and key in value:
                    yield f"{name}[{key!r}]", functools.partial(value.get, key)
        elif not isinstance(value, NOT_LOOKED_INTO) and hasattr(value, "__dict__"):
            for key in _named(code, "LOAD_ATTR", "STORE_ATTR"):
                if key in vars(value):
                    yield f"{name}.{key}", functools.partial(vars(value).get, key)


def _of_modules(model: nn.Module | None) -> Iterator[tuple[str, _Read]]:
    for path, module in () if model is None else model.named_modules(prefix="model"):
        code = getattr(type(module).forward, "__code__", None)
        for key in _named(code, "LOAD_ATTR") if code is not None else ():
            if key in vars(module) and key != "training":
                yield f"{path}.{key}", functools.partial(vars(module).get, key)
