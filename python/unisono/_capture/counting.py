"""Numbers, texts and lists of the user's that a step changes: what it leaves in them is computed and put there when each step is over.

While the step is traced, stand-ins are at the places that it counts at. They are computed with, printed, returned and kept like numbers
that are read from tensors (:mod:`number`), and nothing else.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import numbers
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from unisono._capture.expressions import Expression, Read, evaluate, places_in
from unisono._capture.followed import FollowedText, Uses, class_of, recorded
from unisono._capture.followed import plain as plain_of
from unisono._capture.given import Given
from unisono._capture.number import Asked, Number
from unisono._capture.paths import Missing, Path, Step, Walk, follow, paths_of, put, shown
from unisono._capture.places import read_back
from unisono._capture.premises import Premises, another_at_the_next, is_known_before
from unisono._tree import Structure, flatten, from_plain, plain, unflatten
from unisono._tree import shown as shown_structure
from unisono.errors import StepError

#: How texts begin that stand for what is known when the step is over.
TOKEN = "\ue000"


@dataclass(frozen=True)
class Left:
    """What a step leaves at a place: how that is put together, and how its leaves are computed."""

    path: Path
    structure: Structure
    leaves: list[Expression]

    def value(self, read: Read) -> Any:
        """What is left, for what the step has read."""
        return unflatten(self.structure, iter([evaluate(leaf, read) for leaf in self.leaves]))


@dataclass(frozen=True)
class Filled(Left):
    """What a step gives to a method of a list or a deque that fills or empties it: its arguments."""

    method: str


@dataclass
class Counts:
    """What a step leaves beside tensors.

    Attributes:
        places: where it counts, with what there is to count with (:func:`_kind_of`).
        left: what it leaves where.
        filled: how it fills lists and deques.
    """

    places: list[tuple[Path, str]] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    filled: list[Filled] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.left or self.filled)

    def watched_by_itself(self, root: Any) -> Iterator[Path]:
        """Where what is there is another one behind each step, as far as it can be there now; a list of which an entry is, too."""
        for path in (*(one.path for one in self.left), *(path for path, _ in self.places), *self.lists()):
            holder = follow(root, path[:-1])
            if holder is not Missing:
                yield path
            if isinstance(holder, list | deque):
                yield path[:-1]

    def made(self, root: Any) -> list[Path]:
        """Where each step leaves an object of its own."""
        paths = (one.path for one in self.left if one.structure is not None)
        return [path for path in paths if follow(root, path[:-1]) is not Missing]

    def expressions(self) -> list[Expression]:
        """How all of it is computed."""
        return [leaf for one in (*self.left, *self.filled) for leaf in one.leaves]

    def lists(self) -> list[Path]:
        """The lists and deques that are filled."""
        return [*dict.fromkeys(one.path for one in self.filled)]

    def read(self, root: Any) -> list[Any]:
        """What is at the places now."""
        return [follow(root, path) for path, _ in self.places]

    def changed(self, root: Any) -> tuple[str, str, Any] | None:
        """Name, what was there, and value now of the first place at which there is no longer anything to count with."""
        for path, kind in (*self.places, *((path, _LISTS) for path in self.lists())):
            now = follow(root, path)
            if kind and not (isinstance(now, list | deque) if kind == _LISTS else _kind_of(now) == kind):
                return shown(path), kind, now
        return None

    def behind(self, number: int, places: Sequence[Any], paths: Sequence[Path]) -> Any:
        """What is at a place behind a step that finds ``places``; ``Missing`` where that follows from more than those."""
        for one in self.left:
            if one.path == paths[number]:
                known = all(is_known_before(leaf, range(len(places))) for leaf in one.leaves)
                with contextlib.suppress(LookupError):  # of arguments, which the next call gives
                    return one.value(Read(places=places)) if known else Missing
                return Missing
        return places[number]

    def leave(self, root: Any, read: Read) -> None:
        """Leaves what one step leaves, when it is over."""
        values = [(one.path, one.value(read)) for one in self.left]
        calls = [(one, one.value(read)) for one in self.filled]
        for path, value in values:
            put(root, path, value)
        for one, arguments in calls:
            getattr(follow(root, one.path), one.method)(*arguments)

    def plain(self) -> list[Any]:
        """What other ranks are told."""
        return [
            self.places,
            [[one.path, plain(one.structure), one.leaves] for one in self.left],
            [[one.path, plain(one.structure), one.leaves, one.method] for one in self.filled],
        ]

    @classmethod
    def from_plain(cls, data: Sequence[Any], classes: Mapping[str, type]) -> Counts:
        """The same from what :meth:`plain` tells."""
        places, left, filled = data

        def parts(path: Any, structure: Any, leaves: list[Expression]) -> tuple[Path, Structure, list[Expression]]:
            return paths_of([path])[0], from_plain(structure, classes), leaves

        return cls(
            [(paths_of([path])[0], kind) for path, kind in places],
            [Left(*parts(*one)) for one in left],
            [Filled(*parts(*one), method) for *one, method in filled],
        )


class CannotCount(Exception):  # noqa: N818
    """What a step leaves at a place cannot be computed when it is over.

    Attributes:
        path: a path to the place.
    """

    def __init__(self, path: Path, why: str) -> None:
        """Takes what is the matter with it."""
        super().__init__(f"`{shown(path)}`, {why}")
        self.path = path


class Counting:
    """The places that a step counts at, while it is traced.

    Attributes:
        firm: the places that have something to count with when the step begins, by their numbers.
        uses: what is done with texts and lists beside filling them and putting texts together.
    """

    def __init__(
        self,
        walk: Walk,
        paths: Sequence[Path],
        lists: Sequence[Path],
        settings: Container[int],
        arguments: Sequence[Any],
        premises: Premises,
        scalars: Mapping[str, torch.Tensor],
    ) -> None:
        """Takes paths to places and paths to lists; nothing of a trace is there.

        Args:
            walk: what the step can reach.
            paths: paths to places.
            lists: paths to lists.
            settings: the tensors that stand for settings, by their ``id``.
            arguments: the leaves of the step's arguments.
            premises: takes what the step chooses by, and what it computes tensors with.
            scalars: what stands for numbers that are inputs of the step, by their expressions.
        """
        self._walk, self._paths, self._lists, self._settings = walk, paths, lists, settings
        self._arguments, self._premises, self._scalars = arguments, premises, scalars
        self._were = [follow(walk.root, path) for path in paths]
        self._filled: list[tuple[Path, str, list[Any]]] = []
        self._stood: list[Callable[[], None]] = []
        self.firm = set[int]()
        self.uses = Uses()
        #: In the place of counts of an optimizer that are one number for many parameters is the first of these, by their numbers.
        self._alike = _alike(paths, self._were)

    def stand(self, reads: Asked, marks: Mapping[Path, Any]) -> None:
        """Puts the stand-ins where they belong; ``marks`` are what the last trace has left where the step must not count on it."""
        for number, (path, was) in enumerate(zip(self._paths, self._were, strict=True)):
            if _kind_of(was) and (path not in marks or _is_like(was, marks[path])):
                self.firm.add(number)
            value = was if number in self.firm else marks.get(path, Missing)
            holder = follow(self._walk.root, path[:-1])
            self._note(holder, path[-1], was)
            if value is not Missing:
                put(holder, path[-1:], self._stand_in(reads, number, value))
        for number, path in enumerate(self._lists):
            self._stand_for_list(follow(self._walk.root, path), path, len(self._paths) + number)

    def _stand_in(self, reads: Asked, number: int, value: Any) -> Any:
        leaves, structure = flatten(value)
        place: Expression = ["place", self._alike.get(number, number)]
        for leaf in leaves:
            if leaf is not None and not isinstance(leaf, bool | str | numbers.Number | torch.Tensor):
                raise _with_what_is_no_number(self._paths[number], leaf)
        made = [
            self._stand_in_for_leaf(reads, leaf, place if structure is None else ["leaf", place, position], number)
            for position, leaf in enumerate(leaves)
        ]
        return unflatten(structure, iter(made), value)

    def _stand_in_for_leaf(self, reads: Asked, leaf: Any, expression: Expression, number: int) -> Any:
        if isinstance(leaf, str):
            return FollowedText(self.uses, frozenset((number,)), reads.text(expression))
        if id(leaf) in self._settings:  # which the last trace has left
            return Number(reads, expression)
        return Number(reads, expression, class_of(leaf)) if _is_number(leaf) else leaf

    def _stand_for_list(self, real: Any, path: Path, number: int) -> None:
        def record(method: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            if method in ("extend", "extendleft", "__iadd__"):
                arguments = ([*arguments[0]],)
            if named:
                raise TypeError(f"{method} takes no such argument")
            self._filled.append((path, "extend" if method == "__iadd__" else method, [*arguments]))

        stand_in = recorded(real, self.uses, number, record)
        for holder, parts in self._walk.holders.values():
            for step, part in parts.items():
                if part is real and not isinstance(holder, tuple):
                    self._note(holder, step, real)
                    put(holder, (step,), stand_in)

    def _note(self, holder: Any, step: Step, was: Any) -> None:
        known = self._walk.holders.get(id(holder))
        is_own = known is None or step in known[1]  # and not nothing, or what an object has from its class
        self._stood.append(functools.partial(put, holder, (step,), was if is_own else Missing))

    def put_back(self) -> None:
        """Takes away the stand-ins, and what the step has left at their places."""
        for put_back in self._stood:
            with contextlib.suppress(LookupError):  # which the step has taken away itself
                put_back()
        self._stood = []

    def knows(self, expression: Expression) -> bool:
        """Whether what an expression gives is known before each step, and can be taken for granted."""
        return self._premises.are_looked_at and is_known_before(expression, self.firm)

    @property
    def given(self) -> Given:
        """What follows from the tensors of the call."""
        return self._premises.given

    def granted(self, expression: Expression, *, as_truth: bool = False) -> Any:
        """What an expression gives, or whether it is true, which the step takes for granted."""
        value = self._value(expression)
        if as_truth or not self._is_input_later(expression):
            value = bool(value) if as_truth else value
            self._premises.take(expression, value)
        return value

    def scalar(self, expression: Expression) -> torch.Tensor | None:
        """What stands for a number in tensor operations; ``None`` if it is no input yet, or cannot be one."""
        found = self._scalars.get(repr(expression))
        if found is None and expression not in self._premises.scalars and type(self._value(expression)) in (int, float):
            self._premises.scalars.append(expression)
        return found

    def wants_more(self) -> bool:
        """Whether there are numbers that are to be inputs, and are none."""
        return any(repr(one) not in self._scalars for one in self._premises.inputs())

    def _value(self, expression: Expression) -> Any:
        given = self._premises.given
        return evaluate(expression, Read(places=self._were, arguments=self._arguments, given=given.values.read))

    def _is_input_later(self, expression: Expression) -> bool:
        return repr(expression) not in self._scalars and expression in self._premises.scalars

    def require_lasting(self, counts: Counts) -> None:
        """Refuses a step that goes on with a number which each step changes, and so would be another one at each call."""
        behind = functools.partial(counts.behind, places=self._were, paths=self._paths)
        found = another_at_the_next(self._premises, self._were, behind)
        if found is not None:
            expression, line = found
            raise self.refused(expression, line)

    def refused(self, expression: Expression, place: str | None) -> StepError:
        """The error for a step that chooses by what it counts."""
        return _steered([self._paths[number] for number in sorted(places_in(expression))], place)

    def require_unused(self) -> None:
        """Refuses a step that does with a text or a list what may steer it."""
        every = [*self._paths, *self._lists]
        for use in self.uses.found:
            raise _steered([every[number] for number in use.sources], use.place)

    def counts(self, expression_of: Callable[[Any], Expression | None]) -> Counts:
        """What the step has left at the places."""
        made = functools.partial(_leaves, expression_of)
        left: list[Left] = []
        for number, path in sorted(enumerate(self._paths), key=lambda one: len(one[1])):
            if any(one.path == path[: len(one.path)] for one in left):
                continue  # within what is put there as a whole
            value = follow(self._walk.root, path)
            if number in self.firm or value is not Missing:
                one = Left(path, *made(value, path))
                if (
                    number in self.firm
                    and one.structure is not None
                    and _kind_of(value) != _kind_of(self._were[number])
                ):
                    raise CannotCount(path, "which has other entries behind each step")
                left += [one] if one.leaves != [["place", self._alike.get(number, number)]] else []
        filled = [Filled(path, *made(arguments, path), method) for path, method, arguments in self._filled]
        self._require_alike([*left, *filled])
        kinds = [_kind_of(was) if number in self.firm else "" for number, was in enumerate(self._were)]
        places = [*zip(self._paths, kinds, strict=True)]
        return Counts(places, left, filled)

    def _require_alike(self, left: Sequence[Left]) -> None:
        """Takes for granted that counts are one number as far as one stands for the others."""
        premises = self._premises
        used = places_in([[leaf for one in left for leaf in one.leaves], premises.scalars])
        used |= places_in([one.expression for one in premises.found.values()])
        for number, first in self._alike.items():
            if number != first and first in used:
                premises.take(["eq", ["place", number], ["place", first]], True)

    def read_too_early(self, expressions: Any) -> Path | None:
        """A place at which there is nothing to count with when the first step begins, and that expressions are computed from."""
        return next((self._paths[number] for number in sorted(places_in(expressions) - self.firm)), None)


def numbers_in(walk: Walk, settings: Container[int]) -> Iterator[tuple[Path, Any]]:
    """The stand-ins that a step has put somewhere, with paths to them. Tensors stand for ``settings`` of optimizers, by their ``id``."""
    for key, (_, parts) in walk.holders.items():
        for step, part in parts.items():
            if is_known_later(part) or id(part) in settings:
                yield (*walk.paths[key], step), part


def is_known_later(value: Any) -> bool:
    """Whether something is known when the step is over: a number, or a text with one."""
    return type(value) is Number or (isinstance(value, str) and str.__contains__(value, TOKEN))


def require_known_keys(structure: Any, place: str | None) -> None:
    """Refuses a structure with a key in it that is known when the step is over."""
    if isinstance(structure, str) and str.__contains__(structure, TOKEN):
        raise read_back(place)
    for part in structure if isinstance(structure, list | tuple) else ():
        require_known_keys(part, place)


def _leaves(
    expression_of: Callable[[Any], Expression | None], value: Any, path: Path
) -> tuple[Structure, list[Expression]]:
    """How a value is put together, and how its leaves are computed."""
    leaves, structure = flatten(value)
    require_known_keys(structure, None)
    found = []
    for leaf in leaves:
        expression = expression_of(leaf)
        if leaf is not None and not isinstance(leaf, bool | int | float | str | FakeTensor):
            raise _with_what_is_no_number(path, leaf)
        found.append(["constant", plain_of(leaf)] if expression is None else expression)
    return structure, found


def _alike(paths: Sequence[Path], values: Sequence[Any]) -> dict[int, int]:
    """For counts in the state of optimizers, by their numbers, the first one of the same name and value."""
    first: dict[Any, int] = {}
    return {
        number: first.setdefault((path[:-1], path[-1][1].split(" ", 2)[2], type(value), value), number)
        for number, (path, value) in enumerate(zip(paths, values, strict=True))
        if path[-1][0] == "state" and type(value) is int
    }


def _is_like(was: Any, left: Any) -> bool:
    """Whether what a trace has left can be counted with as what was there: it is one number or text, or has the same entries."""
    return flatten(was)[1] is None or _kind_of(left) == _kind_of(was)


def _with_what_is_no_number(path: Path, leaf: Any) -> CannotCount:
    return CannotCount(path, f"with a {type(leaf).__name__} in it")


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool | enum.Enum)


def _kind_of(value: Any) -> str:
    """What a place has that can be counted with, in words; empty for anything else."""
    if _is_number(value):
        return "number"
    if isinstance(value, str):
        return "text"
    leaves, structure = flatten(value)
    counts = structure is not None and all(_is_number(one) or isinstance(one, str) for one in leaves)
    return shown_structure(structure) if leaves and counts else ""


def _steered(paths: Sequence[Path], place: str | None) -> StepError:
    names = ", ".join(f"`{shown(path)}`" for path in paths)
    return StepError(
        f"the step is steered by what it leaves there at each call: {names}",
        code="U0119",
        place=place,
        cause="its Python code runs once, while the step is captured; numbers that are known when a step is over can be kept and shown",
        hint="keep as tensors what the step computes with, or do it behind the step with what it returns",
    )


_LISTS = "list or deque"
