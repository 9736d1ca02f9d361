"""Tensors that a step keeps outside of the model: in variables, attributes and containers, and in tensors of others that it writes into.

What a step replaces by a tensor of the same kind, or writes into, is state of the captured step. What it leaves without ever reading it is
renewed at each step. Anything else is refused: a first step that is unlike the others is no graph for all of them.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import types
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from unisono._capture.averages import decays
from unisono._capture.beside import refill
from unisono._capture.compiling import Compiling
from unisono._capture.counting import CannotCount, Counting, Counts, is_known_later, numbers_in
from unisono._capture.guards import Guards
from unisono._capture.helpers import Choosing
from unisono._capture.known import follows_from_constants
from unisono._capture.number import Number
from unisono._capture.orders import Orders
from unisono._capture.paths import Missing, Path, Walk, follow, put, shown
from unisono._capture.places import read_back, user_line
from unisono._capture.premises import Premises
from unisono._capture.readbacks import Readbacks
from unisono._capture.selection import Selection
from unisono._capture.settings import is_pytorchs
from unisono._tree import flatten
from unisono.errors import StepError


@dataclass
class Kept:
    """What is known of it, and grows from one trace of a step to the next until nothing new is found.

    Attributes:
        replaced: paths to state that the step replaces.
        written: paths to state that the step writes into.
        left: paths to what the step leaves without reading it.
        keep_gradients: whether gradients that are there at the end of the step are left to the user.
        gradients: the names of parameters that have one then.
        accumulates: whether the step adds to gradients that it finds: those that are there are state, and what it leaves is left.
        arguments: the leaves of its arguments that the step changes in place, by number: what it makes of them is left in the caller's.
        dropped: paths to gradients that are state and that the step takes away.
        generators: paths to random number generators that the step draws from.
        told: lines of the step of which the user has been told something.
        guards: questions of which one answer ends the step.
        counts: paths to what is left that is known when the step is over, and no tensor.
        lists: paths to lists and deques that the step fills with that, or with tensors.
        reads_clocks: whether clocks are read anew at each step.
        premises: what the step chooses by that is there before it.
        compiling: what code is told that asks whether a compiler runs it.
        orders: what lies in memory otherwise than in eager PyTorch.
        choosing: functions that optimizers call, whose own choices are known.
    """

    train_step: Callable[..., Any]
    model: nn.Module | None
    optimizers: tuple[Optimizer, ...]
    replaced: list[Path] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)
    left: list[Path] = field(default_factory=list)
    keep_gradients: bool = False
    gradients: list[str] = field(default_factory=list)
    accumulates: bool = False
    arguments: list[int] = field(default_factory=list)
    dropped: list[Path] = field(default_factory=list)
    generators: list[Path] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    guards: Guards = field(default_factory=Guards)
    counts: list[Path] = field(default_factory=list)
    lists: list[Path] = field(default_factory=list)
    reads_clocks: bool = False
    premises: Premises = field(default_factory=Premises)
    compiling: Compiling = field(default_factory=Compiling)
    orders: Orders = field(default_factory=Orders)
    choosing: Choosing = field(default_factory=Choosing)

    def __post_init__(self) -> None:
        """Notes how everything is before the step is traced."""
        self._before = self.walk = self._walk()
        self.root = self._before.root
        #: What the last trace left in `left`, by its ``id``: the next one must not read it.
        self.marks: dict[int, tuple[torch.Tensor, Path]] = {}
        self._operations: list[str] | None = None
        self._originals: dict[int, torch.Tensor] = {}
        self._counting: Counting | None = None
        self._settings: set[int] = set()
        #: What the last trace has left at places that it counts at, and the user's lines where that was made.
        self._left_there: dict[Path, Any] = {}
        self._left_at: dict[Path, str | None] = {}
        #: The tensors in the places of which the step leaves a number, a text or nothing.
        self._cleared: dict[Path, torch.Tensor] = {}
        #: Lists that are too long for a walk to look into, with what is in them.
        held = ((one, parts) for one, parts in self._before.holders.values() if isinstance(one, list | deque))
        self._long = [(one, [*one]) for one, parts in held if len(parts) < len(one)]

    def _walk(self) -> Walk:
        return Walk(self.train_step, self.model, self.optimizers)

    def functions(self) -> list[Any]:
        """The functions that the step and the model can reach, and those of optimizers that are not PyTorch's own."""
        kinds = [kind for one in self.optimizers if not is_pytorchs(one) for kind in type(one).__mro__]
        own = [part for kind in kinds if not kind.__module__.startswith("torch.") for part in vars(kind).values()]
        reached = [value for value, _ in self._before.holders.values()]
        return [value for value in (*reached, *map(inspect.unwrap, own)) if isinstance(value, types.FunctionType)]

    def counting(self, settings: set[int], arguments: Sequence[Any], scalars: Mapping[str, torch.Tensor]) -> Counting:
        """The places that a trace, which begins now, counts at; see :class:`unisono._capture.counting.Counting`."""
        self._settings = settings
        self._counting = Counting(self._before, self.counts, self.lists, settings, arguments, self.premises, scalars)
        return self._counting

    def count(self, reads: Readbacks) -> None:
        """Puts stand-ins at these places."""
        assert self._counting is not None
        with self._naming_what_cannot():
            self._counting.stand(reads, self._left_there)

    @contextlib.contextmanager
    def _naming_what_cannot(self) -> Iterator[None]:
        try:
            yield
        except CannotCount as error:
            raise _kept_in(error, self._left_at.get(error.path)) from None

    def _note_numbers(self, now: Walk) -> bool:
        """Notes where a trace has left what is known when the step is over; whether that is more than was known."""
        for _, parts in now.holders.values():
            for (_, key), part in parts.items():
                if isinstance(part, Selection):
                    raise part.refused("keeping")
                if is_known_later(key):
                    raise read_back(user_line())
        more = False
        for path, part in numbers_in(now, self._settings):
            more = self._note_place(*self._place_of(path), part.place if type(part) is Number else None) or more
        for one in self._long_that_have_changed():
            more = self._note_place(self._before.paths[id(one[0])], self.lists, None) or more
        return more

    def _long_that_have_changed(self) -> list[tuple[Any, list[Any]]]:
        return [one for one in self._long if len(one[0]) != len(one[1]) or any(map(operator.is_not, *one))]

    def _note_place(self, place: Path, among: list[Path], line: str | None) -> bool:
        """Notes a place or a list, and the user's line that puts something there; whether it was not known."""
        if place in among:
            return False
        among.append(place)
        self._left_at[place] = line
        self.guards = Guards()  # of which it is not known what they leave there
        return True

    def _place_of(self, path: Path) -> tuple[Path, list[Path]]:
        """The place, or the list, of the user's that a trace has put something in, and those that are known."""
        place = path
        for length in range(len(path) - 1, 0, -1):
            holder = follow(self.root, path[:length])
            if not isinstance(holder, torch.Tensor) and id(holder) not in self._before.holders:
                place = path[:length]
        holder = follow(self.root, place[:-1])
        known = self._before.holders.get(id(holder))
        is_new = known is not None and place[-1] not in known[1]
        # In a deque that is full, what is put in moves all others.
        is_put_in = isinstance(holder, deque) and place != path
        return (
            (place[:-1], self.lists)
            if is_put_in or (is_new and isinstance(holder, list | deque))
            else (place, self.counts)
        )

    def _is_put_in(self, path: Path) -> bool:
        """Whether a path leads into a container that a trace has put into a list or a deque."""
        return len(path) > 2 and self._place_of(path)[1] is self.lists

    def counted(self, reads: Readbacks) -> Counts:
        """What a trace has left at the places that it counts at.

        Raises:
            StepError: it leaves what cannot be computed when the step is over, or not at each step.
        """
        assert self._counting is not None
        for path in self.counts:
            if any(id(leaf) in self.marks for leaf in flatten(follow(self.root, path))[0]):
                raise _first_differs(path, "is left by the first step, and not by the second")
        with self._naming_what_cannot():
            counts = self._counting.counts(reads.expression_of)
        self._counting.require_unused()
        self._counting.require_lasting(counts)
        return counts

    def read_too_early(self, expressions: Any) -> None:
        """Refuses a step that goes on with what the step before it has left, where the first one cannot have."""
        path = self._counting.read_too_early(expressions) if self._counting is not None else None
        if path is not None:
            raise _first_differs(path, "is left by a step, and read by the next one", self._left_at.get(path))

    def paths_to(self, tensor: torch.Tensor) -> list[Path]:
        """All paths to a tensor of the user's, or to the one of which it is the ``data``."""

        def is_it(found: torch.Tensor) -> bool:
            return found is tensor or (_kind(found) == _kind(tensor) and _memory(found) == _memory(tensor) is not None)

        return [path for path, found in self._before.tensors.items() if path not in self.replaced and is_it(found)]

    def read(self) -> list[list[Path]]:
        """All paths to each of the generators that the step draws from, and to the decay of each average."""
        found = self.walk.generators
        generators = [
            [other for other, one in found.items() if one is found[path]] if path in found else [path]
            for path in self.generators
        ]
        return [*generators, *([path] for path in decays(self.walk))]

    def note_gradients(self, parameters: Iterable[torch.Tensor]) -> bool:
        """Makes state of the gradients that are there; whether a path leads to each of them."""
        self.accumulates = self.keep_gradients = True
        self.start_again()
        for parameter in parameters:
            if parameter.grad is not None:
                paths = self.paths_to(parameter)
                if not paths:
                    return False
                self.replaced.append((*paths[0], ("attr", "grad")))
        return True

    def note_written(self, tensors: Iterable[tuple[torch.Tensor, str | None]]) -> None:
        """Notes tensors of the user's, each with the place that writes into it."""
        for tensor, place in tensors:
            paths = self.paths_to(tensor)
            if not paths:
                raise StepError(
                    "the step changes a tensor in place that is neither the model's nor the optimizer's",
                    code="U0112",
                    place=place,
                    cause="no variable, attribute or entry of a list or dictionary was found that the step has it from",
                    hint="register it as a buffer of the model (`register_buffer`), so that it is state",
                )
            if paths[0] not in self.written:
                self.written.append(paths[0])

    def known(self, tensors: Iterable[tuple[torch.Tensor, str | None]]) -> list[Path]:
        """Paths to tensors from outside whose values a step goes on with, each with the place that does."""
        found = [(self.paths_to(tensor), place) for tensor, place in tensors]
        for paths, place in found:
            if not paths:
                raise read_back(place)
        return [paths[0] for paths, _ in found]

    def look(self, originals: dict[int, torch.Tensor], given: Container[int] = ()) -> bool:
        """Notes what a trace has put in the place of something else; whether that is more than was known.

        Args:
            originals: the user's own tensors in the place of which traced ones stand, by the ``id`` of those.
            given: the ``id`` of those that are arguments, which are others in the next call.
        """
        now = self._walk()
        more = self._note_numbers(now)
        self._originals = {key: original for key, original in originals.items() if key not in given}
        own = {id(original) for original in originals.values()}
        for path, tensor in now.tensors.items():
            before = self._before.tensors.get(path, Missing)
            if tensor is before or path in self.replaced or path in self.left or self._is_the_models(path, before, own):
                continue
            if id(tensor) in self._originals:
                if before is not Missing and before is not self._originals[id(tensor)]:
                    raise _first_differs(path, "becomes a parameter of the model, and was another tensor before")
            elif isinstance(before, torch.Tensor) and _kind(before) == _kind(tensor) and not self._is_put_in(path):
                self.replaced.append(path)
                more = True
            elif isinstance(tensor, FakeTensor) and not follows_from_constants(tensor, buffers=True):
                place, among = self._place_of(path)
                if among is self.lists or place != path:
                    more = self._note_place(place, among, None) or more
                    continue
                self.left.append(path)
                more = True
        for path, before in self._before.tensors.items():
            gone = path not in now.tensors and follow(self.root, path[:-1]) is not Missing
            if not gone or self._is_the_models(path, before, own) or path in self.counts:
                continue
            now_there = follow(self.root, path)
            if now_there is before:
                continue
            if type(now_there) not in _PLAIN or self._place_of(path)[0] != path:
                raise _first_differs(path, _GONE)
            more = self._note_place(path, self.counts, None) or more
            self._cleared[path] = before
        return more

    def require_unread(self, constants: Iterable[torch.Tensor]) -> None:
        """Refuses a step that reads a tensor from which it leaves the place to something else, as no later step can read it."""
        read = {id(one) for one in constants}
        for path, tensor in self._cleared.items():
            if id(tensor) in read:
                raise _first_differs(path, _GONE)

    def _is_the_models(self, path: Path, before: Any, own: set[int]) -> bool:
        """Whether a path leads to what a module of the model has registered."""
        return path[-1][0] in ("parameter", "buffer") and id(before) in own

    def is_settled(self, operations: list[str], more: bool) -> bool:
        """Whether a trace can stand: it has found no more, and runs as the one before it where it finds what that has left."""
        before, self._operations = self._operations, operations
        left = [*self.left, *self._unfirm()]
        if more or (left and before is None):
            return False
        if left and operations != before:
            raise _first_differs(left[0], "is left by the first step, and the second step is another one")
        return True

    def _unfirm(self) -> list[Path]:
        """The places at which the first step has nothing to count with."""
        counting = self._counting
        return [] if counting is None else [path for n, path in enumerate(self.counts) if n not in counting.firm]

    def start_again(self) -> None:
        """Forgets how the last trace ran: the next one is of another kind."""
        self._operations = None

    def left_tensors(self) -> list[torch.Tensor]:
        """What the trace has left in the places that are known."""
        found = []
        for path in self.left:
            tensor = follow(self.root, path)
            if not isinstance(tensor, torch.Tensor) or id(tensor) in self.marks:
                raise _first_differs(path, "is left by the first step, and not by the second")
            found.append(tensor)
        return found

    def mark(self) -> None:
        """Leaves everything as it was, and marks of the last trace where the next one must not read."""
        marks = [(path, follow(self.root, path)) for path in self.left]
        self._left_there = {path: follow(self.root, path) for path in self.counts}
        self._restore()
        within = [(path, leaf) for path, left in self._left_there.items() for leaf in flatten(left)[0]]
        tensors = [
            (path, leaf) for path, leaf in within if isinstance(leaf, FakeTensor) and id(leaf) not in self._settings
        ]
        self.marks = {id(mark): (mark, path) for path, mark in [*marks, *tensors]}
        for path, mark in marks:
            put(self.root, path, mark)

    def undo(self) -> None:
        """Leaves everything as it was before a trace that has ended early."""
        self._restore()
        for mark, path in self.marks.values():
            if path in self.left:
                put(self.root, path, mark)

    @contextlib.contextmanager
    def put_back(self) -> Iterator[None]:
        """Leaves everything as it was, at its end: no mark and no tensor without data stays anywhere."""
        try:
            yield
        except BaseException:
            self._restore()
            raise
        if self.marks:
            self._restore()

    def _restore(self) -> None:
        if self._counting is not None:
            self._counting.put_back()
        for long, entries in self._long_that_have_changed():
            refill(long, entries)
        now = self._walk()
        for path, _ in [*numbers_in(now, self._settings)]:
            if is_known_later(follow(self.root, path)) or id(follow(self.root, path)) in self._settings:
                self._put_back(path)
        for path, tensor in now.tensors.items():
            if not isinstance(tensor, FakeTensor) or follow(self.root, path) is not tensor:
                continue
            if id(tensor) in self._originals and path not in self._before.tensors:
                put(self.root, path, self._originals[id(tensor)])
            else:
                self._put_back(path)
        for path, tensor in self._before.tensors.items():
            if follow(self.root, path) is not tensor:
                self._put_back(path)

    def _put_back(self, path: Path) -> None:
        """Puts back what was at a path, or that on the way to it that was replaced."""
        for length in range(len(path) - 1, 0, -1):
            holder = follow(self.root, path[:length])
            known = self._before.holders.get(id(holder))
            if known is None:
                continue
            if isinstance(holder, list | tuple) or type(holder).__name__ == "deque":
                if not isinstance(holder, tuple):
                    refill(holder, [*known[1].values()])
            else:
                put(self.root, path[: length + 1], known[1].get(path[length], Missing))
            return


class Writes(TorchDispatchMode):
    """Keeps a trace from writing into tensors of the user's that stand in it as they are, and notes them."""

    def __init__(self) -> None:
        """Starts with none noted."""
        super().__init__()
        self.found: dict[int, tuple[torch.Tensor, str | None]] = {}
        self._stand_ins: dict[int, torch.Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # all of a recording does, at once

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation, on a copy of what it must not write into."""
        if func._schema.is_mutable:
            kwargs = kwargs or {}
            for position, argument in enumerate(func._schema.arguments):
                if argument.alias_info is None or not argument.alias_info.is_write:
                    continue
                if position < len(args):
                    args = (*args[:position], self._instead(args[position]), *args[position + 1 :])
                elif argument.name in kwargs:
                    kwargs = {**kwargs, argument.name: self._instead(kwargs[argument.name])}
        return func(*args, **(kwargs or {}))

    @staticmethod
    def wants(args: Any, written: tuple[int, ...]) -> bool:
        """Whether an operation, which changes the arguments at some positions, is to run under this mode."""
        return any(at >= len(args) or type(args[at]) is not FakeTensor for at in written)

    def _instead(self, given: Any) -> Any:
        if isinstance(given, list | tuple):
            return [self._instead(one) for one in given]
        if not isinstance(given, torch.Tensor) or isinstance(given, FakeTensor):
            return given
        if id(given) not in self._stand_ins:
            self.found[id(given)] = given, user_line()
            self._stand_ins[id(given)] = given.detach().clone()
        return self._stand_ins[id(given)]


def read_too_early(path: Path, place: str | None) -> StepError:
    """The error for a step that reads what the step before it left, and a first step cannot have read."""
    return _first_differs(path, "is left by a step, and read by the next one", place)


def _first_differs(path: Path, how: str, place: str | None = None) -> StepError:
    return StepError(
        f"the first step is unlike the others: `{shown(path)}` {how}",
        code="U0115",
        place=place,
        cause="one graph is captured, of the first step, and it must serve all",
        hint="give it a tensor of the shape and type that the step leaves there before `parallelize`, zeros for instance",
    )


def _kept_in(error: CannotCount, place: str | None) -> StepError:
    return StepError(
        f"the step keeps what is known when it is over in {error}",
        code="U0101",
        place=place,
        cause="numbers and texts, in tuples, lists, dictionaries and dataclasses too, can be put where they belong behind each step",
        hint="make objects that keep numbers before `parallelize`, keep it in an attribute, an entry or a list that is there, or return it",
    )


_PLAIN = (type(None), bool, int, float, str)
_GONE = "is a tensor before the step, and none after it"


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _memory(tensor: torch.Tensor) -> tuple[Any, tuple[int, ...]] | None:
    if isinstance(tensor, FakeTensor) or tensor.layout != torch.strided or not tensor.numel():
        return None
    without_address = tensor.untyped_storage()._cdata, tensor.storage_offset()  # as on `meta`
    return tensor.data_ptr() or without_address, tensor.stride()
