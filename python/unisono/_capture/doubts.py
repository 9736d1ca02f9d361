"""What a step reaches that may be another at each call without anything that is followed being changed: clocks, files, queues, iterators,
what is drawn, functions of other libraries that remember. A step that reaches any is traced once more, to see whether it is the same.
"""

from __future__ import annotations

import enum
import logging
import os
import re
import sys
import types
from typing import Any

import torch
from torch import nn

from unisono._capture.compared import is_array
from unisono._capture.outside import names_loaded
from unisono._capture.paths import Missing, Walk, is_looked_into, is_written_by_the_user, names_of
from unisono._capture.places import is_the_users

#: Packages whose functions give the same for the same tensors and numbers, but for generators that are watched.
_PACKAGES = frozenset(
    (
        "torch",
        "torchvision",
        "torchaudio",
        "transformers",
        "diffusers",
        "peft",
        "accelerate",
        "einops",
        "numpy",
        "unisono",
    )
)
#: The same of modules of the standard library; of `random` the generator is watched.
_MODULES = frozenset(
    (
        "__future__", "abc", "ast", "base64", "bisect", "builtins", "cmath", "collections",
        "contextlib", "copy", "copyreg", "dataclasses", "decimal", "enum", "fractions", "functools",
        "gc", "hashlib", "heapq", "inspect", "itertools", "json", "logging", "math",
        "numbers", "operator", "random", "re", "statistics", "string", "struct", "textwrap", "traceback",
        "types", "typing", "typing_extensions", "warnings", "weakref",
    )
)  # fmt: skip
_PLAIN = (
    set,
    frozenset,
    range,
    slice,
    bytes,
    re.Pattern,
    logging.Logger,
    os.PathLike,
    enum.Enum,
    property,
    types.GenericAlias,
    types.CodeType,
    types.MappingProxyType,
    type(...),
    type(NotImplemented),
)
#: Functions of Python's own that may give something else each time.
_IN_DOUBT = frozenset(("id", "input", "open"))
#: Methods that Python calls by itself when an object is made or shown.
_AT_OTHER_TIMES = frozenset(("__init__", "__new__", "__post_init__", "__init_subclass__", "__repr__", "__str__"))
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
)


def reached(walk: Walk) -> list[str]:
    """The names of what is in doubt, as the step's code has them, by a walk behind a trace of it."""
    functions = live_functions(walk)
    found = {name: None for one in functions for name in names_loaded(one.__code__, "LOAD_GLOBAL") if name in _IN_DOUBT}
    seen = {step[1] for _, parts in walk.holders.values() for step in parts}
    for one in functions:
        # What is set on objects that no walk looks into.
        found |= {
            name: None
            for name in names_loaded(one.__code__, "STORE_ATTR", "DELETE_ATTR")
            if name not in seen and not hasattr(torch.Tensor, name)
        }
    for value, parts in walk.holders.values():
        if isinstance(value, type) or (isinstance(value, types.FunctionType) and value not in functions):
            continue
        for step, part in parts.items():
            if step[0] != "hook" and part is not Missing and _is_doubtful(part):
                found[str(step[1])] = None
    return [*found]


def live_functions(walk: Walk) -> set[Any]:
    """The functions of the user's that may run in a step: those that anything but a class has, and methods that these name."""
    functions = [
        value
        for value, _ in walk.holders.values()
        if isinstance(value, types.FunctionType) and is_the_users(value.__code__.co_filename)
    ]
    methods = {id(part) for value, parts in walk.holders.values() if isinstance(value, type) for part in parts.values()}
    live, waiting = (
        [one for one in functions if id(one) not in methods],
        [one for one in functions if id(one) in methods],
    )
    names = {name for one in live for name in names_of(one.__code__)}
    while True:
        more = [one for one in waiting if one.__name__ in names or _runs_by_itself(one.__name__)]
        if not more:
            return {*live}
        live += more
        waiting = [one for one in waiting if one not in more]
        names |= {name for one in more for name in names_of(one.__code__)}


def _runs_by_itself(name: str) -> bool:
    return name == "forward" or (name.startswith("__") and name.endswith("__") and name not in _AT_OTHER_TIMES)


def _is_doubtful(value: Any) -> bool:
    if isinstance(value, types.ModuleType):
        return not _is_known(value.__name__)
    if isinstance(value, _BUILT_IN):
        owner = getattr(value, "__self__", None)
        is_of_module = owner is None or isinstance(owner, types.ModuleType | type)
        return not _is_known(getattr(value, "__module__", None) or "builtins") if is_of_module else _is_doubtful(owner)
    if isinstance(value, types.FunctionType | type):
        return not _is_known(value.__module__ or "")
    if isinstance(value, _PLAIN) or is_array(value):
        return False
    return _is_opaque(value)


def _is_opaque(value: Any) -> bool:
    """Whether an object has what no walk sees."""
    kind = type(value)
    if hasattr(kind, "__next__"):
        return True  # one that is gone on with outside of any `next`
    known = (nn.Module, torch.Tensor, torch.optim.Optimizer, dict, list, tuple, types.MethodType)
    return not isinstance(value, known) and not is_looked_into(kind) and not _is_known(kind.__module__)


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    return (
        top in _PACKAGES or top in _MODULES or (top not in sys.stdlib_module_names and is_written_by_the_user(module))
    )
