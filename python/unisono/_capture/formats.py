"""``"%.3f" % loss``: texts with places for values, in the user's code, that can be filled with what is known when a step is over.

Python asks no method of a value that a text of its own class is filled with, but takes its number at once. So while a step is traced, the
texts that stand before ``%`` in the code are of a class that asks.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch

from unisono._capture.followed import FollowedText, is_remainder, plain, sources_of
from unisono._capture.number import Number
from unisono._capture.paths import Missing
from unisono._capture.places import is_the_users

#: A place for a value: the name of an entry, flags, width, precision and how the value is written.
_PLACE = re.compile(
    r"%(?:\((?P<name>[^)]*)\))?(?P<flags>[-+ #0]*)(?P<width>\*|\d*)(?:\.(?P<digits>\*|\d*))?(?P<kind>[a-zA-Z%])"
)


@contextlib.contextmanager
def asking(functions: Iterable[Any]) -> Iterator[None]:
    """Lets texts before ``%`` in the code of the user's functions among these ask what fills them."""
    with contextlib.ExitStack() as stack:
        for function in functions:
            if isinstance(function, types.FunctionType) and is_the_users(function.__code__.co_filename):
                code = _asking(function.__code__, function.__code__.co_filename)
                if code is not function.__code__:
                    stack.callback(setattr, function, "__code__", function.__code__)
                    function.__code__ = code
        yield


@functools.lru_cache(maxsize=4096)
def _asking(code: types.CodeType, file: str) -> types.CodeType:
    """Code of a file, which equal code need not be of, whose texts before ``%`` ask; the same code where there are none."""
    filled = set(_filled(code))
    consts = tuple(
        _asking(one, file)
        if isinstance(one, types.CodeType)
        else Asking(one)
        if type(one) is str and one in filled
        else one
        for one in code.co_consts
    )
    same = all(one is other for one, other in zip(consts, code.co_consts, strict=True))
    return code if same else code.replace(co_consts=consts)


def _filled(code: types.CodeType) -> Iterator[str]:
    """The texts that stand before ``%`` in code."""
    if not any(isinstance(one, str) and "%" in one for one in code.co_consts):
        return
    found = [*dis.get_instructions(code)]
    effects = [dis.stack_effect(one.opcode, one.arg, jump=False) for one in found]
    for at, instruction in enumerate(found):
        if is_remainder(instruction.opname, instruction.arg):
            # What is pushed last, and leaves one value above it until here, is the left one.
            above = 1
            for before in range(at - 1, -1, -1):
                if above == 0:
                    if found[before].opname == "LOAD_CONST" and isinstance(found[before].argval, str):
                        yield found[before].argval
                    break
                above -= effects[before]


class Asking(str):
    """A text that lets what fills it say how it is written."""

    def __mod__(self, given: Any) -> str:
        """The text, filled."""
        values = (*given.values(),) if isinstance(given, Mapping) else given if isinstance(given, tuple) else (given,)
        if any(type(one) is Number or isinstance(one, torch.Tensor) for one in values):
            written = self._written(iter(values), given)
            if written is not None:
                return written
        sources = frozenset[int]().union(*map(sources_of, values))
        if not sources:
            return str.__str__(self) % given
        uses = next(one.uses for one in values if sources_of(one) and hasattr(one, "uses"))
        uses.note_text(sources, sys._getframe(1))
        plainly = {key: plain(one) for key, one in given.items()} if isinstance(given, Mapping) else plain(given)
        return FollowedText(uses, sources, str.__str__(self) % plainly)

    def _written(self, values: Iterator[Any], entries: Any) -> str | None:
        """The text, filled with values one by one, or with entries by name; none where one is written as `format` does not know it."""
        pieces, end = [], 0
        for place in _PLACE.finditer(self):
            pieces.append(self[end : place.start()])
            end = place.end()
            if place["kind"] == "%":
                pieces.append("%")
                continue
            if "*" in (place["width"], place["digits"]):
                return None
            value = entries[place["name"]] if place["name"] is not None else next(values, Missing)
            if value is Missing:
                _refuse("not enough arguments for format string")
            piece = _piece(value, place)
            if piece is None:
                return None
            pieces.append(piece)
        if not isinstance(entries, Mapping) and next(values, Missing) is not Missing:
            _refuse("not all arguments converted during string formatting")
        return "".join([*pieces, self[end:]])


def _refuse(why: str) -> NoReturn:
    """Raises what Python raises; by itself, since an error of code that holds a stand-in is taken for one of that."""
    raise TypeError(why)


def _piece(value: Any, place: re.Match[str]) -> str | None:
    """A value as it is written at a place; none where `format` knows no such way."""
    flags, width, digits, kind = place["flags"], place["width"], place["digits"], place["kind"]
    if isinstance(value, torch.Tensor):
        value = value if kind in "sra" else value.item()
    if type(value) is not Number:
        return f"%{flags}{width}{'' if digits is None else f'.{digits}'}{kind}" % (value,)
    if kind in "sr" and not (flags or width or digits):
        return str(value) if kind == "s" else repr(value)
    if kind in "diu" and digits is None:
        value, kind = (value if value.kind is int else value.made("int", value)), "d"
    elif kind not in "eEfFgG":
        return None
    align, sign = "<" if "-" in flags else "", "+" if "+" in flags else " " if " " in flags else ""
    fill = "0" if "0" in flags and not align else ""
    precision = "" if digits is None else f".{digits or 0}"
    return format(value, f"{align}{sign}{'#' if '#' in flags else ''}{fill}{width}{precision}{kind}")
