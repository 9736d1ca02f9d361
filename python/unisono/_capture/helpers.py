"""Functions that an optimizer calls for each parameter, and that choose by values there (``if cosine.max() < delta:``).

A step with one such choice for each parameter has too many ways to trace all of them. What such a function does with its arguments alone
is one thing, whatever its callers do: all of its own ways are computed, and ``torch.where`` chooses what it returns and what becomes of
tensors that it writes into.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer

from unisono._capture.number import Number
from unisono._capture.paths import is_library, names_of
from unisono._capture.places import drawn_by_choice, user_line
from unisono._capture.record import Recorder
from unisono._capture.settings import is_pytorchs

if TYPE_CHECKING:
    from unisono._capture.readbacks import Readbacks

#: More choices in a row are too many here as well.
_MOST_QUESTIONS = 4
#: What reaches beyond the arguments.
_OUTWARD = {"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "YIELD_VALUE", "IMPORT_NAME"}
_OF_OPTIMIZERS = {"state", "param_groups", "grad", "print", "open", "append", "update", "setdefault", "pop", "random"}
_PLAIN = (
    bool,
    int,
    float,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.Size,
    types.FunctionType,
    types.MethodType,
)


class AskedWithin(BaseException):
    """A function asks for a value that was not known to; the step is traced again."""


class _Asks(BaseException):
    """A question behind those that have answers."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value


class _CannotBeOneError(Exception):
    """Ways differ in what no tensor can say."""


@dataclass
class Choosing:
    """What is known of such functions from one trace of a step to the next.

    Attributes:
        asking: the code of those that choose by values.
        left: the code of those whose ways cannot be one: their choices are the step's.
        running: the code of those that run, the innermost one last.
        answers: in a way through one of them, the answers to its first questions.
        asked: how many it has asked.
    """

    asking: set[types.CodeType] = field(default_factory=set)
    left: set[types.CodeType] = field(default_factory=set)
    running: list[types.CodeType] = field(default_factory=list)
    answers: tuple[bool, ...] | None = None
    asked: int = 0

    def answer(self, value: torch.Tensor) -> bool | None:
        """The answer to a question that such a function asks; ``None`` where none of them runs."""
        if self.answers is not None:
            self.asked += 1
            if self.asked > len(self.answers):
                raise _Asks(value.detach().reshape(()) != 0)
            return self.answers[self.asked - 1]
        if self.running:
            self.asking.add(self.running[-1])
            raise AskedWithin
        return None


@contextlib.contextmanager
def standing_in(optimizers: Iterable[Optimizer], reads: Readbacks, choosing: Choosing) -> Iterator[None]:
    """Within, such functions of optimizers that are not PyTorch's own have all their ways computed."""
    with contextlib.ExitStack() as stack:
        choosing.running.clear()
        choosing.answers = None
        for holder, name, function in _helpers(optimizers):
            standing = functools.wraps(function)(functools.partial(_called, reads, choosing, function))
            if isinstance(holder, dict):
                stack.callback(holder.__setitem__, name, holder[name])
                holder[name] = standing
            else:
                stack.callback(setattr, holder, name, vars(holder)[name])
                is_static = isinstance(vars(holder)[name], staticmethod)
                setattr(holder, name, staticmethod(standing) if is_static else _as_method(standing))
        yield


def _as_method(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *arguments, **named: function(*arguments, **named)


def _helpers(optimizers: Iterable[Optimizer]) -> list[tuple[Any, str, types.FunctionType]]:
    """Where such functions may be: in a module's variables or a class, with their name there."""
    found, met = [], set[tuple[int, str]]()
    for kind in dict.fromkeys(kind for one in optimizers if not is_pytorchs(one) for kind in type(one).__mro__):
        if kind.__module__.startswith("torch.") or kind is object:
            continue
        own = [(name, part) for name, part in vars(kind).items() if isinstance(part, types.FunctionType | staticmethod)]
        todo = [inspect.unwrap(part.__func__ if isinstance(part, staticmethod) else part) for _, part in own]
        found += [
            (kind, name, part.__func__ if isinstance(part, staticmethod) else part)
            for name, part in own
            if not name.startswith("__") and name != "step"
        ]
        while todo:
            function = todo.pop()
            for name in names_of(function.__code__) if isinstance(function, types.FunctionType) else ():
                part = function.__globals__.get(name)
                key = id(function.__globals__), name
                if isinstance(part, types.FunctionType) and key not in met and _is_of(part, kind):
                    met.add(key)
                    found.append((function.__globals__, name, part))
                    todo.append(part)
    return [one for one in found if isinstance(one[2], types.FunctionType) and _stays_within(one[2].__code__)]


def _is_of(function: types.FunctionType, kind: type) -> bool:
    return (function.__module__ or "").partition(".")[0] == kind.__module__.partition(".")[0]


@functools.lru_cache(maxsize=4096)
def _stays_within(code: types.CodeType) -> bool:
    """Whether code does nothing but compute with its arguments, as far as it says."""
    inner = [one for one in code.co_consts if isinstance(one, types.CodeType)]
    outward = any(one.opname in _OUTWARD for one in dis.get_instructions(code))
    return not (outward or _OF_OPTIMIZERS.intersection(code.co_names)) and all(map(_stays_within, inner))


def _called(
    reads: Readbacks, choosing: Choosing, function: types.FunctionType, /, *arguments: Any, **named: Any
) -> Any:
    code = function.__code__
    given = [*arguments, *named.values()]
    is_free = choosing.answers is None and code not in choosing.left and not torch.is_grad_enabled()
    if not (is_free and all(map(_is_plain, given))):
        return function(*arguments, **named)
    if code in choosing.asking:
        try:
            return _Ways(reads, choosing, functools.partial(function, *arguments, **named), given).run()
        except _CannotBeOneError:
            choosing.left.add(code)
            raise AskedWithin from None
    choosing.running.append(code)
    try:
        return function(*arguments, **named)
    finally:
        choosing.running.pop()


def _is_plain(one: Any) -> bool:
    return isinstance(one, (*_PLAIN, Number, Optimizer)) or (isinstance(one, torch.Tensor) and not one.is_inference())


@dataclass(frozen=True)
class _Argument:
    """In the place of a tensor that is returned: it is an argument, by its number."""

    number: int


@dataclass(frozen=True)
class _Way:
    """What a way gives, and new values of arguments by their numbers."""

    result: Any
    changed: dict[int, torch.Tensor]


class _Ways:
    """All ways through one call."""

    def __init__(
        self, reads: Readbacks, choosing: Choosing, call: functools.partial[Any], given: Sequence[Any]
    ) -> None:
        self._reads, self._choosing, self._call = reads, choosing, call
        self._tensors = [*{id(one): one for one in given if isinstance(one, torch.Tensor)}.values()]

    def run(self) -> Any:
        recorder = Recorder.current
        before = len(recorder.graph.nodes) if recorder is not None else 0
        told = len(self._reads.effects)
        way = self._explored(())
        if len(self._reads.effects) != told:
            raise _CannotBeOneError
        if recorder is not None:
            new = itertools.islice(reversed(recorder.graph.nodes), len(recorder.graph.nodes) - before)
            if any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in new):
                raise drawn_by_choice(user_line())
        for number, value in way.changed.items():
            self._tensors[number].copy_(value)
        return _mapped(way.result, lambda one: self._tensors[one.number] if isinstance(one, _Argument) else one)

    def _explored(self, answers: tuple[bool, ...]) -> _Way:
        """What is given behind some answers, whatever those to later questions are."""
        if len(answers) > _MOST_QUESTIONS:
            raise _CannotBeOneError
        copies = [one.detach().clone() for one in self._tensors]
        instead = {id(one): copy for one, copy in zip(self._tensors, copies, strict=True)}
        self._choosing.answers, self._choosing.asked = answers, 0
        try:
            with _watched() as codes:
                result = self._call.func(
                    *(instead.get(id(one), one) for one in self._call.args),
                    **{key: instead.get(id(one), one) for key, one in self._call.keywords.items()},
                )
        except _Asks as asks:
            self._choosing.answers = None
            yes, no = self._explored((*answers, True)), self._explored((*answers, False))
            return self._either(asks.value, yes, no)
        finally:
            self._choosing.answers = None
        if not all(map(_stays_within, codes)):
            raise _CannotBeOneError
        numbers = {id(copy): _Argument(number) for number, copy in enumerate(copies)}
        with torch._C.DisableTorchFunction():
            changed = {number: copy for number, copy in enumerate(copies) if copy._version}
        return _Way(_mapped(result, lambda one: numbers.get(id(one), one)), changed)

    def _either(self, value: torch.Tensor, yes: _Way, no: _Way) -> _Way:
        changed = {
            number: torch.where(value, yes.changed.get(number, old), no.changed.get(number, old))
            for number, old in enumerate(self._tensors)
            if number in yes.changed or number in no.changed
        }
        return _Way(self._one_of(value, yes, no, yes.result, no.result), changed)

    def _one_of(self, value: torch.Tensor, yes: _Way, no: _Way, one: Any, other: Any) -> Any:
        if isinstance(one, tuple | list) and type(one) is type(other) and len(one) == len(other):
            return type(one)(self._one_of(value, yes, no, *pair) for pair in zip(one, other, strict=True))
        if one is other or (isinstance(one, _Argument | str | bool) and type(one) is type(other) and one == other):
            return one
        one, other = self._resolved(yes, one), self._resolved(no, other)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                raise _CannotBeOneError
            return torch.where(value, one, other)
        kinds = [type(each) for each in (one, other)]
        if not all(kind in (int, float, Number) for kind in kinds):
            raise _CannotBeOneError
        if Number not in kinds and one == other:
            return one
        tensors = [self._tensor(each) for each in (one, other)]
        kind = float if float in (_kind(one), _kind(other)) else int
        return Number(self._reads, self._reads.read("value", torch.where(value, *tensors)), kind)

    def _resolved(self, way: _Way, one: Any) -> Any:
        return way.changed.get(one.number, self._tensors[one.number]) if isinstance(one, _Argument) else one

    def _tensor(self, one: Any) -> torch.Tensor:
        if type(one) is Number:
            return self._reads.tensor_of(one.expression).double()
        return torch.tensor(one, dtype=torch.float64)


def _kind(one: Any) -> type:
    return one.kind if type(one) is Number else type(one)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if type(value) in (tuple, list):
        return type(value)(_mapped(one, change) for one in value)
    return change(value)


@contextlib.contextmanager
def _watched() -> Iterator[set[types.CodeType]]:
    """The code of libraries' and the user's functions that is called within, PyTorch's and Python's own aside."""
    found, before = set[types.CodeType](), sys.getprofile()

    def note(frame: types.FrameType, event: str, _argument: Any) -> None:
        if event == "call" and not _is_known(frame.f_code.co_filename):
            found.add(frame.f_code)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)


@functools.lru_cache(maxsize=4096)
def _is_known(file: str) -> bool:
    """Whether a file is PyTorch's, Unisono's or Python's own."""
    return file.startswith(_KNOWN) or (is_library(file) and f"-packages{'/'}" not in file)


_KNOWN = tuple(
    module.__file__.rpartition("__init__")[0] for module in (torch, sys.modules["unisono"]) if module.__file__
)
