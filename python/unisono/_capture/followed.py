"""Stand-ins for numbers, texts and collections of the user's that a step changes, which are followed through a trace.

What is computed of one is followed too. Whatever else is done with one is noted with the user's line, because it may steer the step: a
comparison, an index, a size, an argument of a tensor operation, how many entries there are.
"""

from __future__ import annotations

import collections
import dis
import enum
import functools
import math
import numbers
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from unisono._capture.compared import is_generator
from unisono._capture.places import user_place
from unisono._capture.texts import may_steer

_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_UNARY = ("neg", "pos", "abs", "invert")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_ROUNDINGS = {"__round__": round, "__trunc__": math.trunc, "__floor__": math.floor, "__ceil__": math.ceil}
#: What is done with texts that makes texts for people only, and what Python itself asks of any object.
OF_TEXTS = frozenset(
    (
        "__add__", "__class__", "__delattr__", "__dir__", "__doc__", "__format__",
        "__getattribute__", "__getnewargs__", "__init__", "__init_subclass__", "__mod__", "__mul__",
        "__new__", "__reduce__", "__reduce_ex__", "__repr__", "__rmod__", "__rmul__",
        "__setattr__", "__sizeof__", "__str__", "__subclasshook__", "encode", "join",
    )
)  # fmt: skip
#: What is done with collections that says nothing of what is in them.
_FILLING = frozenset(
    (
        "add", "append", "appendleft", "clear", "discard", "extend",
        "extendleft", "insert", "update", "__iadd__", "__ior__", "__setitem__",
        "__delitem__", "__missing__", "default_factory", "maxlen",
    )
)  # fmt: skip
#: What fills lists and deques whatever is in them.
_RECORDED = frozenset(("append", "appendleft", "clear", "extend", "extendleft", "__iadd__"))
#: Entries of dictionaries are followed themselves.
_BY_KEY = frozenset(("__getitem__", "get", "setdefault"))
_OF_ALL = frozenset(dir(object)) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__"}
_FOLLOWED_KINDS = (
    list,
    dict,
    set,
    collections.deque,
    collections.defaultdict,
    collections.OrderedDict,
    collections.Counter,
)
#: A library that only shows how far something is.
_SHOWS = "tqdm"
_OWN = os.path.dirname(__file__) + os.sep


@dataclass(frozen=True)
class Use:
    """What was done with what is followed: where that comes from, and the user's line."""

    sources: frozenset[int]
    place: str | None


class Uses:
    """What is done with all that is followed in one trace.

    Attributes:
        found: what may steer the step.
        mixed: what is computed with beside what is known when the step is over.
        asked: the sources that were asked for something.
    """

    def __init__(self) -> None:
        """Starts with nothing done."""
        self.found: list[Use] = []
        self.mixed: list[Use] = []
        self.asked: set[int] = set()

    def note(self, sources: frozenset[int]) -> None:
        """Notes that something is done with what comes from some sources."""
        self._note(self.found, sources, sys._getframe(1))

    def note_mixed(self, sources: frozenset[int]) -> None:
        """Notes that what comes from some sources is computed with beside what is known when the step is over."""
        self._note(self.mixed, sources, sys._getframe(1))

    def _note(self, among: list[Use], sources: frozenset[int], frame: types.FrameType) -> None:
        file, line = user_place(frame)
        use = Use(sources, f"{file}:{line}" if file else None)
        if f"{os.sep}{_SHOWS}{os.sep}" not in file and use not in among:
            among.append(use)

    def note_text(self, sources: frozenset[int], frame: types.FrameType | None) -> None:
        """Notes that a text is made of what comes from some sources, if the code that makes it may be steered by it."""
        if frame is not None and may_steer(frame):
            self.note(sources)

    def stand_in(self, value: Any, source: int) -> Any:
        """What stands for a value; ``None`` if it cannot be followed."""
        sources = frozenset((source,))
        if isinstance(value, numbers.Number) and not isinstance(value, bool | enum.Enum):
            return FollowedNumber(self, sources, value)
        if type(value) is str:
            return FollowedText(self, sources, value)
        if isinstance(value, tuple):
            return _like(value, [self.stand_in(one, source) for one in value])
        if is_generator(value):
            return FollowedGenerator(self, source, value)
        return _filled(_followed(type(value)), value, self, sources) if type(value) in _FOLLOWED_KINDS else None

    def given(self, value: Any, source: int) -> Any:
        """What stands for something that the user's code is given; of what cannot be followed it is noted that it is given."""
        self.asked.add(source)
        stand_in = self.stand_in(value, source) if isinstance(value, numbers.Number | tuple) else None
        if stand_in is None and value is not None:
            self.note(frozenset((source,)))
        return value if stand_in is None else stand_in


class FollowedNumber:
    """Stands for a number."""

    __slots__ = ("sources", "uses", "value")

    def __init__(self, uses: Uses, sources: frozenset[int], value: Any) -> None:
        """Takes what it is, and the numbers of the places that it comes from."""
        self.uses, self.sources, self.value = uses, sources, value

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return type(self.value)

    def used(self) -> Any:
        """The number itself, for something that may steer the step."""
        self.uses.note(self.sources)
        return self.value

    def mixed(self) -> Any:
        """The number itself, for something that is known when the step is over."""
        self.uses.note_mixed(self.sources)
        return self.value

    def converted(self, real: Callable[[Any], Any]) -> FollowedNumber:
        """What a function of one number makes of it."""
        return FollowedNumber(self.uses, self.sources, real(self.value))

    def _made(self, function: Callable[..., Any], one: Any, other: Any) -> Any:
        """What a function makes of this number and something else, in this order or the other."""
        if function is operator.mod and leaves_nothing(type(_plain(one)), other):
            return 0
        partner = other if one is self else one
        if type(partner) is FollowedNumber:
            sources = self.sources | partner.sources
            return FollowedNumber(self.uses, sources, function(_plain(one), _plain(other)))
        if getattr(type(partner), "is_known_later", False):
            return NotImplemented
        if isinstance(partner, numbers.Number):
            return FollowedNumber(self.uses, self.sources, function(_plain(one), _plain(other)))
        self.uses.note(self.sources)
        return function(_plain(one), _plain(other))

    def _converted_by_python(self) -> Any:
        if not _formats(sys._getframe(2)):
            self.uses.note(self.sources)
        else:
            self.uses.note_text(self.sources, sys._getframe(2))
        return self.value

    def __int__(self) -> int:
        return int(self._converted_by_python())

    def __float__(self) -> float:
        return float(self._converted_by_python())

    def __index__(self) -> int:
        return operator.index(self.used())

    def __complex__(self) -> complex:
        return complex(self.used())

    def __bool__(self) -> bool:
        return bool(self.used())

    def __hash__(self) -> int:
        return hash(self.used())

    def __format__(self, style: str) -> str:
        self.uses.note_text(self.sources, sys._getframe(1))
        return FollowedText(self.uses, self.sources, format(self.value, style))

    def __str__(self) -> str:
        self.uses.note_text(self.sources, sys._getframe(1))
        return FollowedText(self.uses, self.sources, str(self.value))

    __repr__ = __str__

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __copy__(self) -> FollowedNumber:
        return self

    def __deepcopy__(self, _memo: Any) -> FollowedNumber:
        return self

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return type(self.value), (self.used(),)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.used(), name)


def followed(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """What a function gives of numbers, some of which are followed."""
    some = [one for one in operands if type(one) is FollowedNumber]
    if not all(isinstance(one, numbers.Number) for one in operands):
        return function(*map(handed, operands))
    sources = frozenset[int]().union(*(one.sources for one in some))
    return FollowedNumber(some[0].uses, sources, function(*map(_plain, operands)))


def _comparing(function: Callable[[Any, Any], bool]) -> Callable[[FollowedNumber, Any], Any]:
    def compare(self: FollowedNumber, other: Any) -> Any:
        self.uses.note(self.sources | (other.sources if type(other) is FollowedNumber else frozenset()))
        return function(self.value, _plain(other))

    return compare


def _number_operators() -> None:
    for name in _COMPARISONS:
        setattr(FollowedNumber, f"__{name}__", _comparing(getattr(operator, name)))
    for name in _BINARY:
        function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
        setattr(FollowedNumber, f"__{name}__", lambda self, other, f=function: self._made(f, self, other))
        setattr(FollowedNumber, f"__r{name}__", lambda self, other, f=function: self._made(f, other, self))
    for name in _UNARY:
        function = getattr(operator, name)
        setattr(FollowedNumber, f"__{name}__", lambda self, f=function: self.converted(f))
    for name, function in _ROUNDINGS.items():
        setattr(FollowedNumber, name, lambda self, *more, f=function: self.converted(functools.partial(_with, f, more)))


def _with(function: Callable[..., Any], more: tuple[Any, ...], value: Any) -> Any:
    return function(value, *more)


def _plain(value: Any) -> Any:
    return value.value if type(value) is FollowedNumber else value


def leaves_nothing(kind: type, divisor: Any) -> bool:
    """Whether a number of a class, divided by another, leaves 0 whatever it is.

    A step of `accelerate` is asked which one it is of those that are accumulated, one by default.
    """
    return kind is int and type(divisor) is int and divisor == 1


def _formats(frame: types.FrameType) -> bool:
    """Whether code is at ``text % values``: numbers have a method of their own for this operator."""
    code, at = frame.f_code.co_code, frame.f_lasti
    return is_remainder(dis.opname[code[at]], code[at + 1])


def is_remainder(name: str, argument: int | None) -> bool:
    """Whether an instruction is the operator ``%``."""
    return name.endswith("_MODULO") or (name == "BINARY_OP" and dis._nb_ops[argument or 0][1] in ("%", "%="))  # type: ignore[attr-defined]


class FollowedGenerator:
    """Stands for a generator of random numbers, Python's or NumPy's."""

    __slots__ = ("_source", "_uses", "_value")

    def __init__(self, uses: Uses, source: int, value: Any) -> None:
        """Takes what it is, and the number of its place."""
        self._uses, self._source, self._value = uses, source, value

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return type(self._value)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._value, name)
        if not callable(found) or "state" in name or name == "seed":
            return found
        return lambda *arguments, **named: self._uses.given(found(*arguments, **named), self._source)


class FollowedText(str):
    """Stands for a text, or for one that is made of what is followed."""

    sources: frozenset[int]
    uses: Uses

    def __new__(cls, uses: Uses, sources: frozenset[int], value: str) -> FollowedText:
        """Takes what it is, and the numbers of the places that it comes from."""
        made = super().__new__(cls, value)
        made.uses, made.sources = uses, sources
        return made

    def __str__(self) -> str:
        return self

    def __format__(self, style: str) -> str:
        self.uses.note_text(self.sources, sys._getframe(1))
        return FollowedText(self.uses, self.sources, format(plain(self), style))

    def __add__(self, other: str) -> FollowedText:
        return FollowedText(self.uses, self.sources | sources_of(other), plain(self) + plain(other))

    def __radd__(self, other: str) -> FollowedText:
        return FollowedText(self.uses, self.sources | sources_of(other), plain(other) + plain(self))

    def __deepcopy__(self, _memo: Any) -> FollowedText:
        return self

    def __reduce_ex__(self, _protocol: Any) -> Any:
        return str, (plain(self),)


def _filling(name: str) -> Callable[..., Any]:
    """A method of what stands for a collection that is changed when the step is over."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        self.recorder(name, arguments, named)
        return self if name.startswith("__i") else None

    return method


def _noting(kind: type, name: str) -> Callable[..., Any]:
    function = getattr(kind, name)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if not sys._getframe(1).f_code.co_filename.startswith(_OWN):
            self.uses.note(self.sources)
        return function(self, *arguments, **named)

    return method


def _methods(kind: type, but: frozenset[str]) -> dict[str, Any]:
    """The methods of a class that note that they are called, but for some."""
    return {name: _noting(kind, name) for name in methods_of(kind, but)}


def methods_of(kind: type, but: frozenset[str]) -> Iterator[str]:
    """The names of the methods of a class but for some."""
    yield from (name for name in dir(kind) if name not in but and callable(getattr(kind, name)))


@functools.cache
def _followed(kind: type) -> type:
    """The class of what stands for collections of a class."""
    but = _OF_ALL | _FILLING | (_BY_KEY if issubclass(kind, dict) else frozenset())
    return type(kind.__name__, (kind,), _methods(kind, but) | {"__hash__": None, "_is_followed": True})


@functools.cache
def _recorded(kind: type) -> type:
    """The class of what stands for lists or deques of a class that are changed when the step is over."""
    noted = _methods(kind, _OF_ALL | _RECORDED)
    recorded = {name: _filling(name) for name in _RECORDED if hasattr(kind, name)}
    return type(kind.__name__, (kind,), noted | recorded | {"__hash__": None, "_is_followed": True})


def recorded(
    value: Any, uses: Uses, source: int, recorder: Callable[[str, tuple[Any, ...], dict[str, Any]], None]
) -> Any:
    """What stands for a list or a deque: a recorder takes how it is filled, and it is noted that anything else is done with it."""
    made = _filled(_recorded(type(value)), value, uses, frozenset((source,)))
    made.recorder = recorder
    return made


def _filled(followed: Any, value: Any, uses: Uses, sources: frozenset[int]) -> Any:
    made = followed.__new__(followed)
    made.uses, made.sources = Uses(), sources  # a Counter asks for its own size while it is filled
    if isinstance(value, collections.defaultdict):
        made.__init__(value.default_factory, value)
    elif isinstance(value, collections.deque):
        made.__init__(value, value.maxlen)
    else:
        made.__init__(value)
    made.uses = uses
    return made


def shows_only(holder: Any) -> bool:
    """Whether an object only shows how far something is."""
    return str(type(holder).__module__).partition(".")[0] == _SHOWS


def sources_of(value: Any) -> frozenset[int]:
    """The numbers of the places that a number, a text or a tuple of these comes from."""
    if isinstance(value, tuple):
        return frozenset[int]().union(*map(sources_of, value))
    return value.sources if type(value) in (FollowedNumber, FollowedText) else frozenset()


def class_of(value: Any) -> type:
    """The class of a value, or of what it stands for."""
    if type(value) is FollowedNumber:
        return type(value.value)
    if getattr(type(value), "is_known_later", False):
        return value.__class__
    if type(value) is FollowedText:
        return str
    return next(one for one in type(value).__mro__ if "_is_followed" not in vars(one))


def plain(value: Any) -> Any:
    """What a stand-in stands for; a tuple with what its entries stand for."""
    if type(value) is FollowedText:
        return str.__str__(value)
    if isinstance(value, tuple):
        return _like(value, [*map(plain, value)])
    return _plain(value)


def _like(value: tuple[Any, ...], entries: list[Any]) -> Any:
    return type(value)(*entries) if hasattr(type(value), "_fields") else type(value)(entries)


def entries(collection: Any) -> list[Any]:
    """The entries of a collection, which may be a stand-in."""
    kind: Any = next(one for one in type(collection).__mro__ if one in (list, dict, set, collections.deque))
    return [plain(one) for one in (dict.items(collection) if kind is dict else kind.__iter__(collection))]


def note_returned(value: Any) -> None:
    """Notes that a step returns something, if it is followed."""
    if sources_of(value) and not isinstance(value, tuple):
        value.uses.note_mixed(value.sources)


def handed(value: Any) -> Any:
    """A value for something that may steer the step."""
    return value.used() if type(value) is FollowedNumber else value


class Following(TorchFunctionMode):
    """Hands PyTorch's functions the numbers themselves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function."""
        if any(map(_has_followed, args)) or (kwargs and any(map(_has_followed, kwargs.values()))):
            args, kwargs = pytree.tree_map(handed, (args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def _has_followed(given: Any) -> bool:
    """Whether an argument of a function of PyTorch's is a followed number, or has one."""
    kind = type(given)
    if kind in (tuple, list, torch.Size):
        return any(map(_has_followed, given))
    return kind is FollowedNumber or (kind is dict and any(map(_has_followed, given.values()))) or kind is slice


_number_operators()
for _name, _method in _methods(str, OF_TEXTS).items():
    setattr(FollowedText, _name, _method)
