"""What a step's code reaches beside tensors: numbers, texts, how many entries collections have, which object is where."""

from __future__ import annotations

import enum
import numbers
from collections import deque
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from unisono._capture.compared import MOST_ENTRIES, differ, is_array, seen
from unisono._capture.followed import class_of, plain
from unisono._capture.paths import Missing, Path, Step, Walk, put, shown, step_into

COLLECTIONS = (list, dict, set, deque)
#: Whose values say by themselves what they are.
_SAYING = (bool, type(None), enum.Enum, type, torch.dtype, torch.device)

_NO_PLACES = ("part", "hook", "parameter", "buffer")
#: What is looked after elsewhere.
_OTHERWISE = (torch.Tensor, torch.Generator)


@dataclass(frozen=True)
class Place:
    """A place that holds something, and what it held.

    Attributes:
        holder: the object that has the place.
        step: which of its places it is.
        path: how the step reaches it.
        was: what was there.
        size: of a collection, how many entries that had; of a dictionary, their keys.
    """

    holder: Any
    step: Step
    path: Path
    was: Any
    size: Any

    @property
    def name(self) -> str:
        """What the user's code calls it."""
        return shown(self.path)

    def now(self) -> Any:
        """What is there now."""
        return step_into(self.holder, self.step)

    def holds(self, value: Any) -> None:
        """Puts a value there."""
        put(self.holder, (self.step,), value)

    def is_counted(self) -> bool:
        """Whether it is a number, a text or a collection, which may go on changing forever."""
        return is_counted(self.was)

    def is_plain(self) -> bool:
        """Whether it is a switch, or counted and no collection."""
        return isinstance(self.was, bool) or (self.is_counted() and not isinstance(self.was, COLLECTIONS))

    def has_changed(self, now: Any) -> bool:
        """Whether a number, a text or a collection is another one, or another many."""
        if isinstance(self.was, COLLECTIONS):
            return type(now) is not type(self.was) or size_of(now) != self.size
        return _another(self.was, now)

    def change(self, now: Any) -> str:
        """The change to what is there now, in words."""
        if isinstance(self.was, COLLECTIONS) and isinstance(now, COLLECTIONS):
            sizes = _many(self.size), _many(size_of(now))
            how = f"{sizes[0]} to {sizes[1]} entries" if sizes[0] != sizes[1] else "other entries, or in another order,"
            return f"`{self.name}` ({how} of a {type(self.was).__name__})"
        if now is self.was:
            return f"`{self.name}` (written into)"
        return f"`{self.name}` ({self.was!r:.50} to {now!r:.50})"


def is_counted(value: Any) -> bool:
    """Whether something is a number, a text, a tuple of these or a collection."""
    if isinstance(value, _SAYING):
        return False
    return isinstance(value, (numbers.Number, str, *COLLECTIONS)) or _is_tuple_of_numbers(value)


def _is_tuple_of_numbers(value: Any) -> bool:
    is_plain = type(value) is tuple or hasattr(type(value), "_fields")
    return is_plain and bool(value) and all(isinstance(one, int | float | str) for one in value)


def _another(was: Any, now: Any) -> bool:
    """Whether there is another value; not a number is like itself."""
    if was is now:
        return False
    return differ(was, now) and not (was != was and now != now)


class Snapshot:
    """All that a walk has found beside tensors, as it is at one moment.

    Attributes:
        places: the places that hold it.
    """

    def __init__(self, walk: Walk) -> None:
        """Takes it as the walk has found it."""
        self._known = {id(value) for value, _ in walk.holders.values()}
        self.places = [*_places(walk)]
        self._entries: list[tuple[Any, list[Any]]] = []
        self._hooks = _hooks(walk)
        arrays = (place for place in self.places if is_array(place.was))
        self._arrays = {id(place): seen(place.was) for place in arrays}

    def with_entries(self) -> Snapshot:
        """The same, which knows what is in collections."""
        held = (place.was for place in self.places if isinstance(place.was, COLLECTIONS))
        self._entries = [(one, list(one.items() if isinstance(one, dict) else one)) for one in held]
        return self

    def changed(self) -> Iterator[tuple[Place, Any]]:
        """The numbers, texts and collections that are others now, and what they are."""
        for place, now in self.current():
            may_have = now is not Missing and (now is not place.was or isinstance(now, COLLECTIONS))
            if may_have and place.is_counted() and place.has_changed(now):
                yield place, now

    def has_new_hooks(self, walk: Walk) -> bool:
        """Whether a later walk has found hooks that were not there."""
        return not _hooks(walk) <= self._hooks

    def made(self, walk: Walk) -> list[Place]:
        """What a later walk has found where nothing was."""
        paths = {place.path for place in self.places}
        known = {(id(place.holder), place.step) for place in self.places}
        found = (place for place in _places(walk) if place.path not in paths)
        return [place for place in found if (id(place.holder), place.step) not in known]

    def others(self) -> list[Any]:
        """What tells apart everything else: of switches what they have become, of objects which other one that was known."""
        return [(place.path, how) for place, _, how in self._switched()]

    def switched(self) -> list[str]:
        """What has become another and is not counted, in words."""
        return [place.change(now) for place, now, _ in self._switched()]

    def _switched(self) -> Iterator[tuple[Place, Any, Any]]:
        for place, now in self.current():
            if (now is place.was and id(place) not in self._arrays) or place.is_counted():
                continue
            how = self._described(place, now)
            if how != self._arrays.get(id(place), self._described(place, place.was)):
                yield place, now, how

    def current(self) -> Iterator[tuple[Place, Any]]:
        """What is at each place; where an object was put in the place of another of its kind, what is in that."""
        instead: dict[int, Any] = {}
        for place in self.places:
            now = step_into(instead.get(id(place.holder), place.holder), place.step)
            if now is not place.was and class_of(now) is type(place.was) and id(now) not in self._known:
                instead[id(place.was)] = now
            yield place, now

    def _described(self, place: Place, value: Any) -> Any:
        if isinstance(value, _SAYING):
            return type(value), value
        found = ... if is_counted(value) or isinstance(value, nn.Module) else seen(value)
        if found is not ...:
            return found
        return id(value) if value is not place.was and id(value) in self._known else type(value).__name__

    def put_numbers_back(self) -> None:
        """Puts back numbers, texts, switches, and what was appended to lists."""
        for place in self.places:
            if place.now() is not place.was and place.is_plain():
                place.holds(place.was)
        for collection, was in self._entries:
            if isinstance(collection, list | deque) and len(collection) != len(was):
                refill(collection, was)

    def put_back_at(self, root: Any, paths: Container[Path], made: Sequence[Path]) -> None:
        """Puts back what was at some places, and takes away what has been ``made`` where nothing was."""
        for place in self.places:
            if place.path in paths and place.now() is not place.was:
                place.holds(place.was)
        held = {id(place.was) for place in self.places if place.path in paths}
        for collection, was in self._entries:
            if id(collection) in held:
                refill(collection, was)
        for path in made:
            put(root, path, Missing)

    def put_back(self) -> None:
        """Puts back everything."""
        for collection, was in self._entries:
            if len(collection) != len(was):
                refill(collection, was)
        for place in self.places:
            if place.now() is not place.was:
                place.holds(place.was)


def _places(walk: Walk) -> Iterator[Place]:
    """The places that hold no tensors; what PyTorch keeps in objects of its own is left to PyTorch."""
    own: set[Path] = set()
    for key, (holder, parts) in walk.holders.items():
        path = walk.paths[key]
        if path[:-1] in own or _is_pytorchs(holder):
            own.add(path)
        elif not isinstance(holder, tuple):
            for step, part in parts.items():
                if step[0] not in _NO_PLACES and part is not Missing and not isinstance(part, _OTHERWISE):
                    yield Place(
                        holder, step, (*path, step), part, size_of(part) if isinstance(part, COLLECTIONS) else 0
                    )


def _hooks(walk: Walk) -> set[tuple[int, Step]]:
    """The hooks of modules and tensors that a walk has found, by their holders."""
    return {(key, step) for key, (_, parts) in walk.holders.items() for step in parts if step[0] == "hook"}


def size_of(collection: Any) -> Any:
    """How many entries a collection has; of a dictionary their keys, in their order."""
    if not isinstance(collection, dict):
        kind = next(one for one in type(collection).__mro__ if one in COLLECTIONS)
        return kind.__len__(collection)
    keys = [plain(key) for key in dict.__iter__(collection)]
    return tuple(keys) if len(keys) <= MOST_ENTRIES else len(keys)


def _many(size: Any) -> int:
    return len(size) if isinstance(size, tuple) else size


def _is_pytorchs(holder: Any) -> bool:
    is_the_users = isinstance(holder, nn.Module | torch.Tensor | torch.optim.Optimizer)
    return str(type(holder).__module__).partition(".")[0] == "torch" and not is_the_users


def refill(collection: Any, entries: list[Any]) -> None:
    """Gives a collection the entries that it had."""
    collection.clear()
    if isinstance(collection, dict):
        dict.update(collection, entries)  # a Counter's own counts them
        return
    fill: Callable[[Any], Any] = collection.extend if isinstance(collection, list | deque) else collection.update
    fill(entries)
