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
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from unisono import _host_draws
from unisono._capture.generators import Generators
from unisono._capture.given import Given, plainly
from unisono._capture.outside import names_loaded
from unisono._capture.paths import Missing, names_of
from unisono._capture.places import user_line
from unisono._capture.record import Recorder
from unisono._capture.scalars import settled
from unisono.errors import StepError

#: Functions of PyTorch's that make a tensor of an array.
_MAKING = ("tensor", "as_tensor", "asarray", "from_numpy")
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


class DrawnArray:
    """Stands for an array that is drawn at each step.

    Attributes:
        tensor: the same in the graph.
        shape: its shape.
        ndim: how many dimensions it has.
        size: how many entries it has.
        dtype: NumPy's type of these.
    """

    def __init__(self, tensor: torch.Tensor, like: Any, name: str) -> None:
        """Takes the tensor in the graph, an array like it, and the name of the function that gives it."""
        self.tensor, self._name = tensor, name
        self.shape, self.ndim, self.size, self.dtype = like.shape, like.ndim, like.size, like.dtype

    def __len__(self) -> int:
        return len(self.tensor)

    def _refused(self, *_arguments: Any, **_named: Any) -> Any:
        raise StepError(
            f"the step computes with the array that `{self._name}` draws",
            code="U0119",
            place=user_line(),
            cause="the step's Python code runs once, while the step is captured, and the array is another one at each call",
            hint="make a tensor of it first (`torch.tensor(array)`), and compute with that; or draw with torch (`torch.rand`)",
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refused()

    __bool__ = __iter__ = __getitem__ = __setitem__ = __array__ = __float__ = __int__ = __index__ = __eq__ = _refused  # type: ignore[assignment]
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __invert__ = _refused
    __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __xor__ = __neg__ = __abs__ = __contains__ = _refused
    __hash__ = None  # type: ignore[assignment]


@contextlib.contextmanager
def standing_in(
    functions: Iterable[Any], model: nn.Module | None, generators: Generators, given: Given
) -> Iterator[None]:
    """Lets functions that draw be operations, where a module of the model or of the step's functions has them under a name.

    Args:
        functions: those that the step and the model can reach.
        model: the model.
        generators: whose states these draw from.
        given: gives values of the tensors of the call, as far as they are there.
    """
    with contextlib.ExitStack() as stack:
        found = False
        for names in _variables(functions, model):
            for name, value in [*names.items()]:
                source = source_of(value)
                if source is not None and _host_draws.is_known(source):
                    stack.enter_context(mock.patch.dict(names, {name: _drawing(value, source, generators, given)}))
                    found = True
        for name in _MAKING if found else ():
            stack.enter_context(mock.patch.object(torch, name, _taking(getattr(torch, name))))
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


def _drawing(real: Callable[..., Any], source: str, generators: Generators, given: Given) -> Callable[..., Any]:
    """What is to be in the place of a function that draws."""

    def draw(*args: Any, **kwargs: Any) -> Any:
        if not torch._C._len_torch_dispatch_stack():
            return real(*args, **kwargs)  # it is computed, and not traced
        args, kwargs = tuple(map(settled, args)), {key: settled(one) for key, one in kwargs.items()}
        made = _tried(real, source, args, kwargs, given)
        call = None
        if made is not None:
            function = _host_draws.named(real, real.__module__)
            call = _host_draws.described(source, function, args, kwargs, made)
        if call is None:
            return real(*args, **kwargs)
        return DrawnArray(generators.draw_on_host(source, *call), made, real.__name__)

    return draw


def _tried(real: Callable[..., Any], source: str, args: Any, kwargs: Mapping[str, Any], given: Given) -> Any:
    """An array that a function gives, as one at each step will be; ``None`` where it gives anything else, or changes a tensor."""
    tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    examples = {id(one): value for one in tensors if (value := _example(one, given)) is not None}
    if len(examples) < len({*map(id, tensors)}):
        return None

    def real_one(value: Any) -> Any:
        return examples.get(id(value), value)

    with plainly(), _host_draws.left_alone(source), contextlib.suppress(Exception):
        before = {key: one.clone() for key, one in examples.items()}
        made = real(*map(real_one, args), **{key: real_one(one) for key, one in kwargs.items()})
        is_array = type(made) is sys.modules["numpy"].ndarray and made.dtype.kind in "biuf"
        if is_array and all(torch.equal(before[key], one) for key, one in examples.items()):
            return made
    return None


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


def _taking(real: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes tensors, which takes arrays that are drawn too."""

    def make(data: Any, *more: Any, **named: Any) -> Any:
        if type(data) is not DrawnArray:
            return real(data, *more, **named)
        dtype, device = named.pop("dtype", None), named.pop("device", None)
        if more or {key for key, one in named.items() if one not in (None, False)}:
            return data._refused()
        return data.tensor.clone().to(device=device, dtype=dtype)

    return make
