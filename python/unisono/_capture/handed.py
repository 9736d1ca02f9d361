"""Numbers in objects that a step hands to functions: ``weight(config)`` reads ``config.alpha`` by a name that only ``weight`` has."""

from __future__ import annotations

import dis
import functools
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from unisono._capture.compared import FUNCTIONS
from unisono._capture.places import is_the_users

#: Functions that are looked into, from one on.
_MOST_FUNCTIONS = 64
_LEVELS = 3
_VARIABLES = ("LOAD_GLOBAL", "LOAD_DEREF", "LOAD_NAME", "LOAD_FAST")
_INTO = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "DELETE_ATTR")


@functools.lru_cache(maxsize=1024)
def handed_on(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The variables, and the attributes, that code goes on with as they are: hands to a function, or gives another name."""
    variables, attributes = set[str](), set[str]()
    instructions = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    for one, following in zip(instructions, [*instructions[1:], None], strict=True):
        if following is not None and following.opname in _INTO:
            continue
        if one.opname.startswith(_VARIABLES):
            # Some Python versions load two at once.
            variables.update(one.argval if isinstance(one.argval, tuple) else (one.argval,))
        elif one.opname == "LOAD_ATTR":
            attributes.add(one.argval)
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            inner = handed_on(part)
            variables |= inner[0]
            attributes |= inner[1]
    return frozenset(variables), frozenset(attributes)


def places_in(
    name: str, value: Any, code: types.CodeType, met: set[tuple[int, int]], levels: int = _LEVELS
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """What code may read of a value that it is given, by name: entries and attributes, and theirs; ``met`` is what was looked at."""
    if (id(value), id(code)) in met:
        return
    met.add((id(value), id(code)))
    attributes, texts = _names(code)
    if isinstance(value, dict):
        found = [(f"{name}[{key!r}]", value, key) for key in texts if key in value]
    elif holds_settings(value):
        own = vars(value)
        found = [(f"{name}.{key}", own, key) for key in attributes if key in own]
    else:
        return
    for longer, holder, key in found:
        yield longer, (holder, key)
        if levels > 1:
            yield from places_in(longer, holder[key], code, met, levels - 1)


def is_installed(file: str) -> bool:
    """Whether a source file is of an installed package."""
    return "-packages" + os.sep in file


def holds_settings(value: Any) -> bool:
    """Whether a value is an object of a class written in Python that may hold numbers: no module, function, class or tensor."""
    if isinstance(value, dict):
        return True
    kind = type(value)
    is_plain = hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type, types.ModuleType, *FUNCTIONS))
    return is_plain and not kind.__module__.startswith(("torch", "unisono"))


@functools.lru_cache(maxsize=1024)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The attributes that code reads, and its texts, which are such, too, where it calls ``getattr``."""
    read = [one.argval for one in dis.get_instructions(code) if one.opname == "LOAD_ATTR"]
    texts = [one for one in code.co_consts if isinstance(one, str)]
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            inner = _names(part)
            read += inner[0]
            texts += inner[1]
    read += texts if "getattr" in code.co_names else []
    return tuple(dict.fromkeys(read)), tuple(dict.fromkeys(texts))


def called(
    function: types.FunctionType,
    owner: Any,
    named: Callable[[types.FunctionType], Iterator[Any]],
    methods: Callable[[type, types.CodeType], Iterator[Any]],
) -> Iterator[types.CodeType]:
    """The code of the user's functions and methods that a function names, and that those name."""
    todo, met = [(function, owner)], {id(function.__code__)}
    while todo and len(met) < _MOST_FUNCTIONS:
        one, own = todo.pop()
        values = [*named(one), *([] if own is None else methods(type(own), one.__code__))]
        found: list[tuple[types.FunctionType | None, Any]] = [(_plain(value), None) for value in values]
        for value in values:
            if not isinstance(value, FUNCTIONS) and (isinstance(value, nn.Module) or holds_settings(value)):
                found += [(_plain(method), value) for method in methods(type(value), one.__code__)]
            if isinstance(value, nn.Module):
                found.append((_plain(type(value).forward), value))
        for made, whose in found:
            if made is not None and id(made.__code__) not in met and is_the_users(made.__code__.co_filename):
                met.add(id(made.__code__))
                todo.append((made, whose))
                yield made.__code__


def _plain(value: Any) -> types.FunctionType | None:
    while isinstance(value, functools.partial):
        value = value.func
    value = getattr(value, "__func__", value)
    return value if isinstance(value, types.FunctionType) else None
