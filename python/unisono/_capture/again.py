"""Tracing a step once more, behind what its first trace has changed: whether it is the same step, at this call and at all later ones.

What the first trace has changed is followed through the next one (:mod:`followed`). A step that only counts computes with nothing that
changes; one that does with a count what may steer it is another step at some later call, and refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from unisono._capture import sources
from unisono._capture.beside import COLLECTIONS, Place, Snapshot, refill, size_of
from unisono._capture.compared import is_generator
from unisono._capture.expressions import alike
from unisono._capture.followed import Following, Uses, entries, plain, shows_only, sources_of
from unisono._capture.paths import Path, Walk, put
from unisono._capture.places import place_in
from unisono._capture.side_effects import A_CLOCK, SideEffects, depends_on, only_at_first
from unisono._capture.wire import Encoder

#: Traces until switches are as they have been before, beyond which they may never be.
_MOST_TRACES = 4
#: Traces until all is known that follows from what changes.
_MOST_ROUNDS = 4


@dataclass(frozen=True)
class Mixed:
    """A number that a step returns, or that it computes with beside what is known when it is over.

    Attributes:
        paths: where it comes from, as far as that changes at each call.
        changes: how that changes, in words.
        drawn: what else it comes from that is another each time, in words.
        place: where that is done.
    """

    paths: frozenset[Path]
    changes: list[str]
    drawn: list[str]
    place: str | None


@dataclass
class Again:
    """Traces a step once more.

    Attributes:
        first: its first trace.
        before: what the step can reach, as it was before that.
        walked: walks over what the step can reach.
        traced: traces the step.
        place: where the step begins.
        doubts: what the step reaches that may be another at each call and cannot be followed.
        counted: what the first trace has made and later ones change, by paths to it, in words.
        changing: paths to what changes at each call, as far as it could be followed.
        anew: paths to what changes at each call, and could be left anew behind each step.
        mixed: what is computed with beside what is known when the step is over, or returned.
        reads_clocks: whether the step's own code reads a clock.
    """

    first: Encoder
    before: Snapshot
    walked: Callable[[], Walk]
    traced: Callable[[], Encoder]
    place: str | None = None
    doubts: Sequence[str] = ()
    counted: dict[Path, str] = field(default_factory=dict)
    changing: set[Path] | None = None
    anew: list[Path] = field(default_factory=list)
    mixed: list[Mixed] = field(default_factory=list)
    reads_clocks: bool = False

    def require_the_same(self) -> set[Path]:
        """Refuses a step that is another one at some later call; all is as it was afterwards.

        Returns:
            Paths to the numbers and texts that the first call has changed and later ones do not, and that the step computes with.
        """
        self._effects, self._settled = SideEffects(self.walked()), set[Path]()
        met: list[list[Any]] = []
        with self._effects.undone():
            for _ in range(_MOST_TRACES):
                others = self.before.others()
                if others in met:
                    return self._settled
                met.append(others)
                self._trace()
            raise depends_on(self.before.switched(), [], self.place)

    def _trace(self) -> None:
        """Traces the step, behind the last trace, until all is followed that follows from what changes."""
        walk = self.walked()
        made = {place.path for place in self.before.made(walk) if place.is_counted()}
        paths = made | {place.path for place, _ in self.before.changed() if not shows_only(place.holder)}
        for _ in range(_MOST_ROUNDS):
            followed = _Followed(walk, paths)
            try:
                other = followed.through(self.traced)
            except Exception as error:
                followed.undo()
                self._trace_plainly(place_in(error))
                return
            more = followed.more(self.walked())
            if more:
                followed.undo()
                walk, paths = self.walked(), paths | more
                continue
            self._require_alike(followed, other)
            self._settled |= followed.settled()
            self.counted |= followed.counted(made)
            self.changing = followed.paths(followed.changing())
            self.anew = followed.anew()
            self.reads_clocks = sources.CLOCK in followed.uses.asked
            self.mixed += followed.mixed()
            followed.settle(self.walked())
            return

    def _trace_plainly(self, place: str | None) -> None:
        """Traces the step where a number that is followed has come to code that takes only Python's own."""
        now = Snapshot(self.walked())
        difference = _difference(self.first, self.traced())
        changed = [place.change(value) for place, value in now.changed()]
        if changed or difference is not None:
            raise depends_on(changed, self._drawn(), difference or place or self.place, self.doubts)

    def require_left(self, left: Container[Path], clocks: bool) -> None:
        """Refuses a step that goes on with what changes, where not all of that, ``clocks`` too, is computed anew behind each step."""
        for mixed in self.mixed:
            drawn = [one for one in mixed.drawn if not clocks or one != A_CLOCK]
            if drawn or not all(path in left for path in mixed.paths):
                raise depends_on(mixed.changes, mixed.drawn, mixed.place or self.place)

    def _require_alike(self, followed: _Followed, other: Encoder) -> None:
        changing = followed.changing()
        for use in followed.uses.found:
            changes, drawn = followed.changes(use.sources & changing), followed.drawn(use.sources)
            if changes or drawn:
                raise depends_on(changes, drawn, use.place or self.place)
        difference = _difference(self.first, other)
        if difference is not None:
            changes, drawn = [*followed.changes(changing), *followed.switched()], self._drawn()
            if not (changes or drawn) and self._is_settled(followed, other):
                raise only_at_first(self._changed_at_first(), _difference(other, self.first) or self.place)
            raise depends_on(changes, drawn, difference or self.place, self.doubts)

    def _is_settled(self, followed: _Followed, other: Encoder) -> bool:
        """Whether a further trace is the step that this one is."""
        followed.settle(self.walked())
        return _difference(other, self.traced()) is None

    def _changed_at_first(self) -> list[str]:
        """What the first trace has changed, in words."""
        return [*(place.change(now) for place, now in self.before.changed()), *self.before.switched()]

    def _drawn(self) -> list[str]:
        return self._effects.so_far(self.walked()).drawn


class _Followed:
    """What is followed through one trace.

    Attributes:
        uses: what is done with it.
    """

    def __init__(self, walk: Walk, paths: set[Path]) -> None:
        """Follows what is at some paths."""
        self.uses = Uses()
        self._walk, self._now = walk, Snapshot(walk).with_entries()
        held = {
            id(place.was) for place in self._now.places if place.path in paths and isinstance(place.was, COLLECTIONS)
        }
        wanted = [
            place
            for place in self._now.places
            if place.path in paths or id(place.was) in held or is_generator(place.was)
        ]
        made: dict[int, Any] = {}
        self._places: list[tuple[Place, Any]] = []
        for number, place in enumerate(wanted):
            if id(place.was) not in held:
                stand_in = self.uses.stand_in(place.was, number)
            elif id(place.was) in made:
                stand_in = made[id(place.was)]
            else:
                stand_in = made[id(place.was)] = self.uses.stand_in(place.was, number)
            self._places.append((place, stand_in))
        for place, stand_in in self._places:
            if isinstance(made.get(id(place.holder)), dict):
                own = made[id(place.holder)]
                key = [*dict.__iter__(own)][place.step[1]] if place.step[0] == "keyed" else place.step[1]
                dict.__setitem__(own, key, stand_in)

    def through(self, traced: Callable[[], Encoder]) -> Encoder:
        """The trace."""
        for place, stand_in in self._places:
            if stand_in is not None:
                place.holds(stand_in)
        with sources.followed(self.uses, self._walk), Following():
            return traced()

    def undo(self) -> None:
        """Puts everything back as it was before the trace."""
        self._now.put_back()

    def settle(self, walk: Walk) -> None:
        """Leaves what the trace has left, without stand-ins."""
        for place, stand_in in self._places:
            if isinstance(place.was, COLLECTIONS):
                refill(place.was, entries(stand_in))
        for holder, parts in walk.holders.values():
            for step, part in parts.items():
                if sources_of(part) and not isinstance(holder, tuple):
                    put(holder, (step,), plain(part))
        for place, stand_in in self._places:
            if place.now() is stand_in:
                place.holds(place.was)

    def settled(self) -> set[Path]:
        """Paths to what is computed with, and changes no more."""
        used = frozenset[int]().union(*(use.sources for use in self.uses.found)) - self.changing()
        return {place.path for number, (place, _) in enumerate(self._places) if number in used}

    def counted(self, paths: set[Path]) -> dict[Path, str]:
        """How those of some paths change that do, in words."""
        changing = self.changing()
        found = {n: place.path for n, (place, _) in enumerate(self._places) if place.path in paths and n in changing}
        return {path: self.changes({number})[0] for number, path in found.items()}

    def changing(self) -> set[int]:
        """The numbers of the places whose values change: themselves, or because they follow from others that do."""
        found = {number for number, place, made, now in self._after() if _is_another(place, made, now)}
        after = {number: sources_of(now) for number, _, made, now in self._after() if now is not made}
        while True:
            more = {number for number, sources in after.items() if sources & found} - found
            if not more:
                return found
            found |= more

    def anew(self) -> list[Path]:
        """Paths to what changes as code says that computes with nothing but what changes so: numbers, texts, lists, deques."""
        after = {number: (place, now) for number, place, _, now in self._after()}
        found = self.changing()
        while True:
            less = {number for number in found if not self._can_be_left(*after[number], found | self._constant(after))}
            if not less:
                break
            found -= less
        return [after[number][0].path for number in sorted(found)]

    def _constant(self, after: dict[int, tuple[Place, Any]]) -> set[int]:
        """The numbers of the places whose values do not change."""
        drawn = {number for number, (place, _) in after.items() if is_generator(place.was)}
        return {sources.CLOCK, *after} - self.changing() - drawn

    @staticmethod
    def _can_be_left(place: Place, now: Any, known: set[int]) -> bool:
        if isinstance(place.was, COLLECTIONS):
            return type(place.was) in (list, deque)
        return sources_of(now) <= known

    def paths(self, numbers: Collection[int]) -> set[Path]:
        """Paths to places by their numbers."""
        return {place.path for number, (place, _) in enumerate(self._places) if number in numbers}

    def mixed(self) -> list[Mixed]:
        """What is returned, or computed with beside what is known when the step is over, of what changes."""
        changing, found = self.changing(), []
        for use in self.uses.mixed:
            sources = use.sources & changing
            paths, drawn = self.paths(sources), self.drawn(use.sources)
            if paths or drawn:
                found.append(Mixed(frozenset(paths), self.changes(sources), drawn, use.place))
        return found

    def _after(self) -> Iterator[tuple[int, Place, Any, Any]]:
        """Each place by its number, with its stand-in and what is there now."""
        now = {id(place): value for place, value in self._now.current()}
        for number, (place, stand_in) in enumerate(self._places):
            yield number, place, stand_in, now[id(place)]

    def changes(self, numbers: set[int] | frozenset[int]) -> list[str]:
        """How places change, in words."""
        return [place.change(_shown(now)) for number, place, _, now in self._after() if number in numbers]

    def drawn(self, numbers: frozenset[int]) -> list[str]:
        """What of some sources is another each time by itself: clocks, generators."""
        own = (
            place.name
            for number, (place, _) in enumerate(self._places)
            if number in numbers and is_generator(place.was)
        )
        return [*(f"`{name}`" for name in own), *(name for number, name in sources.NAMES.items() if number in numbers)]

    def switched(self) -> list[str]:
        """What else has become another, in words."""
        return self._now.switched()

    def more(self, walk: Walk) -> set[Path]:
        """Paths to what follows from what changes, and was not followed."""
        changing = self.changing()
        known, followed = {place.path for place in self._now.places}, {place.path for place, _ in self._places}
        found = set[Path]()
        for key, (holder, parts) in walk.holders.items():
            path = walk.paths[key]
            for step, part in parts.items():
                if sources_of(part) & changing:
                    found.add(path if isinstance(holder, tuple) else (*path, step))
        return (found & known) - followed


def _shown(value: Any) -> Any:
    return entries(value) if isinstance(value, COLLECTIONS) else plain(value)


def _is_another(place: Place, stand_in: Any, now: Any) -> bool:
    if isinstance(place.was, COLLECTIONS) and isinstance(now, COLLECTIONS):
        return size_of(now) != place.size
    return now is not stand_in and place.has_changed(plain(now))


def is_the_same(one: Encoder, other: Encoder) -> bool:
    """Whether two traces of a step are one program, what they return aside."""
    return _difference(one, other, returned=False) is None


def _difference(one: Encoder, other: Encoder, *, returned: bool = True) -> str | None:
    """Where in the user's code two traces of a step differ, empty where that is not known; ``None`` if they are one step.

    That is its program, the numbers that it has ``returned`` if these count, and the tensors that its code makes.
    """
    ours, theirs = one.message(), other.message()
    for number, (node, same) in enumerate(zip(ours["nodes"], theirs["nodes"], strict=False)):
        if _program(node) != _program(same):
            return _place_of(other, number)
    for position, (tensor, same) in enumerate(zip(_constants(one), _constants(other), strict=False)):
        if not _equal(tensor, same):
            return _place_of_constant(other, position)
    parts = ("ops", "inputs", "values", "returns", "updates")
    is_same = (
        all(ours[part] == theirs[part] for part in parts)
        and len(ours["nodes"]) == len(theirs["nodes"])
        and len(_constants(one)) == len(_constants(other))
        and (not returned or _returned(one, other))
    )
    return None if is_same else ""


def _returned(one: Encoder, other: Encoder) -> bool:
    """Whether two traces return the same numbers, but for those that are followed."""
    ours, theirs = one.traced, other.traced
    followed = {at for at, leaf in theirs.return_constants.items() if sources_of(leaf)}
    constants = [
        [(at, leaf) for at, leaf in mine.return_constants.items() if at not in followed] for mine in (ours, theirs)
    ]
    return repr(constants[0]) == repr(constants[1]) and alike([*ours.numbers.items()], [*theirs.numbers.items()])


def _program(node: dict[str, Any]) -> dict[str, Any]:
    return {key: part for key, part in node.items() if key not in ("place", "module")}


def _constants(encoder: Encoder) -> list[torch.Tensor]:
    return [item.tensor for item in encoder.inputs.inputs if item.cls == "constant"]


def _equal(tensor: torch.Tensor, same: torch.Tensor) -> bool:
    if tensor is same or tensor.is_meta:
        return True
    return tensor.shape == same.shape and torch.allclose(tensor, same, rtol=0, atol=0, equal_nan=True)


def _place_of(encoder: Encoder, number: int) -> str:
    """``file:line`` of a node, or nothing."""
    place = encoder.nodes[number]["place"]
    return "" if place is None else ":".join(map(str, list(encoder.places)[place]))


def _place_of_constant(encoder: Encoder, position: int) -> str:
    """``file:line`` of the first node that reads a constant."""
    value = encoder.constant_values()[position]
    for number, node in enumerate(encoder.nodes):
        if any(
            one == {"value": value} or (isinstance(one, dict) and value in one.get("values", ()))
            for one in node["args"]
        ):
            return _place_of(encoder, number)
    return ""
