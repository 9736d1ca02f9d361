"""What stands for the user's own tensors while a step is traced: functions that are called with those run on the traced ones."""

from __future__ import annotations

import contextlib
import copy
import dis
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from unisono._capture.addresses import ASKING, Addresses
from unisono._capture.kept import read_too_early
from unisono._capture.paths import Path, own_attributes
from unisono._capture.places import is_the_users, user_line
from unisono._capture.record import Recorder
from unisono.errors import StepError

#: Where functions of PyTorch's are handed to us.
_ON_THE_WAY = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    os.path.join(os.path.dirname(torch.__file__), "overrides.py"),
)
#: Functions that ask for values and that no operation says.
_OF_VALUES = frozenset(
    (
        torch.Tensor.tolist,
        torch.Tensor.numpy,
        torch.Tensor.__array__,
        torch.Tensor.__repr__,
        torch.Tensor.__format__,
    )
)
_GET_VERSION = torch.Tensor._version.__get__  # type: ignore[attr-defined]
_GET_GRADIENT = torch.Tensor.grad.__get__  # type: ignore[attr-defined]
_EQUAL = torch.Tensor.__eq__
_SET_DATA = torch.Tensor.data.__set__  # type: ignore[attr-defined]


@contextlib.contextmanager
def keys_of_dictionaries(twins: dict[int, torch.Tensor], own: Iterable[torch.Tensor]) -> Iterator[None]:
    """Within, a twin and the tensor of the user's ``own`` that it stands for have one hash: they are one key (``moments[p]``).

    :class:`Twins` answers whether they are equal.
    The step has both in its hands: modules and optimizers give twins, its own variables, and hooks, what they held before.
    """
    stands_for = {id(twins[id(one)]): id(one) for one in own}
    with mock.patch.object(torch.Tensor, "__hash__", lambda tensor: stands_for.get(id(tensor), id(tensor))):
        yield


class Twins(TorchFunctionMode):
    """Lets references to the user's own parameters, made before the capture, stand for their traced twins.

    What a trace before this one has left behind must not be read.
    """

    def __init__(
        self,
        twins: dict[int, torch.Tensor],
        marks: dict[int, tuple[torch.Tensor, Path]],
        stale: set[int],
        addresses: Addresses,
    ) -> None:
        super().__init__()
        self._addresses = addresses
        self._twins, self._marks, self._stale = twins, marks, stale
        #: Those that stand in the place of another object.
        self._others = {key: twin for key, twin in twins.items() if id(twin) != key}
        #: Where the user's code has asked for a gradient that may be there when the step begins.
        self.asked: str | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function on twins."""
        kwargs = kwargs or {}
        if self._marks:
            for leaf in _leaves(args, kwargs):
                if id(leaf) in self._marks:
                    raise read_too_early(self._marks[id(leaf)][1], user_line())
        twins: dict[int, Any] = self._twins
        if (
            func is _EQUAL
            and args[0] is not args[1]
            and twins.get(id(args[0]), args[0]) is twins.get(id(args[1]), args[1])
        ):
            frame = _asking_frame()
            if frame is None or dis.opname[frame.f_code.co_code[frame.f_lasti]] != "COMPARE_OP":
                return True  # who looks for a key asks, for one of a hash that no other tensor has
        if func is torch.Tensor.__deepcopy__:
            return _deep_copied(*(twins.get(id(arg), arg) for arg in args))
        if func == _SET_DATA:
            return self._set_data(*[twins.get(id(arg), arg) for arg in args])
        others = self._others
        if others and any(id(leaf) in others for leaf in _leaves(args, kwargs)):
            args, kwargs = pytree.tree_map(lambda leaf: others.get(id(leaf), leaf), (args, kwargs))
        if func == _GET_GRADIENT:
            gradient = func(*args, **kwargs)
            if id(gradient) in self._stale and self.asked is None and _is_asked_by_the_user():
                self.asked = user_line()
            return gradient
        if func in ASKING and isinstance(args[0], FakeTensor) and _is_asked_by_the_user():
            return self._addresses.answer(func, *args)
        if func == _GET_VERSION and _is_asked_by_the_user():
            raise _version_read()
        if func in _OF_VALUES and not isinstance(args[0], FakeTensor) and Recorder.current is not None:
            return Recorder.current.value_of(func, args, kwargs)
        return func(*args, **kwargs)

    def _set_data(self, tensor: torch.Tensor, values: torch.Tensor) -> None:
        """``tensor.data = values``, which no operation says: the values are copied."""
        others = {twin.untyped_storage()._cdata for twin in self._twins.values() if twin is not tensor}
        if (tensor.shape, tensor.dtype, tensor.device) != (values.shape, values.dtype, values.device):
            raise _data_set("values of another shape or type", "state must keep its shape from step to step")
        if values.untyped_storage()._cdata in others:
            raise _data_set("the memory of other state", "copy the values: `t.data = other.data.clone()`")
        with torch.no_grad():
            # Through `data`, so that autograd does not take it for a change of what it has saved.
            (tensor.data if isinstance(tensor, FakeTensor) else tensor).copy_(values)


@contextlib.contextmanager
def conversions_known(twins: dict[int, torch.Tensor]) -> Iterator[None]:
    """Within, modules of traced parameters are converted (``module.to(..)``) to what they are already, or refused."""
    convert, own = nn.Module._apply, {id(twin) for twin in twins.values()}

    def converted(
        module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        parts = [
            (f"`{name}` of a {type(one).__name__}", part)
            for one in module.modules()
            for name, part in (*one._parameters.items(), *one._buffers.items())
        ]
        traced = [(name, part) for name, part in parts if part is not None and (id(part) in twins or id(part) in own)]
        if not traced and all(type(part) is FakeTensor for _, part in parts if part is not None):
            return _made_in_the_step(module, function, recurse)
        if not traced:
            return convert(module, function, recurse)
        for name, part in traced:
            made = function(part)
            if made is not twins.get(id(part), part):
                raise _converted(name, made)
        return module

    with mock.patch.object(nn.Module, "_apply", converted):
        yield


def _made_in_the_step(module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> nn.Module:
    """Converts a module that the step has made: PyTorch would exchange what is in its tensors, which a recording holds."""
    made: dict[int, torch.Tensor] = {}
    for one in module.modules() if recurse else (module,):
        for parts in (one._parameters, one._buffers):
            for name, part in parts.items():
                if part is None:
                    continue
                if id(part) not in made:
                    with torch.no_grad():
                        new = function(part)
                    is_new = new is not part and isinstance(part, nn.Parameter)
                    made[id(part)] = nn.Parameter(new, part.requires_grad) if is_new else new
                parts[name] = made[id(part)]  # type: ignore[assignment]
    return module


def _converted(what: str, made: torch.Tensor) -> StepError:
    return StepError(
        f"the step converts {what} to {made.dtype} on {made.device.type}",
        code="U0102",
        place=user_line(),
        cause="state must keep its type from step to step",
        hint="convert the model before it is parallelized, or what the module is given and gives",
    )


def _version_read() -> StepError:
    return StepError(
        "the step asks how often a tensor has been written (`_version`)",
        code="U0119",
        place=user_line(),
        cause="its Python code runs once, while the step is captured; the number is another one at each call",
        hint="ask outside of the step",
    )


def _asking_frame() -> types.FrameType | None:
    """The code that asks a tensor for something."""
    frame: types.FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_ON_THE_WAY):
        frame = frame.f_back
    return frame


def _is_asked_by_the_user() -> bool:
    """Whether code of the user's asks a tensor for something, and none of PyTorch's for it."""
    frame = _asking_frame()
    return frame is not None and is_the_users(frame.f_code.co_filename)


def _deep_copied(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """A deep copy of a tensor, without what we know of it."""
    if id(tensor) in memo:
        return memo[id(tensor)]
    if tensor.grad_fn is not None:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
        )
    with torch.no_grad():
        copied = tensor.clone()
    made = nn.Parameter(copied, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copied
    memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
    for name, value in own_attributes(tensor).items():
        setattr(
            made, name, _deep_copied(value, memo) if isinstance(value, torch.Tensor) else copy.deepcopy(value, memo)
        )
    if tensor.grad is not None:
        made.grad = _deep_copied(tensor.grad, memo)
    return made


def _leaves(args: Any, kwargs: Any) -> Iterator[Any]:
    """The leaves of arguments, most of which are no containers."""
    for one in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(one, torch.Tensor | int | float | str | None):
            yield one
        else:
            yield from pytree.tree_iter(one)


def _data_set(what: str, hint: str) -> StepError:
    return StepError(f"the step gives a tensor {what} (`t.data = ..`)", code="U0102", place=user_line(), hint=hint)
