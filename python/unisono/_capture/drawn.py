"""What functions of NumPy and Python draw in a step: a call of one is an operation, and its generator's state an input of the graph.

Models make masks so (SpecAugment): a function of the module draws how much is masked, and where, and gives an array. Code that chooses by
what it draws has no operations to record; it runs on the host at each step.
"""

from __future__ import annotations

import builtins
import contextlib
import inspect
import math
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from unisono import _host_draws
from unisono._capture import direct
from unisono._capture.arrays import MAKING, DrawnArray, taking
from unisono._capture.expressions import Expression
from unisono._capture.followed import FollowedNumber
from unisono._capture.generators import Generators
from unisono._capture.given import Given, plainly
from unisono._capture.number import Number
from unisono._capture.outside import names_loaded
from unisono._capture.paths import Missing, names_of
from unisono._capture.record import Recorder
from unisono._capture.scalars import settled

#: What makes of a function more than one of its arguments and of a generator: other generators, their seeds, files, settings.
_OTHERWISE = frozenset(
    (
        "seed", "set_state", "setstate", "default_rng", "RandomState", "Random", "SystemRandom", "Generator", "SeedSequence",
        "save", "savez", "savetxt", "load", "loadtxt", "fromfile", "tofile", "memmap", "seterr", "set_printoptions",
        "open", "input", "print", "exec", "eval", "compile", "globals", "locals", "vars", "setattr", "delattr", "__import__", "id", "hash",
        "shuffle",
    )
)  # fmt: skip
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
_PLAIN = (bool, int, float, str, type(None))


class Numbers(Protocol):
    """Who gives what stands for numbers."""

    def drawn(self, tensor: torch.Tensor, name: str) -> Number:
        """What stands for the number in a tensor, which a function draws."""
        ...

    def scalar(self, expression: Expression) -> torch.Tensor | None:
        """The tensor without dimensions that stands for a number; ``None`` where it can only be taken for granted."""
        ...


@contextlib.contextmanager
def standing_in(
    functions: Iterable[Any], model: nn.Module | None, generators: Generators, given: Given, numbers: Numbers
) -> Iterator[None]:
    """Lets functions that draw be operations, where a module of the model or of the step's functions has them under a name.

    Args:
        functions: those that the step and the model can reach.
        model: the model.
        generators: whose states these draw from.
        given: gives values of the tensors of the call, as far as they are there.
        numbers: gives what stands for numbers that are drawn.
    """
    functions, calls = [*functions], Calls(generators, given, numbers)
    with contextlib.ExitStack() as stack:
        for names in _variables(functions, model):
            for name, value in [*names.items()]:
                source = source_of(value)
                if source is not None and _host_draws.is_known(source):
                    stack.enter_context(mock.patch.dict(names, {name: _drawing(value, source, calls)}))
        stack.enter_context(direct.standing_in(functions, generators, calls))
        for name in MAKING:
            stack.enter_context(mock.patch.object(torch, name, taking(getattr(torch, name))))
        yield


def _variables(functions: Iterable[Any], model: nn.Module | None) -> list[dict[str, Any]]:
    """The variables of the modules in which the step's code, and that of the model's classes, finds functions."""
    kinds = {kind for one in (model.modules() if model is not None else ()) for kind in type(one).__mro__}
    modules = {kind.__module__ for kind in kinds if not kind.__module__.startswith(("torch.", "builtins"))}
    found = [vars(sys.modules[name]) for name in modules if name in sys.modules]
    found += [one.__globals__ for one in functions if isinstance(one, types.FunctionType)]
    return [*{id(one): one for one in found}.values()]


def source_of(function: Any) -> str | None:
    """The generator that a function draws from which is one of its arguments and of that generator alone; else ``None``."""
    if not isinstance(function, types.FunctionType) or "random" not in names_of(function.__code__):
        return None
    is_named = getattr(sys.modules.get(function.__module__), function.__name__, None) is function
    found = _sources(function, set()) if is_named else None
    return found.pop() if found is not None and len(found) == 1 else None


def _sources(function: types.FunctionType, met: set[int]) -> set[str] | None:
    """The generators that a function draws from; ``None`` where it may be one of more than its arguments and these."""
    code = function.__code__
    if id(function) in met:
        return set()
    met.add(id(function))
    if function.__closure__ or code.co_flags & (
        inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    ):
        return None
    if not _OTHERWISE.isdisjoint(names_of(code)) or names_loaded(code, "STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"):
        return None
    found = set[str]()
    numpy = sys.modules.get("numpy")
    for name in names_loaded(code, "LOAD_GLOBAL", "LOAD_NAME"):
        value = function.__globals__.get(name, getattr(builtins, name, Missing))
        if value is random:
            found.add("random")
        elif value is numpy and numpy is not None:
            found |= {"numpy.random"} if "random" in names_loaded(code, *_ATTRIBUTES) else set()
        elif isinstance(value, types.FunctionType):
            within = _sources(value, met)
            if within is None:
                return None
            found |= within
        elif value is not math and not isinstance(value, _PLAIN) and getattr(builtins, name, Missing) is not value:
            return None
    return found


class Calls:
    """Makes operations of calls that draw."""

    def __init__(self, generators: Generators, given: Given, numbers: Numbers) -> None:
        """Takes the states of generators, the values of the call, and what gives numbers."""
        self._generators, self._given, self._numbers = generators, given, numbers

    def call(self, real: Callable[..., Any], name: str, source: str, args: Any, kwargs: Any) -> tuple[bool, Any]:
        """Whether a call can be an operation, and what stands for what that gives: a number, or an array of one shape."""
        args, kwargs = tuple(map(self._argument, args)), {key: self._argument(one) for key, one in kwargs.items()}
        made = _tried(real, source, args, kwargs, self._given)
        call = None
        if made is not None:
            call = _host_draws.described(source, _name_of(real, source), args, kwargs, made)
        if call is None:
            return False, None
        tensor = self._generators.draw_on_host(source, *call)
        if not hasattr(made, "shape"):
            return True, self._numbers.drawn(tensor, name)
        return True, DrawnArray(tensor, made, name)

    def _argument(self, value: Any) -> Any:
        """An argument with tensors in the place of numbers that are known when the step is over."""
        if type(value) is FollowedNumber:
            return value.mixed()
        if type(value) is not Number:
            return settled(value)
        found = self._numbers.scalar(value.expression)
        return settled(value) if found is None else _host_draws.NumberIn(found.to(_type_of(value.kind)))


def _type_of(kind: type) -> torch.dtype:
    return torch.int64 if kind is int else torch.float64


def _name_of(real: Callable[..., Any], source: str) -> str:
    """The name by which every rank finds a function: of a module, or of a generator's."""
    return _host_draws.named(real, real.__module__ if isinstance(real, types.FunctionType) else source)


def _drawing(real: Callable[..., Any], source: str, calls: Calls) -> Callable[..., Any]:
    """What is to be in the place of a function that draws."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if not torch._C._len_torch_dispatch_stack():
            return real(*args, **kwargs)  # it is computed, and not traced
        is_known, made = calls.call(real, real.__name__, source, args, kwargs)
        return made if is_known else real(*args, **kwargs)

    return draw


def _tried(real: Callable[..., Any], source: str, args: Any, kwargs: Mapping[str, Any], given: Given) -> Any:
    """A number or an array that a function gives, as at each step; ``None`` where it gives anything else, or changes a tensor."""
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    examples = {id(one): value for one in tensors if (value := _example(one, given)) is not None}
    if len(examples) < len({*map(id, tensors)}):
        return None

    def real_one(value: Any) -> Any:
        if isinstance(value, _host_draws.NumberIn):
            return 1 if value.tensor.dtype == torch.int64 else 1.0
        return examples.get(id(value), value)

    with plainly(), _host_draws.left_alone(source), contextlib.suppress(Exception):
        before = {key: one.clone() for key, one in examples.items()}
        made = real(*map(real_one, args), **{key: real_one(one) for key, one in kwargs.items()})
        if all(torch.equal(before[key], one) for key, one in examples.items()):
            return _number_or_array(made)
    return None


def _number_or_array(made: Any) -> Any:
    """What can be a tensor; numbers as Python's own."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(made, numpy.generic):
        made = made.item()
    if type(made) is float or (type(made) is int and abs(made) < 1 << 63):
        return made
    is_array = numpy is not None and type(made) is numpy.ndarray
    return made if is_array and made.dtype.kind in "biuf" else None  # pyright: ignore[reportAttributeAccessIssue]


def _example(tensor: torch.Tensor, given: Given) -> torch.Tensor | None:
    """Values for a tensor of the trace: those that it has for this call, as far as these are there, else ones."""
    recorder = Recorder.current
    value = given.example(recorder.node_of(tensor)) if recorder is not None else None
    if value is not None:
        return value
    if not isinstance(tensor, FakeTensor) or tensor.is_floating_point() or tensor.is_complex():
        return None
    with plainly():
        return torch.ones(tensor.shape, dtype=tensor.dtype)
