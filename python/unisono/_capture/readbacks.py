"""Values of tensors that a step's Python code reads (``loss.item()``, ``print(loss)``) only to return, print or log them.

While the step is traced, what is read back is a stand-in that can be computed with and formatted. After each step the real values take its
place in what is returned, and what was printed and logged is printed and logged with them. A stand-in that anything else is done with, a
choice for instance, is refused where that stands.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from unisono._capture import bounds, scalars
from unisono._capture.arrays import indexed_by
from unisono._capture.compared import MOST_ENTRIES
from unisono._capture.computed import CLIP, extremes, standing_in
from unisono._capture.counting import TOKEN, Counting, require_known_keys
from unisono._capture.effects import Effect, Later
from unisono._capture.expressions import Expression, places_in, values_in
from unisono._capture.followed import FollowedNumber
from unisono._capture.forks import Questions
from unisono._capture.guards import CHECKS
from unisono._capture.helpers import Choosing
from unisono._capture.kinds import Kind, TypeOf
from unisono._capture.known import certain, follows_from_constants
from unisono._capture.looked_up import LookedUp, is_a_place
from unisono._capture.named import standing
from unisono._capture.number import LaterText, Number
from unisono._capture.places import drawn_number, is_the_users, read_back, user_frame, user_line, user_lines
from unisono._capture.record import Recorder
from unisono._capture.telling import is_within, told_once
from unisono._capture.texts import ends_there, may_steer
from unisono._tree import flatten, unflatten
from unisono.errors import StepError

_TOKEN = re.compile(f"{TOKEN}(\\d+)\ue001")
#: PyTorch's own code between who asks and the mode that is asked.
_ON_THE_WAY = (
    os.path.join("torch", "overrides.py"),
    os.path.join("torch", "_tensor.py"),
    "fake_tensor.py",
    os.path.join("_capture", "computed.py"),
    os.path.join("_capture", "formats.py"),
    __file__,
)
#: PyTorch's own code that reads values as the user's does: averages of models, scales of losses, checks.
_CHOOSES = (os.path.join("torch", "optim", "swa_utils.py"), os.path.join("torch", "amp", "grad_scaler.py"), *CHECKS)


class Readbacks(TorchFunctionMode):
    """Lets a step read values back while it is traced.

    Attributes:
        tensors: the tensors that are read.
        clocks: how clocks are read, each time with how many operations are before that.
        effects: what is told after each step.
        looked_up: what is looked up at places that are computed.
    """

    def __init__(
        self,
        questions: Questions,
        counting: Counting,
        settings: Container[int],
        twins: Mapping[int, torch.Tensor],
        choosing: Choosing,
    ) -> None:
        """Starts with nothing read.

        Args:
            questions: answers questions.
            counting: the places that the step counts at.
            settings: the tensors that stand for numbers of the user's, settings of optimizers, by their ``id``.
            twins: what stands for tensors of the user's, by their ``id``.
            choosing: functions that have their own questions answered.
        """
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.clocks: list[tuple[Expression, int]] = []
        self.effects: list[Effect] = []
        #: What is read, kept so that its `id` is nothing else's, and its position by that and by how often it was written.
        self._read: list[torch.Tensor] = []
        self._numbers: dict[tuple[int, int | None], int] = {}
        self._texts: list[tuple[Expression, str, str, str | None]] = []
        self._used: set[int] = set()
        self.looked_up = LookedUp()
        #: The functions that have drawn what is read, by its position.
        self._drawn: dict[int, str] = {}
        self._questions, self.counting, self._settings, self._twins = questions, counting, settings, twins
        self._choosing = choosing

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one function, or notes what is read."""
        if func in _INDEXED:
            return self._indexed(func, *args)
        if scalars.is_among(args) or (kwargs and scalars.is_among((*kwargs.values(),))):
            return scalars.beside(self, getattr(func, "__name__", ""), func, args, kwargs or {})
        if func in _READS and isinstance(args[0], torch.Tensor):
            tensor = self._twins.get(id(args[0]), args[0])
            if self._stands_for(tensor, func in _OF_NUMBERS):
                return _READS[func](self, tensor, *args[1:], **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _indexed(self, func: Any, tensor: torch.Tensor, index: Any, *value: Any) -> Any:
        """Looks up, or writes, what is at an index."""
        found = indexed_by(index, self._index_of)
        if value and type(value[0]) is Number and (number := self.scalar(value[0].expression)) is not None:
            value = (number.to(tensor.device, tensor.dtype),)
        if bounds.has_bounds(found):
            return bounds.put(tensor, found, *value) if value else bounds.Part(tensor, found)
        if scalars.is_among((found, *value)):
            return scalars.beside(self, func.__name__, func, (tensor, found, *value), {})
        if value:
            self.looked_up.note_put_back(tensor, index, value[0])
        made = func(tensor, found, *value)
        if not value and isinstance(tensor, FakeTensor) and is_a_place(found):
            self.looked_up.note(made, tensor, index)
        return made

    def decide(self, value: torch.Tensor) -> bool:
        """The answer to a question about a value, in the way through the step that is traced."""
        known = certain(value)
        row = self._row_of(value, chooses=True) if known is None else None
        if row is not None:
            return self.counting.granted(["given", "number", row], as_truth=True)
        within = self._choosing.answer(value) if known is None else known
        return self._questions.decide(value, user_line()) if within is None else within

    def tensor_of(self, expression: Expression) -> torch.Tensor:
        """What an expression gives, as a tensor."""
        kind, *rest = expression
        if kind == "value":
            return self.tensors[rest[0]].double()
        if kind in ("constant", "followed"):
            return torch.tensor(rest[0], dtype=torch.float64)
        if self.counting.knows(expression):
            scalar = self.counting.scalar(expression)
            return (
                torch.tensor(self.settled(expression, None), dtype=torch.float64) if scalar is None else scalar.double()
            )
        if kind == "float":
            return self.tensor_of(rest[0])
        if kind in ("int", "round") and len(rest) == 1:
            return self.tensor_of(rest[0]).trunc() if kind == "int" else self.tensor_of(rest[0]).round()
        if kind == "call" and (same := _same_of_tensors(rest[0])) is not None:
            given = [*map(self.tensor_of, rest[1:])]
            return functools.reduce(same, given) if len(given) > 1 and rest[0] != CLIP else same(*given)
        if kind == "place" or not hasattr(operator, kind):
            raise self._refused(expression, user_line())
        return getattr(operator, kind)(*(self.tensor_of(one) for one in rest))

    def _index_of(self, number: Number) -> Any:
        """A tensor for a whole number that is not known before the step."""
        expression = self._before(number.expression)
        if number.kind is not int or self.counting.knows(expression) or not values_in(expression):
            return number
        return self.tensor_of(expression).long().reshape(())

    def scalar(self, expression: Expression) -> torch.Tensor | None:
        """The tensor without dimensions that stands for a number; ``None`` where it can only be taken for granted."""
        return self.counting.scalar(expression) if self.counting.knows(expression) else self.tensor_of(expression)

    def beside(self, name: str, operands: Sequence[Any]) -> Any:
        """What an operator gives of tensors and stand-ins."""
        return scalars.of_operator(self, name, operands)

    def drawn(self, tensor: torch.Tensor, name: str) -> Number:
        """What stands for the number in a tensor, which a function draws from NumPy's generator or Python's."""
        made = _item(self, tensor)
        self._drawn[made.expression[1]] = name
        return made

    def settled(self, expression: Expression, place: str | None) -> Any:
        """What an expression gives, where that is known before the step and can be taken for granted; ``place`` is what needs it."""
        expression = self._before(expression)
        if self.counting.knows(expression):
            return self.counting.granted(expression)
        raise self._refused(expression, place)

    def array(self, tensor: torch.Tensor) -> Any:
        """The values of a tensor as an array, where these follow from the tensors of the call, and are taken for granted."""
        row = self._row_of(tensor) if tensor.numel() <= MOST_ENTRIES else None
        if row is None:
            raise read_back(user_line())
        self.counting.granted(["given", "values", row])
        return self.counting.given.values.array(row)

    def whole_number(self, tensor: torch.Tensor) -> int:
        """The number in a tensor, where it follows from the tensors of the call, and is taken for granted."""
        return int(_item(self, tensor).settled())

    def _row_of(self, tensor: torch.Tensor, *, chooses: bool = False) -> int | None:
        recorder = Recorder.current
        return None if recorder is None else self.counting.given.row_of(recorder.node_of(tensor), chooses=chooses)

    def _before(self, expression: Expression, *, chooses: bool = False) -> Expression:
        """The same with what follows from the tensors of the call in the place of what is read, as far as it does."""
        kind, *rest = expression
        given = self.counting.given
        if kind == "constant" or not (given.is_known or (chooses and given.asked)):
            return expression
        if kind == "value":
            row = self._row_of(self.tensors[rest[0]], chooses=chooses)
            return expression if row is None else ["given", "number", row]
        return [kind, *(self._before(one, chooses=chooses) if isinstance(one, list) else one for one in rest)]

    def _refused(self, expression: Expression, place: str | None) -> StepError:
        if places_in(expression):
            return self.counting.refused(expression, user_line())
        name = self._drawn_by(expression)
        return read_back(place) if name is None else drawn_number(name, place)

    def _drawn_by(self, expression: Expression) -> str | None:
        """A function that has drawn what an expression is computed from."""
        return next((name for row, name in self._drawn.items() if row in values_in(expression)), None)

    def decide_by(self, expression: Expression) -> bool:
        """The answer to a question about what an expression gives."""
        expression = self._before(expression, chooses=True)
        if self.counting.knows(expression):
            return self.counting.granted(expression, as_truth=True)
        return self.decide(self.tensor_of(expression))

    @staticmethod
    def _stands_for(tensor: torch.Tensor, is_a_number: bool = True) -> bool:
        """Whether it is the user's code that reads a tensor whose values are not known; a number of one may be known where it is not."""
        frame: types.FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.endswith(_ON_THE_WAY):
            frame = frame.f_back
        file = frame.f_code.co_filename if frame is not None else ""
        asks = file.endswith(_CHOOSES) or is_the_users(file)
        return asks and isinstance(tensor, FakeTensor) and not follows_from_constants(tensor, outside=is_a_number)

    def read(self, kind: str, tensor: torch.Tensor) -> Expression:
        """The expression for a tensor, or for what is in it, after the step."""
        with torch._C.DisableTorchFunction():
            key = id(tensor), None if tensor.is_inference() else tensor._version
        if key not in self._numbers or key[1] is None:
            self.tensors.append(tensor.detach().clone())
            self._numbers[key] = len(self.tensors) - 1
            self._read.append(tensor)
        return [kind, self._numbers[key]]

    def clock(self, name: str, kind: type, operations: int) -> Number:
        """What stands for what a clock says."""
        self.clocks.append((["clock", name, 0], operations))
        return Number(self, self.clocks[-1][0], kind)

    def settle_clocks(self, graph: torch.fx.Graph) -> None:
        """Says whether clocks are read when the step begins or when it is over.

        Raises:
            StepError: one is read in between.
        """
        calls = [n for n, node in enumerate(graph.nodes) if node.op == "call_function" and not is_a_copy(node.target)]
        for expression, operations in self.clocks:
            if calls and operations > calls[-1]:
                expression[2] = 1
            elif calls and operations > calls[0]:
                raise read_back(user_line())

    def at_the_end(self, error: BaseException) -> tuple[list[Any], int]:
        """How the arguments of an exception are computed, and how many tensors have been read before it."""
        reads = len(self.tensors)
        return [e if (e := self.expression_of(one)) is not None else ["constant", one] for one in error.args], reads

    def token(self, expression: Expression, conversion: str, style: str) -> str:
        """A text that stands for a formatted value.

        Raises:
            StepError: the code that asks for it may be steered by what it makes of it.
        """
        place, frame = user_line(), user_frame(sys._getframe(1))
        if frame is not None and may_steer(frame):
            raise self._refused(expression, place)
        made = self._token(expression, conversion, style)
        if frame is not None and ends_there(frame):
            self._used.add(len(self._texts) - 1)
        return LaterText(made, functools.partial(self._refused, expression, place))

    def _token(self, expression: Expression, conversion: str, style: str) -> str:
        self._texts.append((expression, conversion, style, user_line()))
        return f"{TOKEN}{len(self._texts) - 1}\ue001"

    def text(self, expression: Expression) -> str:
        """A text that stands for one at a place."""
        made = self._token(expression, "s", "")
        self._used.add(len(self._texts) - 1)
        return made

    def expression_of(self, leaf: Any) -> Expression | None:
        """How a leaf of a result is computed after the step; ``None`` if it is a constant."""
        leaf = self.number_of(leaf)
        if type(leaf) is Number:
            return leaf.expression
        if isinstance(leaf, str) and _TOKEN.search(leaf):
            pieces = _TOKEN.split(leaf)
            return ["text", [self._piece(int(one)) if at % 2 else one for at, one in enumerate(pieces)]]
        if isinstance(leaf, FakeTensor):
            return self.read("tensor", leaf)
        return None

    def number_of(self, leaf: Any) -> Any:
        """The number that a tensor stands for, if it is a setting of an optimizer; else what is given."""
        return _item(self, leaf) if id(leaf) in self._settings else leaf

    def _piece(self, number: int) -> list[Any]:
        self._used.add(number)
        return list(self._texts[number][:3])

    @functools.cached_property
    def _told_once(self) -> set[types.CodeType]:
        return told_once()

    def note(self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Notes a call that is to be made after each step, or makes it, if further steps do not."""
        leaves, structure = flatten((arguments, named))
        require_known_keys(structure, user_line())
        later = [Later(e) if (e := self.expression_of(leaf)) is not None else leaf for leaf in leaves]
        frame = sys._getframe(1)
        if not any(type(leaf) is Later for leaf in later) and is_within(frame, self._told_once):
            function(*arguments, **named)
            return
        arguments, named = unflatten(structure, iter(later), (arguments, named))
        self.effects.append(Effect(function, arguments, named, user_lines(frame)))

    def shown(self) -> list[Expression]:
        """How what is printed and logged is computed."""
        leaves = (leaf for effect in self.effects for leaf in effect.leaves())
        return [leaf.expression for leaf in leaves if type(leaf) is Later]

    def require_all_used(self) -> None:
        """Refuses a step that has done something else with what it has read than to return, print or log it."""
        for number, (*_, place) in enumerate(self._texts):
            if number not in self._used:
                raise read_back(place)

    @contextlib.contextmanager
    def around(self, functions: Iterable[Any]) -> Iterator[None]:
        """Catches what the code of these functions prints and converts."""
        own: dict[str, Any] = {
            "print": self._print,
            "float": _standing_for(float, self),
            "int": _standing_for(int, self),
            **extremes(),
        }
        own["type"] = TypeOf({int: own["int"], float: own["float"]})
        with contextlib.ExitStack() as stack:
            for holder, name in _globals_with(functions, own):
                holder[name] = own[name]
                stack.callback(holder.pop, name, None)
            instead: dict[int, tuple[Any, Any]] = {}
            asking = (
                (module, name, functools.partial(self._is, getattr(module, name), getattr(torch, name)))
                for module, name in _asking_for_finite()
            )
            for module, name, function in [*asking, *standing_in(self._item_of, self._text_of)]:
                real = getattr(module, name)
                instead[id(real)] = real, function
                stack.enter_context(mock.patch.object(module, name, function))
            stack.enter_context(standing(functions, instead))
            stack.enter_context(scalars.standing_in(self, functions))
            stack.enter_context(self)
            yield

    def _is(
        self, function: Callable[..., Any], same: Callable[..., torch.Tensor], value: Any, *more: Any, **named: Any
    ) -> Any:
        """What a function that asks whether a number is finite says of one, or of one that is read: PyTorch's does the same."""
        if type(value) is Number:
            return self.decide(same(self.tensor_of(value.expression)))
        if isinstance(value, FakeTensor) and value.numel() == 1 and self._stands_for(value):
            return self.decide(same(value))
        return function(value, *more, **named)

    def _item_of(self, value: torch.Tensor) -> Any:
        """What stands for the number in a tensor where it is the user's code that asks, or the tensor."""
        return _item(self, value) if value.numel() == 1 and self._stands_for(value) else value

    def _text_of(self, expression: Expression) -> str:
        return self.token(expression, "s", "")

    def _print(self, *arguments: Any, **named: Any) -> None:
        self.note(print, arguments, named)


def _globals_with(functions: Iterable[Any], names: Iterable[str]) -> Iterator[tuple[dict[str, Any], str]]:
    """The modules' variables in which code of functions finds one of the names among Python's own."""
    met = set()
    for function in functions:
        if not isinstance(function, types.FunctionType) or not is_the_users(function.__code__.co_filename):
            continue
        for name in names:
            key = id(function.__globals__), name
            if key not in met and name not in function.__globals__:
                met.add(key)
                yield function.__globals__, name


def _same_of_tensors(name: str) -> Callable[..., torch.Tensor] | None:
    """PyTorch's function for one of Python's or NumPy's, by its name with that of its module."""
    module, _, own = name.rpartition(".")
    if name == CLIP:
        return lambda one, low, high: torch.minimum(torch.maximum(one, low), high)
    if module == "builtins":  # which keeps the first one beside what is not a number
        return lambda one, other: torch.where(other < one if own == "min" else other > one, other, one)
    return getattr(torch, {"fabs": "abs", "pow": "pow"}.get(own, own), None)


def _asking_for_finite() -> Iterator[tuple[types.ModuleType, str]]:
    for module in (math, sys.modules.get("numpy")):
        yield from ((module, name) for name in ("isfinite", "isinf", "isnan") if module is not None)


def _standing_for(real: type, reads: Readbacks) -> type:
    def __new__(cls: type, value: Any = 0, *more: Any) -> Any:  # noqa: N807
        if isinstance(value, FakeTensor) and reads._stands_for(value):
            value = _item(reads, value)
        if type(value) is FollowedNumber:
            return value.converted(real)
        return value.made(real.__name__, value) if type(value) is Number else real(value, *more)

    return Kind(real.__name__, (), {"__new__": __new__, "real": real})


def is_a_copy(target: Any) -> bool:
    """Whether an operation only makes the values of a tensor another tensor."""
    return target in (torch.ops.aten.detach.default, torch.ops.aten.clone.default, torch.ops.aten.alias.default)


def _item(reads: Readbacks, tensor: torch.Tensor) -> Number:
    return Number(reads, reads.read("value", tensor), _kind_of(tensor.dtype))


def _kind_of(dtype: torch.dtype) -> type:
    """The class of a tensor's numbers in Python."""
    if dtype.is_complex:
        return complex
    return bool if dtype == torch.bool else float if dtype.is_floating_point else int


def _tolist(reads: Readbacks, tensor: torch.Tensor) -> Any:
    if tensor.dim() == 0:
        return _item(reads, tensor)
    return [_tolist(reads, part) for part in tensor.detach().unbind()]


def _format(reads: Readbacks, tensor: torch.Tensor, style: str = "") -> str:
    kind = "value" if tensor.dim() == 0 else "tensor"
    return reads.token(reads.read(kind, tensor), "", style)


def _numpy(reads: Readbacks, tensor: torch.Tensor, *_unused: Any, **_named: Any) -> Any:
    return reads.array(tensor)


def _repr(reads: Readbacks, tensor: torch.Tensor, **_unused: Any) -> str:
    return reads.token(reads.read("tensor", tensor), "r", "")


def _equal(reads: Readbacks, one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and reads.decide((one == other).all())


def _close(reads: Readbacks, one: torch.Tensor, other: torch.Tensor, *how: Any, **named: Any) -> bool:
    return reads.decide(torch.isclose(one, other, *how, **named).all())


_ALIKE = {torch.equal: _equal, torch.Tensor.equal: _equal, torch.allclose: _close, torch.Tensor.allclose: _close}
_OF_NUMBERS = (torch.Tensor.item, torch.Tensor.__bool__, torch._assert, *_ALIKE)
_INDEXED = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
_READS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.item: _item,
    torch.Tensor.tolist: _tolist,
    torch.Tensor.__format__: _format,
    torch.Tensor.__repr__: _repr,
    torch.Tensor.numpy: _numpy,
    torch.Tensor.__array__: _numpy,
    torch.Tensor.__bool__: lambda reads, tensor: reads.decide(tensor),
    **_ALIKE,
    torch._assert: lambda reads, tensor, *message: torch._assert(reads.decide(tensor), *message),
}
