"""Functions of Python's own that compute with numbers which are known when a step is over, or which are followed."""

from __future__ import annotations

import builtins
import json
import math
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.expressions import Expression
from unisono._capture.followed import FollowedNumber, followed
from unisono._capture.number import Number
from unisono._tree import flatten, plain

#: Of these modules, functions of one number or a few that give one.
_MATH = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "pow", "floor", "ceil", "trunc", "fabs", "fmod", "hypot",
    "copysign", "sin", "cos", "tan", "atan2", "sinh", "cosh", "tanh", "erf", "degrees", "radians",
)  # fmt: skip
_NUMPY = (
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "abs",
    "floor",
    "ceil",
    "round",
    "minimum",
    "maximum",
    "clip",
)
#: The one of them that takes bounds beside a number.
CLIP = "numpy.clip"
_STAND_INS = (Number, FollowedNumber)


def standing_in(
    item: Callable[[Any], Any], text: Callable[[Expression], str]
) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Functions that stand for others: the module, the name there, and the function.

    Args:
        item: gives what stands for the number in a tensor; the tensor itself where its value is known.
        text: gives the text that stands for what an expression gives.
    """
    for module, names in ((math, _MATH), (sys.modules.get("numpy"), _NUMPY)):
        if module is not None:
            yield from ((module, name, _Calling(module, name, item)) for name in names if hasattr(module, name))
    yield json, "dumps", _dumping(json.dumps, text)
    yield json, "dump", lambda value, file, **named: file.write(json.dumps(value, **named))


def extremes() -> dict[str, Callable[..., Any]]:
    """What stands for `min` and `max` where the user's code has them of Python."""
    return {"min": _extreme(min), "max": _extreme(max)}


class _Calling:
    """Stands for a function: it is called as it is where no argument is a stand-in."""

    def __init__(self, module: types.ModuleType, name: str, item: Callable[[Any], Any]) -> None:
        """Takes where it is, and what gives the number in a tensor."""
        self._real, self._name, self._item = getattr(module, name), f"{module.__name__}.{name}", item

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if not named:
            arguments = tuple(self._item(one) if isinstance(one, FakeTensor) else one for one in arguments)
            if any(type(one) in _STAND_INS for one in arguments):
                return _called(self._real, self._name, arguments)
        return self._real(*arguments, **named)


def _called(real: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Any:
    number = next((one for one in arguments if type(one) is Number), None)
    return followed(real, arguments) if number is None else number.called(name, real, arguments)


def _extreme(real: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*arguments: Any, **named: Any) -> Any:
        among = arguments[0] if len(arguments) == 1 and type(arguments[0]) in (list, tuple) else arguments
        if not named and any(type(one) in _STAND_INS for one in among):
            return _called(real, f"{builtins.__name__}.{real.__name__}", tuple(among))
        return real(*arguments, **named)

    return choose


def _dumping(real: Callable[..., str], text: Callable[[Expression], str]) -> Callable[..., str]:
    def dumps(value: Any, **named: Any) -> str:
        leaves, structure = flatten(value)
        if not any(type(leaf) is Number for leaf in leaves):
            return real(value, **named)
        made = [leaf.expression if type(leaf) is Number else ["constant", leaf] for leaf in leaves]
        return text(["json", plain(structure), made, named])

    return dumps
